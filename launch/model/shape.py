"""The shape of a model from its config.json alone: sizes, parameter counts, context length.

Counts are exact for the families in `_FAMILIES`, which follow transformers 4.56 and 5.10
`models/{llama,mistral,qwen2,qwen3,qwen2_moe,qwen3_moe,mixtral,deepseek_v2,deepseek_v3}`; the tests compare them
with the real classes. Any other model type is refused rather than guessed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.model.config_json import Keys, ShapeError, UnknownModelError, read_json

__all__ = ["Mla", "ModelShape", "Parameters", "ShapeError", "UnknownModelError", "read_shape"]


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek): ranks and head sizes. `q_rank` None: queries are not compressed."""

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters of the whole model, by where they sit.

    `head` is 0 where the embeddings are tied; `mlp` holds dense MLPs and shared experts, `experts` the routed
    ones; `active` are those that one token goes through, embedding included.
    """

    embedding: int
    head: int
    attention: int
    mlp: int
    experts: int
    router: int
    norms: int
    active: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.attention + self.mlp + self.experts + self.router + self.norms


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only language model.

    Attributes:
        architecture: first entry of `architectures`, e.g. Qwen3ForCausalLM.
        model_type: of the language model, e.g. qwen3.
        head_dim: of queries and keys.
        ffn: width of a dense MLP (0 where every layer has experts).
        max_position: `max_position_embeddings`, what verl takes as the model's limit.
        context: tokens that the rope scaling of config.json reaches, at least `max_position`.
        moe_layers: layers with experts.
        shared_ffn: width of all shared experts together; shared_gate: a gate stands before them.
        labels: outputs of a sequence classifier; None for a language model.
        notes: what the counts leave out.
    """

    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    max_position: int
    context: int
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    moe_ffn: int = 0
    moe_layers: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    mla: Mla | None = None
    labels: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - self.moe_layers

    @property
    def attention_per_layer(self) -> int:
        """Parameters of one attention block, its query and key norms included."""
        hidden, mla = self.hidden, self.mla
        if mla is None:
            query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
            count = 2 * hidden * query + 2 * hidden * key
            count += (query + 2 * key) * self.qkv_bias + hidden * self.o_bias
            return count + 2 * self.head_dim * self.qk_norm
        query = self.heads * (mla.nope + mla.rope)
        rank = mla.q_rank
        count = hidden * query if rank is None else rank * (hidden + self.qkv_bias + 1 + query)
        count += (mla.kv_rank + mla.rope) * (hidden + self.qkv_bias) + mla.kv_rank
        count += mla.kv_rank * self.heads * (mla.nope + mla.value)
        return count + self.heads * mla.value * hidden + hidden * self.o_bias

    @property
    def mlp_per_layer(self) -> int:
        """Parameters of a dense MLP: gate, up, down."""
        return self._gated(self.ffn) + (2 * self.ffn + self.hidden) * self.mlp_bias

    @property
    def expert(self) -> int:
        """Parameters of one routed expert of one layer."""
        return self._gated(self.moe_ffn)

    @property
    def shared_per_layer(self) -> int:
        """Parameters of the shared experts of one layer, with their gate."""
        return self._gated(self.shared_ffn) + self.hidden * self.shared_gate

    def _gated(self, width: int) -> int:
        return 3 * self.hidden * width

    def parameters(self) -> Parameters:
        """Exact counts."""
        embedding = self.vocab * self.hidden
        head = 0 if self.tied else embedding
        if self.labels is not None:
            head = self.labels * self.hidden
        attention = self.layers * self.attention_per_layer
        mlp = self.dense_layers * self.mlp_per_layer + self.moe_layers * self.shared_per_layer
        experts = self.moe_layers * self.experts * self.expert
        router = self.moe_layers * self.experts * self.hidden
        norms = (2 * self.layers + 1) * self.hidden
        active_experts = self.moe_layers * self.experts_per_token * self.expert
        active = embedding + head + attention + mlp + active_experts + router + norms
        return Parameters(embedding, head, attention, mlp, experts, router, norms, active)

    def kv_bytes_per_token(self, tensor_parallel: int = 1, bytes_per_value: int = 2) -> int:
        """KV cache of one token on one GPU. Latent attention is not split by tensor parallelism, and a key
        head is kept whole where there are more GPUs than key heads."""
        if self.mla is not None:
            return self.layers * (self.mla.kv_rank + self.mla.rope) * bytes_per_value
        return self.layers * 2 * -(-self.kv_heads // tensor_parallel) * self.head_dim * bytes_per_value


def _attention(keys: Keys, *, kv_default: bool, head_dim: int | None = None) -> dict[str, Any]:
    """Heads, and the head size where config.json leaves it to hidden_size / heads."""
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    kv_heads = keys.integer("num_key_value_heads", heads if kv_default else None)
    if heads % kv_heads:
        raise ShapeError(
            f"{keys.path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    dim = keys.integer("head_dim", head_dim or hidden // heads)
    if not dim:
        raise ShapeError(f"{keys.path}: hidden_size {hidden} is less than num_attention_heads {heads}")
    return {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": dim}


def _llama(keys: Keys) -> dict[str, Any]:
    bias = keys.flag("attention_bias", False)
    shape = _attention(keys, kv_default=True) | {"qkv_bias": bias, "o_bias": bias}
    return shape | {"mlp_bias": keys.flag("mlp_bias", False)}


def _mistral(keys: Keys) -> dict[str, Any]:
    return _attention(keys, kv_default=False)


def _qwen2(keys: Keys) -> dict[str, Any]:
    return _attention(keys, kv_default=False) | {"qkv_bias": True}


def _qwen3(keys: Keys) -> dict[str, Any]:
    bias = keys.flag("attention_bias", False)
    # Qwen3Config.head_dim is 128 where config.json says nothing.
    shape = _attention(keys, kv_default=False, head_dim=128)
    return shape | {"qkv_bias": bias, "o_bias": bias, "qk_norm": True}


def _experts(keys: Keys, count_key: str) -> dict[str, Any]:
    experts, each = keys.integer(count_key), keys.integer("num_experts_per_tok")
    if each > experts:
        raise ShapeError(f"{keys.path}: num_experts_per_tok {each} is more than {count_key} {experts}")
    return {"experts": experts, "experts_per_token": each}


def _mixtral(keys: Keys) -> dict[str, Any]:
    layers = keys.integer("num_hidden_layers")
    shape = _attention(keys, kv_default=False) | _experts(keys, "num_local_experts")
    return shape | {"moe_ffn": keys.integer("intermediate_size"), "moe_layers": layers, "ffn": 0}


def _qwen_moe_layers(keys: Keys) -> dict[str, Any]:
    step = keys.integer("decoder_sparse_step", 1)
    dense = set(keys.integers("mlp_only_layers"))
    layers = range(keys.integer("num_hidden_layers"))
    sparse = sum(1 for layer in layers if layer not in dense and (layer + 1) % step == 0)
    return {"moe_ffn": keys.integer("moe_intermediate_size"), "moe_layers": sparse}


def _qwen2_moe(keys: Keys) -> dict[str, Any]:
    shape = _attention(keys, kv_default=False) | {"qkv_bias": keys.flag("qkv_bias", True)}
    shared = {"shared_ffn": keys.integer("shared_expert_intermediate_size"), "shared_gate": True}
    return shape | _experts(keys, "num_experts") | _qwen_moe_layers(keys) | shared


def _qwen3_moe(keys: Keys) -> dict[str, Any]:
    bias = keys.flag("attention_bias", False)
    shape = _attention(keys, kv_default=False) | {"qkv_bias": bias, "o_bias": bias, "qk_norm": True}
    return shape | _experts(keys, "num_experts") | _qwen_moe_layers(keys)


def _deepseek(keys: Keys) -> dict[str, Any]:
    if keys.integer("moe_layer_freq", 1) != 1:
        raise UnknownModelError(f"{keys.path}: moe_layer_freq other than 1 is not counted here")
    layers, heads = keys.integer("num_hidden_layers"), keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    mla = Mla(
        q_rank=keys.optional("q_lora_rank"),
        kv_rank=keys.integer("kv_lora_rank"),
        nope=keys.integer("qk_nope_head_dim"),
        rope=keys.integer("qk_rope_head_dim"),
        value=keys.integer("v_head_dim"),
    )
    moe_ffn = keys.integer("moe_intermediate_size")
    notes = []
    if keys.integer("num_nextn_predict_layers", 0, least=0):
        notes.append("multi-token prediction layers are not counted")
    return {
        "hidden": keys.integer("hidden_size"),
        "heads": heads,
        "kv_heads": keys.integer("num_key_value_heads", heads),
        "head_dim": mla.nope + mla.rope,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": keys.flag("mlp_bias", False),
        "mla": mla,
        "moe_ffn": moe_ffn,
        "moe_layers": max(layers - keys.integer("first_k_dense_replace", least=0), 0),
        "shared_ffn": moe_ffn * (keys.optional("n_shared_experts") or 0),
        "notes": tuple(notes),
        **_experts(keys, "n_routed_experts"),
    }


_FAMILIES: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
# Language models inside models that see: model_type of the whole, or of its text_config -> family.
_TEXT_OF = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
}


_MOST_LAYERS = 10_000


def _context(keys: Keys, max_position: int) -> int:
    """Tokens that rope scaling reaches, as vLLM and SGLang derive it: the original length times the factor.

    transformers 4 writes `rope_scaling`, 5 writes `rope_parameters`; types that leave the length alone (default,
    llama3, longrope, mrope) have no say.
    """
    rope = keys.section("rope_scaling") or keys.section("rope_parameters")
    kind = (rope.text("rope_type") or rope.text("type")) if rope else ""
    if rope is None or kind not in ("yarn", "linear", "dynamic"):
        return max_position
    factor = rope.data.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= 1e6:
        return max_position
    original = rope.integer("original_max_position_embeddings", max_position)
    return max(max_position, int(original * factor))


def _labels(keys: Keys, architecture: str) -> int | None:
    if not architecture.endswith("ForSequenceClassification"):
        return None
    named = keys.section("id2label")
    # PretrainedConfig has two labels where config.json names none (transformers 4.56 and 5.10).
    return len(named.data) if named is not None else keys.integer("num_labels", 2)


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in `folder`.

    Of a model that also sees or hears, the language model is read and `notes` says so.

    Raises:
        UnknownModelError: a model type that is not counted here.
        ShapeError: config.json is absent, broken, or lacks a size.
    """
    path = folder / "config.json"
    whole = Keys(path, read_json(path))
    names = whole.data.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    text = whole.section("text_config")
    keys = text or whole
    model_type = keys.text("model_type") or whole.text("model_type")
    family = _TEXT_OF.get(model_type, model_type)
    if family not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnknownModelError(f"{path}: model_type is {model_type!r}; sizes are known for {known}")
    layers, max_position = keys.integer("num_hidden_layers"), keys.integer("max_position_embeddings")
    if layers > _MOST_LAYERS:
        raise ShapeError(f"{path}: num_hidden_layers is {layers}; expected at most {_MOST_LAYERS}")
    found = _FAMILIES[family](keys)
    notes: tuple[str, ...] = found.pop("notes", ())
    if text is not None or family != model_type:
        notes = (*notes, "only the language model is counted, not what sees or hears")
    ffn = found.pop("ffn", None)
    return ModelShape(
        architecture=architecture,
        model_type=family,
        layers=layers,
        ffn=keys.integer("intermediate_size") if ffn is None else ffn,
        vocab=keys.integer("vocab_size"),
        tied=keys.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", False)),
        max_position=max_position,
        context=_context(keys, max_position),
        labels=_labels(whole, architecture),
        notes=notes,
        **found,
    )
