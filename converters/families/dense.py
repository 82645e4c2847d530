"""Dense models: Qwen2 and Qwen2.5, Qwen3, Llama 3, Mistral.

Sources: megatron-core 0.13 to 0.16 (TE key names, which the local layer spec also writes), verl 0.9.1
`model_merger/megatron_model_merger.py`, transformers 4.56 and 5.10 `models/{qwen2,qwen3,llama,mistral}`.
"""

from __future__ import annotations

from converters.families.rules import DENSE, GATE_UP, QKV, VOCAB, Rule
from converters.hf.names import EMBED

EMBEDDING = Rule(("embedding.word_embeddings.weight",), {EMBED: "V H"}, VOCAB)
FINAL_NORM = Rule(("decoder.final_layernorm.weight",), {"model.norm.weight": "H"})

INPUT_NORM = Rule(
    ("decoder.layers.self_attention.linear_qkv.layer_norm_weight", "decoder.layers.input_layernorm.weight"),
    {"model.layers.{layer}.input_layernorm.weight": "H"},
)
QKV_WEIGHT = Rule(
    ("decoder.layers.self_attention.linear_qkv.weight",),
    {
        "model.layers.{layer}.self_attn.q_proj.weight": "Q H",
        "model.layers.{layer}.self_attn.k_proj.weight": "K H",
        "model.layers.{layer}.self_attn.v_proj.weight": "K H",
    },
    QKV,
)


def qkv_bias(when: str = "") -> Rule:
    """The bias of q, k and v; `when` is the flag of config.json that tells of it."""
    names = {
        "model.layers.{layer}.self_attn.q_proj.bias": "Q",
        "model.layers.{layer}.self_attn.k_proj.bias": "K",
        "model.layers.{layer}.self_attn.v_proj.bias": "K",
    }
    return Rule(("decoder.layers.self_attention.linear_qkv.bias",), names, QKV, when)


Q_NORM = Rule(
    ("decoder.layers.self_attention.q_layernorm.weight",),
    {"model.layers.{layer}.self_attn.q_norm.weight": "D"},
)
K_NORM = Rule(
    ("decoder.layers.self_attention.k_layernorm.weight",),
    {"model.layers.{layer}.self_attn.k_norm.weight": "D"},
)
O_WEIGHT = Rule(
    ("decoder.layers.self_attention.linear_proj.weight",),
    {"model.layers.{layer}.self_attn.o_proj.weight": "H Q"},
)
O_BIAS = Rule(
    ("decoder.layers.self_attention.linear_proj.bias",),
    {"model.layers.{layer}.self_attn.o_proj.bias": "H"},
    when="attention_bias",
)
MLP_NORM = Rule(
    ("decoder.layers.mlp.linear_fc1.layer_norm_weight", "decoder.layers.pre_mlp_layernorm.weight"),
    {"model.layers.{layer}.post_attention_layernorm.weight": "H"},
)
GATE_AND_UP = Rule(
    ("decoder.layers.mlp.linear_fc1.weight",),
    {
        "model.layers.{layer}.mlp.gate_proj.weight": "F H",
        "model.layers.{layer}.mlp.up_proj.weight": "F H",
    },
    GATE_UP,
    layers=DENSE,
)
DOWN = Rule(
    ("decoder.layers.mlp.linear_fc2.weight",), {"model.layers.{layer}.mlp.down_proj.weight": "H F"}, layers=DENSE
)
MLP = (MLP_NORM, GATE_AND_UP, DOWN)

# The head is added by `heads`.
# Qwen2 and Qwen2.5: bias on q, k and v, none on o.
QWEN2 = (EMBEDDING, INPUT_NORM, QKV_WEIGHT, qkv_bias(), O_WEIGHT, *MLP, FINAL_NORM)
# Qwen3: a norm on each query and key head, bias only by `attention_bias`.
QWEN3_ATTENTION = (INPUT_NORM, QKV_WEIGHT, qkv_bias("attention_bias"), Q_NORM, K_NORM, O_WEIGHT, O_BIAS)
QWEN3 = (EMBEDDING, *QWEN3_ATTENTION, *MLP, FINAL_NORM)
LLAMA = (EMBEDDING, INPUT_NORM, QKV_WEIGHT, qkv_bias("attention_bias"), O_WEIGHT, O_BIAS, *MLP, FINAL_NORM)
# Mistral: Llama without a bias.
MISTRAL = (EMBEDDING, INPUT_NORM, QKV_WEIGHT, O_WEIGHT, *MLP, FINAL_NORM)
