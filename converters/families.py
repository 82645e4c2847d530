"""One table a model family: each tensor of Megatron-core -> its Hugging Face tensors, and how to split it.

To add a family, write its rules and give it a line in FAMILIES. Shapes are written in the letters of
`hf_config.ModelConfig`: H hidden, F feed-forward, V vocabulary, D head, Q all query heads, K all key heads.
They are what the output must have; the shape in Megatron follows from the split. Rules that start with
`decoder.layers.` stand for every layer; in the checkpoint all layers are stacked on the first axis, or have a
number in the name.

Sources: megatron-core 0.13 to 0.16 (TE key names, which the local layer spec also writes), verl 0.9.1
`model_merger/megatron_model_merger.py`, transformers 4.56 and 5.10 `models/{qwen2,qwen3,llama}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from converters.errors import ConvertError
from converters.hf_config import ModelConfig

COPY, QKV, GATE_UP, VOCAB = "copy", "qkv", "gate_up", "vocab"


@dataclass(frozen=True)
class Rule:
    """One Megatron tensor.

    Attributes:
        mcore: its name; a tuple where the layer spec decides which of them is used.
        hf: output name (`{layer}` is the layer's number) -> shape in letters, in the order of the split.
        split: COPY as it is; QKV interleaved by query group, [q..q, k, v] for each key head; GATE_UP one
        after the
            other; VOCAB rows beyond the vocabulary are padding and cut.
        when: only if this flag of config.json is true; "untied" if the embeddings are not tied.
    """

    mcore: tuple[str, ...]
    hf: Mapping[str, str]
    split: str = COPY
    when: str = ""

    @property
    def per_layer(self) -> bool:
        return self.mcore[0].startswith("decoder.layers.")

    def applies(self, config: ModelConfig) -> bool:
        return not self.when or (not config.tied if self.when == "untied" else config.flag(self.when))

    def hf_shapes(self, config: ModelConfig, layer: int | None) -> dict[str, tuple[int, ...]]:
        return {
            name.format(layer=layer): tuple(getattr(config, letter) for letter in letters.split())
            for name, letters in self.hf.items()
        }

    def mcore_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Of one layer. With VOCAB the first number is the least: padding may follow."""
        shapes = list(self.hf_shapes(config, 0).values())
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


@dataclass(frozen=True)
class Run:
    """Rows of a source that lie together in one output."""

    source_row: int
    rows: int
    output: int  # number of the output among those of its step
    output_row: int


@dataclass(frozen=True)
class Family:
    """Rules, and what the config class takes where config.json says nothing."""

    rules: tuple[Rule, ...]
    head_dim: int | None = None
    refused: Mapping[str, str] | None = None  # flag of config.json -> why it is not converted


_EMBEDDING = Rule(("embedding.word_embeddings.weight",), {"model.embed_tokens.weight": "V H"}, VOCAB)
_FINAL_NORM = Rule(("decoder.final_layernorm.weight",), {"model.norm.weight": "H"})
_HEAD = Rule(("output_layer.weight",), {"lm_head.weight": "V H"}, VOCAB, when="untied")

_INPUT_NORM = Rule(
    ("decoder.layers.self_attention.linear_qkv.layer_norm_weight", "decoder.layers.input_layernorm.weight"),
    {"model.layers.{layer}.input_layernorm.weight": "H"},
)
_QKV_WEIGHT = Rule(
    ("decoder.layers.self_attention.linear_qkv.weight",),
    {
        "model.layers.{layer}.self_attn.q_proj.weight": "Q H",
        "model.layers.{layer}.self_attn.k_proj.weight": "K H",
        "model.layers.{layer}.self_attn.v_proj.weight": "K H",
    },
    QKV,
)
_QKV_BIAS_NAMES = {
    "model.layers.{layer}.self_attn.q_proj.bias": "Q",
    "model.layers.{layer}.self_attn.k_proj.bias": "K",
    "model.layers.{layer}.self_attn.v_proj.bias": "K",
}
_QKV_BIAS = Rule(("decoder.layers.self_attention.linear_qkv.bias",), _QKV_BIAS_NAMES, QKV)
_QKV_BIAS_BY_CONFIG = Rule(
    ("decoder.layers.self_attention.linear_qkv.bias",), _QKV_BIAS_NAMES, QKV, when="attention_bias"
)
_O_BIAS_BY_CONFIG = Rule(
    ("decoder.layers.self_attention.linear_proj.bias",),
    {"model.layers.{layer}.self_attn.o_proj.bias": "H"},
    when="attention_bias",
)
_Q_NORM = Rule(
    ("decoder.layers.self_attention.q_layernorm.weight",),
    {"model.layers.{layer}.self_attn.q_norm.weight": "D"},
)
_K_NORM = Rule(
    ("decoder.layers.self_attention.k_layernorm.weight",),
    {"model.layers.{layer}.self_attn.k_norm.weight": "D"},
)
_O = Rule(
    ("decoder.layers.self_attention.linear_proj.weight",),
    {"model.layers.{layer}.self_attn.o_proj.weight": "H Q"},
)
_MLP_NORM = Rule(
    ("decoder.layers.mlp.linear_fc1.layer_norm_weight", "decoder.layers.pre_mlp_layernorm.weight"),
    {"model.layers.{layer}.post_attention_layernorm.weight": "H"},
)
_GATE_UP = Rule(
    ("decoder.layers.mlp.linear_fc1.weight",),
    {
        "model.layers.{layer}.mlp.gate_proj.weight": "F H",
        "model.layers.{layer}.mlp.up_proj.weight": "F H",
    },
    GATE_UP,
)
_DOWN = Rule(("decoder.layers.mlp.linear_fc2.weight",), {"model.layers.{layer}.mlp.down_proj.weight": "H F"})

_MLP = (_MLP_NORM, _GATE_UP, _DOWN)

# Qwen2 and Qwen2.5: bias on q, k and v, none on o.
QWEN2 = (_EMBEDDING, _INPUT_NORM, _QKV_WEIGHT, _QKV_BIAS, _O, *_MLP, _FINAL_NORM, _HEAD)
# Qwen3: a norm on each query and key head, bias only by `attention_bias`.
QWEN3 = (
    _EMBEDDING, _INPUT_NORM, _QKV_WEIGHT, _QKV_BIAS_BY_CONFIG, _Q_NORM, _K_NORM, _O, _O_BIAS_BY_CONFIG, *_MLP,
    _FINAL_NORM, _HEAD,
)  # fmt: skip
LLAMA = (
    _EMBEDDING, _INPUT_NORM, _QKV_WEIGHT, _QKV_BIAS_BY_CONFIG, _O, _O_BIAS_BY_CONFIG, *_MLP, _FINAL_NORM,
    _HEAD,
)  # fmt: skip

FAMILIES = {
    "Qwen2ForCausalLM": Family(QWEN2),
    "Qwen3ForCausalLM": Family(QWEN3, head_dim=128),
    "LlamaForCausalLM": Family(LLAMA, refused={"mlp_bias": "Megatron's MLP of this family has no bias"}),
}


def family(architecture: str, where: object) -> Family:
    """The family of an entry of `architectures`.

    Raises:
        ConvertError: there is no table for it.
    """
    if architecture not in FAMILIES:
        raise ConvertError(
            f"{where}: no table for the architecture {architecture}; known: {', '.join(FAMILIES)}. Models "
            "with other parts (vision, experts, value heads): save them in Hugging Face form "
            "(megatron.use_mbridge without use_dist_checkpointing, or hf_model in checkpoint.save_contents)."
        )
    return FAMILIES[architecture]


def hf_shapes(rules: tuple[Rule, ...], config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the Hugging Face model and its shape, in the order of the output."""
    shapes: dict[str, tuple[int, ...]] = {}
    for rule, layer in in_order(rules, config):
        shapes.update(rule.hf_shapes(config, layer))
    return shapes


def in_order(rules: tuple[Rule, ...], config: ModelConfig) -> list[tuple[Rule, int | None]]:
    """Each rule that applies with each layer that it stands for: embedding, layer after layer, the rest."""
    applying = [rule for rule in rules if rule.applies(config)]
    per_layer = [rule for rule in applying if rule.per_layer]
    first = applying.index(per_layer[0])
    order: list[tuple[Rule, int | None]] = [(rule, None) for rule in applying[:first]]
    order += [(rule, layer) for layer in range(config.layers) for rule in per_layer]
    return order + [(rule, None) for rule in applying[first:] if not rule.per_layer]


def runs(rule: Rule, config: ModelConfig) -> tuple[Run, ...]:
    """Which rows of a Megatron tensor (of one layer) are which rows of the tensors of `rule.hf`.

    A QKV of shape [Q + 2K, ...] holds for each of the `kv_heads` groups its query heads, then one key, then
    one value head; cutting it in three blocks would load without an error and give garbage.
    """
    if rule.split == QKV:
        queries, D = config.heads // config.kv_heads * config.D, config.D
        found = []
        for group in range(config.kv_heads):
            at = group * (queries + 2 * D)
            found += [
                Run(at, queries, 0, group * queries),
                Run(at + queries, D, 1, group * D),
                Run(at + queries + D, D, 2, group * D),
            ]
        return tuple(found)
    found, at = [], 0
    for number, shape in enumerate(rule.hf_shapes(config, 0).values()):
        found.append(Run(at, shape[0], number, 0))
        at += shape[0]
    return tuple(found)
