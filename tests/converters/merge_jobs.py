"""Which checkpoints the tests of converters have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).parent / "recorded" / "verl061_mcore0131_tp2_qwen3.tar.xz"

_GATE = {"moe_shared_expert_gate": True}
# Folder name, which begins with that of the model in merge_models, -> number of ranks, and the job for
# write_checkpoints.py. `like`: the architecture that verl builds it as. verl has no entry for Mistral, whose
# layers are Llama's; a critic is trained from the folder of a language model; a reward model is one with
# another head.
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

# The same by verl 0.6.1 and megatron-core 0.13.1, each on two ranks. Qwen3 is filled by hand: with the local
# layers that a CPU needs, mbridge asks for one weight twice there and stops.
JOBS_061: dict[str, dict[str, Any]] = {
    "qwen2-tp2": {"kind": "megatron", "tp": 2, "v1": True},
    "qwen2_tied-pp2": {"kind": "megatron", "pp": 2},
    "llama-pp2": {"kind": "megatron", "pp": 2},
    "qwen3-tp2": {"kind": "mcore", "tp": 2},
    "mistral-tp2": {"kind": "mcore", "tp": 2, "like": "LlamaForCausalLM"},
    # The gate of its shared expert is in verl's own layer spec there, not in megatron-core's settings.
    "qwen2moe-ep2": {"kind": "mcore", "ep": 2, "initializer": "Qwen2MoEModel"},
    "qwen3moe-ep2": {"kind": "mcore", "ep": 2, "v1": True},
    "qwen3moe_mixed-pp2": {"kind": "mcore", "pp": 2, "overrides": {"moe_layer_freq": [0, 1, 0, 1]}},
    "mixtral-tp2": {"kind": "mcore", "tp": 2},
    "deepseek-ep2": {"kind": "mcore", "ep": 2},
    "moonlight-tp2": {"kind": "mcore", "tp": 2},
    "qwen3_critic-tp2": {"kind": "mcore", "tp": 2, "like": "Qwen3ForCausalLM", "value": "critic"},
}


class Recorded(NamedTuple):
    """A run folder of verl 0.6.1 (one step, actor in layout v1) and the model that it was made from."""

    run: Path
    hf: Path

    @property
    def actor(self) -> Path:
        return self.run / "global_step_3" / "actor"
