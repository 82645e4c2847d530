"""Multi-head latent attention: DeepSeek-V3 and Moonlight.

Query and keys come from compressed vectors: down (`q_a`, `kv_a`), a norm, up (`q_b`, `kv_b`). Without a
`q_lora_rank` the query is one matrix (Moonlight).

Sources: megatron-core 0.13 to 0.16 `transformer/multi_latent_attention.py`, mbridge 0.15.1
`models/deepseek_v3.py`, transformers 4.56 and 5.10 `models/deepseek_v3`.
"""

from __future__ import annotations

from converters.families.dense import DOWN, EMBEDDING, FINAL_NORM, GATE_AND_UP, MLP_NORM
from converters.families.moe import EXPERTS, ROUTER, shared_experts
from converters.families.rules import SPARSE, Rule
from converters.hf.hf_config import Numbers

_MCORE = "decoder.layers.self_attention."
_HF = "model.layers.{layer}.self_attn."

# Transformer Engine keeps this norm a layer of its own here: nothing is fused with the first projection.
_INPUT_NORM = Rule(
    ("decoder.layers.input_layernorm.weight",), {"model.layers.{layer}.input_layernorm.weight": "H"}
)
_QUERY = (
    Rule((_MCORE + "linear_q_proj.weight",), {_HF + "q_proj.weight": "Q H"}, when="not q_lora_rank"),
    Rule((_MCORE + "linear_q_down_proj.weight",), {_HF + "q_a_proj.weight": "q_rank H"}, when="q_lora_rank"),
    Rule(
        (_MCORE + "linear_q_up_proj.layer_norm_weight", _MCORE + "q_layernorm.weight"),
        {_HF + "q_a_layernorm.weight": "q_rank"},
        when="q_lora_rank",
    ),
    Rule((_MCORE + "linear_q_up_proj.weight",), {_HF + "q_b_proj.weight": "Q q_rank"}, when="q_lora_rank"),
)
_KEY_VALUE = (
    Rule((_MCORE + "linear_kv_down_proj.weight",), {_HF + "kv_a_proj_with_mqa.weight": "kv_rank+rope H"}),
    Rule(
        (_MCORE + "linear_kv_up_proj.layer_norm_weight", _MCORE + "kv_layernorm.weight"),
        {_HF + "kv_a_layernorm.weight": "kv_rank"},
    ),
    Rule((_MCORE + "linear_kv_up_proj.weight",), {_HF + "kv_b_proj.weight": "keys+values kv_rank"}),
)
_OUT = Rule((_MCORE + "linear_proj.weight",), {_HF + "o_proj.weight": "H values"})
# Float32 in Megatron and in transformers whatever the model's type is: it is added to the router's scores.
_EXPERT_BIAS = Rule(
    ("decoder.layers.mlp.router.expert_bias",),
    {"model.layers.{layer}.mlp.gate.e_score_correction_bias": "E"},
    layers=SPARSE,
    keeps_dtype=True,
)

DEEPSEEK_V3 = (
    EMBEDDING, _INPUT_NORM, *_QUERY, *_KEY_VALUE, _OUT, MLP_NORM, GATE_AND_UP, DOWN, ROUTER, _EXPERT_BIAS,
    *EXPERTS, *shared_experts("shared_experts"), FINAL_NORM,
)  # fmt: skip


def sizes(number: Numbers) -> dict[str, int]:
    heads, expert = number("num_attention_heads"), number("moe_intermediate_size")
    plain, rotary, value = (number(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank = number("kv_lora_rank")
    return {
        "D": plain + rotary,
        "E": number("n_routed_experts"),
        "M": expert,
        "S": expert * number("n_shared_experts"),
        "q_rank": number.or_zero("q_lora_rank"),
        "kv_rank": rank,
        "kv_rank+rope": rank + rotary,
        "keys+values": heads * (plain + value),
        "values": heads * value,
    }


def sparse(number: Numbers, layers: int) -> frozenset[int]:
    return frozenset(range(number.or_zero("first_k_dense_replace"), layers))
