"""Which checkpoints the tests of converters have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).parent / "recorded" / "verl061_mcore0131_tp2_qwen3.tar.xz"

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
}


class Recorded(NamedTuple):
    """A run folder of verl 0.6.1 (one step, actor in layout v1) and the model that it was made from."""

    run: Path
    hf: Path

    @property
    def actor(self) -> Path:
        return self.run / "global_step_3" / "actor"
