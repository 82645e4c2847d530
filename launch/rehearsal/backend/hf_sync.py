"""verl 0.6.1's HF rollout, made concrete: it generates in the worker, from its own copy of the model."""

from __future__ import annotations

import os
from typing import Any

import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.hf_rollout import HFRollout

from launch.rehearsal.backend import weights as weight_sets


class SyncHFRollout(HFRollout):  # type: ignore[misc]
    """HFRollout (verl/workers/rollout/hf_rollout.py, 0.6.1) with what BaseRollout demands since.

    Upstream generates from the FSDP module; a Megatron actor has none, so this one holds a full model that
    the worker's weight sync fills.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        from transformers import AutoModelForCausalLM

        BaseRollout.__init__(self, config, model_config, device_mesh)
        self.module = AutoModelForCausalLM.from_pretrained(
            self.model_config.local_path, dtype=getattr(torch, self.config.dtype), attn_implementation="sdpa"
        ).eval()
        self._updates = 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """The model stays in memory."""

    async def update_weights(self, weights: Any, **kwargs: Any) -> None:
        """Load a complete weight set.

        Raises:
            WeightMismatchError: It is not exactly the model's set of tensors.
        """
        received = weight_sets.collect(weights)
        change = weight_sets.load_exactly(self.module, received)
        self._updates += 1
        rank = int(os.environ.get("RANK", "0"))
        weight_sets.dump(received, replica=rank, update=self._updates, global_steps=None)
        print(
            f"[hf rollout {rank}] weights {self._updates}: {len(received)} tensors, largest change {change:.3e}",
            flush=True,
        )
