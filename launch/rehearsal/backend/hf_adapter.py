"""verl's two handles on a rollout server: the replica that starts it, the adapter that sends it weights."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from launch.rehearsal.backend.hf_server import HFServer


def _server_name(replica_rank: int) -> str:
    return f"hf_server_{replica_rank}"


class HFReplica(RolloutReplica):  # type: ignore[misc]
    """One HFServer; more replicas are more of them (verl/workers/rollout/replica.py, 0.9.1)."""

    async def launch_servers(self) -> None:
        """Start the server on the node of its worker and wait until its model is loaded.

        Raises:
            ValueError: The rollout is to be split over several ranks.
        """
        if self.world_size != 1:
            raise ValueError(
                f"rollout.name=hf runs on one rank a replica, not {self.world_size}: set "
                "actor_rollout_ref.rollout.tensor_model_parallel_size=1 (data and pipeline sizes too)"
            )
        config = self.config
        worker = self.workers[0]
        node = await worker.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        actor = ray.remote(num_cpus=0)(HFServer).options(
            name=_server_name(self.replica_rank),
            max_concurrency=self.max_concurrency,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        )
        server = actor.remote(
            self.model_config.path,
            dtype=config.dtype,
            prompt_length=config.prompt_length,
            response_length=config.response_length,
            ignore_eos=config.ignore_eos,
            seed=getattr(config, "seed", 42) + self.replica_rank,  # 0.8.0 has no such key; 0.9.1 has 42
            replica=self.replica_rank,
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank)


class HFServerAdapter(BaseRollout):  # type: ignore[misc]
    """Sends weights to the server of its replica (verl/workers/rollout/base.py, 0.9.1)."""

    is_leader_rank = True

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        # Colocated with the trainer, verl passes no rank: one replica a training rank.
        self.replica_rank = replica_rank if replica_rank >= 0 else int(os.environ["RANK"])
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """The model stays in memory."""

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **kwargs: Any
    ) -> None:
        """Send a complete weight set.

        Args:
            weights: (name, tensor) pairs, from a generator or an asynchronous one.
            wire_format: Only "named_tensors".
            global_steps: The trainer's step, shown in every response.

        Raises:
            ValueError: The wire format is another one.
            WeightMismatchError: Raised by the server, for a set that is not exactly the model's.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"wire_format={wire_format}: the hf rollout takes named_tensors only")
        if hasattr(weights, "__aiter__"):
            sent = [(name, tensor.detach().cpu()) async for name, tensor in weights]
        else:
            sent = [(name, tensor.detach().cpu()) for name, tensor in weights]
        if self._server is None:
            self._server = ray.get_actor(_server_name(self.replica_rank))
        await self._server.set_weights.remote(sent, global_steps)
