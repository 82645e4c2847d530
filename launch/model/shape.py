"""The shape of a model from its config.json alone.

The families in `_FAMILIES` follow transformers 4.56 and 5.10
`models/{llama,mistral,qwen2,qwen3,qwen2_moe,qwen3_moe,mixtral,deepseek_v2,deepseek_v3}`. Any other model type is
refused rather than guessed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch.model.config_json import Keys, ShapeError, UnknownModelError, read_json
from launch.model.sizes import Mla, ModelShape, Parameters

__all__ = ["Mla", "ModelShape", "Parameters", "ShapeError", "UnknownModelError", "read_shape"]


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
