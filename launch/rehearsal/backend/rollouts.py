"""The Hugging Face rollout in verl's own registries, under the name "hf"."""

from __future__ import annotations

from typing import Any

from launch.rehearsal.backend.registry import patch


@patch("verl.workers.rollout.base", "0.8", "0.9")
def hf_server_adapter(base: Any) -> None:
    """rollout.name=hf, server mode: the trainer's side.

    verl/workers/rollout/base.py:_ROLLOUT_REGISTRY (0.8.0, 0.9.1) holds vllm, sglang and trtllm.
    """
    base._ROLLOUT_REGISTRY[("hf", "async")] = "launch.rehearsal.backend.hf_adapter.HFServerAdapter"


@patch("verl.workers.rollout.replica", "0.8", "0.9")
def hf_replica(replica: Any) -> None:
    """rollout.name=hf, server mode: the generating side.

    verl/workers/rollout/replica.py:RolloutReplicaRegistry (0.8.0, 0.9.1) holds vllm, sglang and trtllm.
    """

    def load() -> Any:
        from launch.rehearsal.backend.hf_adapter import HFReplica

        return HFReplica

    replica.RolloutReplicaRegistry.register("hf", load)


@patch("verl.workers.rollout.base", "0.6")
def hf_sync_rollout(base: Any) -> None:
    """rollout.name=hf rollout.mode=sync.

    verl/workers/rollout/hf_rollout.py:HFRollout (0.6.1) is left out of _ROLLOUT_REGISTRY and still abstract.
    """
    base._ROLLOUT_REGISTRY[("hf", "sync")] = "launch.rehearsal.backend.hf_sync.SyncHFRollout"
