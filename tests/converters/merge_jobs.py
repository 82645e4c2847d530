"""Which checkpoints the tests of converters have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).parent / "recorded" / "verl061_mcore0131_tp2_qwen3.tar.xz"

_GATE = {"moe_shared_expert_gate": True}
# folder name -> number of ranks, and what write_checkpoints.py is to do
JOBS: dict[str, tuple[int, dict[str, Any]]] = {
    "qwen3-tp1": (1, {"kind": "megatron"}),
    "qwen3-v1_with_optimizer": (1, {"kind": "megatron", "v1": True}),
    "llama-tp1": (1, {"kind": "megatron"}),
    "qwen2_tied-tp1": (1, {"kind": "megatron"}),
    "llama-fsdp1": (1, {"kind": "fsdp"}),
    "qwen3-tp2": (2, {"kind": "megatron", "tp": 2}),
    "qwen3-pp2": (2, {"kind": "megatron", "pp": 2}),
    "qwen3-dp2": (2, {"kind": "megatron"}),
    "qwen3_odd-tp2": (2, {"kind": "megatron", "tp": 2, "vocab_multiple": 16}),
    "qwen2-tp2": (2, {"kind": "megatron", "tp": 2}),
    "qwen2_tied-pp2": (2, {"kind": "megatron", "pp": 2}),
    "qwen3_odd-fsdp2": (2, {"kind": "fsdp"}),
    "qwen2_tied-fsdp2": (2, {"kind": "fsdp", "dtype": "bfloat16"}),
    # The families that mbridge does not map on CPU: filled by fill_mcore.
    "mistral-tp1": (1, {"kind": "mcore", "like": "LlamaForCausalLM"}),
    "qwen2moe-tp1": (1, {"kind": "mcore", "overrides": _GATE}),
    "qwen3moe_mixed-layers": (1, {"kind": "mcore", "overrides": {"moe_layer_freq": [0, 1, 0, 1]}}),
    "mixtral-singleton": (1, {"kind": "mcore", "singleton": True}),
    "moonlight-tp1": (1, {"kind": "mcore"}),
    "qwen3_critic-tp1": (1, {"kind": "mcore", "like": "Qwen3ForCausalLM", "value": "critic"}),
    "llama_reward-tp1": (1, {"kind": "mcore", "like": "LlamaForCausalLM", "value": "reward"}),
    "qwen3moe-ep2": (2, {"kind": "mcore", "ep": 2, "v1": True}),
    "mixtral-tp2": (2, {"kind": "mcore", "tp": 2}),
    "qwen2moe-tp2ep2": (2, {"kind": "mcore", "tp": 2, "ep": 2, "etp": 1, "overrides": _GATE}),
    "mistral-pp2": (2, {"kind": "mcore", "pp": 2, "like": "LlamaForCausalLM"}),
    "deepseek-tp2": (2, {"kind": "mcore", "tp": 2}),
    "deepseek-ep2": (2, {"kind": "mcore", "ep": 2, "v1": True}),
    "qwen3moe_critic-pp2": (2, {"kind": "mcore", "pp": 2, "like": "Qwen3MoeForCausalLM", "value": "critic"}),
    "mixtral-fsdp2": (2, {"kind": "fsdp", "dtype": "bfloat16"}),
    "deepseek-fsdp2": (2, {"kind": "fsdp", "dtype": "bfloat16"}),
    "qwen3_critic-fsdp2": (2, {"kind": "fsdp", "critic_of": "Qwen3ForCausalLM"}),
}


class Recorded(NamedTuple):
    """A run folder of verl 0.6.1 (one step, actor in layout v1) and the model that it was made from."""

    run: Path
    hf: Path

    @property
    def actor(self) -> Path:
        return self.run / "global_step_3" / "actor"
