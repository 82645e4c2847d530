"""transformer_config.json: what Megatron trained, against what config.json says.

verl 0.6.1 and 0.9.1 write megatron-core's TransformerConfig as it is (`utils/checkpoint/
megatron_checkpoint_manager.py`); functions are null in it. Its numbers come from the config.json of the
training, by verl 0.6.1 `models/mcore/config_converter.py` and mbridge 0.15.1 `models/*.py`. What the
tensors tell by themselves (biases, norms of queries and keys, which layers have experts) is not compared here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters import families
from converters.hf import rope
from converters.hf.hf_config import ModelConfig
from converters.json_file import read_json

# Theirs -> our name for sizes.
_SIZES = {
    "num_layers": "layers",
    "hidden_size": "H",
    "num_attention_heads": "heads",
    "ffn_hidden_size": "F",
}
_ATTENTION = {"num_query_groups": "kv_heads", "kv_channels": "D"}
_EXPERT_SIZES = {
    "num_moe_experts": "E",
    "moe_ffn_hidden_size": "M",
    "moe_shared_expert_intermediate_size": "S",
}
# Theirs -> key of config.json.
# Latent attention has no use for _ATTENTION, mbridge sets them as it likes.
_LATENT = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
_ROUTER = {
    "moe_router_topk": "num_experts_per_tok",
    "moe_router_topk_scaling_factor": "routed_scaling_factor",
    "moe_router_score_function": "scoring_func",
    "moe_router_num_groups": "n_group",
    "moe_router_group_topk": "topk_group",
}
_ROPE = {"rotary_base": "rope_theta", "rotary_scaling_factor": "factor"}
_SWISH = ("silu", "swish")


def trained_otherwise(config: ModelConfig, transformer_config: Path | None) -> list[str]:
    """Where config.json is not what Megatron trained, a line each; only what both say is compared.

    Shapes alone cannot tell 8 heads of 16 from 16 heads of 8, nor how many experts a token is sent to.
    """
    if transformer_config is None or not transformer_config.is_file():
        return []
    trained = read_json(transformer_config)
    problems = [
        f"{theirs} was {reprlib.repr(trained[theirs])} in training, config.json says {ours}{reprlib.repr(value)}"
        for theirs, (ours, value) in _expected(config, trained).items()
        if trained.get(theirs) is not None and value is not None and not _same(trained[theirs], value)
    ]
    if bool(config.sparse) != bool(trained.get("num_moe_experts")) and "num_moe_experts" in trained:
        problems.append(
            f"num_moe_experts was {trained['num_moe_experts']} in training, {config.architecture} has "
            f"{'experts' if config.sparse else 'none'}"
        )
    if trained.get("gated_linear_unit") is False:
        problems.append(f"gated_linear_unit was false in training, {config.architecture} has gates")
    # Megatron's function is not in the file: verl and mbridge train all of these families with SiLU.
    activation = config.raw.get("hidden_act")
    if trained.get("gated_linear_unit") and activation is not None and activation not in _SWISH:
        problems.append(
            f"the activation was silu in training, config.json says hidden_act {reprlib.repr(activation)}"
        )
    return problems


def not_compared(config: ModelConfig, transformer_config: Path | None) -> list[str]:
    """A note where nothing but config.json says how the rows of q, k and v are heads."""
    if transformer_config is not None and transformer_config.is_file():
        return []
    rules = families.family(config.architecture, config.path).rules
    if any(size == "D" for rule in rules for size in rule.hf.values()):
        return []  # a norm of one head is as long as the head
    return ["number and size of heads, and the router, not compared: no transformer_config.json"]


def _expected(config: ModelConfig, trained: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Their name -> what config.json calls it where that is another key, and its value or None."""
    latent = trained.get("kv_lora_rank") is not None and "kv_rank" in config.own_sizes
    expected = {theirs: ("", getattr(config, ours)) for theirs, ours in _SIZES.items()}
    keys = {"layernorm_epsilon": "rms_norm_eps"}
    if latent:
        keys |= _LATENT
    else:
        expected |= {theirs: ("", getattr(config, ours)) for theirs, ours in _ATTENTION.items()}
    if config.sparse:
        sizes = {"M": config.F, **config.own_sizes}  # Mixtral has experts of intermediate_size
        expected |= {theirs: ("", sizes.get(ours)) for theirs, ours in _EXPERT_SIZES.items()}
        keys |= _ROUTER
    # DeepSeek-V3's defaults are no statement of the file.
    said = {key: value for key, value in config.raw.items() if key in _LATENT.values() or key not in config.silent}
    expected |= {theirs: (f"{ours} " if ours != theirs else "", said.get(ours)) for theirs, ours in keys.items()}
    positions = rope.as_read_by_5(said)
    return expected | {theirs: (f"{ours} ", positions.get(ours)) for theirs, ours in _ROPE.items()}


def _same(theirs: Any, ours: Any) -> bool:
    """Equal as numbers, also where one is written as text; else equal as text."""
    try:
        return float(theirs) == float(ours)
    except (TypeError, ValueError, OverflowError):
        return str(theirs) == str(ours)
