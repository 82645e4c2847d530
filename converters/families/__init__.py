"""The model families that can be converted: FAMILIES, by the entry of `architectures` in config.json.

To add one, see README.md beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from converters.errors import ConvertError
from converters.families import dense, mla, moe
from converters.families.heads import HEADS, LANGUAGE, fitted
from converters.families.rules import (
    COPY,
    GATE_UP,
    QKV,
    VOCAB,
    Place,
    Rule,
    Run,
    hf_shapes,
    in_order,
    keep_dtype,
    runs,
)
from converters.hf.hf_config import ConfigClass

__all__ = [
    "COPY", "FAMILIES", "GATE_UP", "LANGUAGE", "QKV", "VOCAB", "Family", "Place", "Rule", "Run", "family",
    "fitted", "hf_shapes", "in_order", "keep_dtype", "runs",
]  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Rules, what its config class adds to config.json, and what is refused: flag -> why."""

    rules: tuple[Rule, ...]
    config: ConfigClass = field(default_factory=ConfigClass)
    refused: Mapping[str, str] = field(default_factory=dict)


_NO_BIAS = "Megatron's {} of this family has no bias"
# What the classes of transformers 4.56 and 5.10 take where config.json is silent.
_MODELS = {
    "Qwen2": Family(dense.QWEN2, ConfigClass({"num_key_value_heads": 32})),
    "Qwen3": Family(dense.QWEN3, ConfigClass({"num_key_value_heads": 32, "head_dim": 128})),
    "Llama": Family(dense.LLAMA, refused={"mlp_bias": _NO_BIAS.format("MLP")}),
    "Mistral": Family(dense.MISTRAL, ConfigClass({"num_key_value_heads": 8})),
    "Qwen2Moe": Family(
        moe.QWEN2_MOE,
        ConfigClass(
            {
                "num_key_value_heads": 16, "num_experts": 60, "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "qkv_bias": True,
            },
            sizes=moe.qwen2_sizes,
            sparse=moe.qwen_sparse,
        ),
    ),
    "Qwen3Moe": Family(
        moe.QWEN3_MOE,
        ConfigClass(
            {
                "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 768,
                "decoder_sparse_step": 1,
            },
            {"num_local_experts": "num_experts"},
            moe.qwen3_sizes,
            moe.qwen_sparse,
        ),
    ),
    "Mixtral": Family(
        moe.MIXTRAL,
        ConfigClass(
            {"num_key_value_heads": 8, "num_local_experts": 8}, sizes=moe.mixtral_sizes, sparse=moe.every_layer
        ),
    ),
    "DeepseekV3": Family(
        mla.DEEPSEEK_V3,
        ConfigClass(
            {
                "num_key_value_heads": 128, "moe_intermediate_size": 2048, "n_routed_experts": 256,
                "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
                "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            },
            sizes=mla.sizes,
            sparse=mla.sparse,
            own_code="deepseek",
        ),
        refused={"attention_bias": _NO_BIAS.format("latent attention")},
    ),
}  # fmt: skip
FAMILIES = {
    model + head: Family((*of.rules, *rules), of.config, of.refused)
    for model, of in _MODELS.items()
    for head, rules in HEADS.items()
}


def family(architecture: str, where: object) -> Family:
    """The family of an entry of `architectures`.

    Raises:
        ConvertError: there is no table for it.
    """
    if architecture not in FAMILIES:
        raise ConvertError(
            f"{where}: no table for the architecture {architecture}; known: {', '.join(_MODELS)}, each "
            f"{', '.join(HEADS)}. Models with other parts (vision, state space): save them in Hugging Face form "
            "(megatron.use_mbridge without use_dist_checkpointing, or hf_model in checkpoint.save_contents)."
        )
    return FAMILIES[architecture]
