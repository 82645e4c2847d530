"""Weights from the trainer to the rollout through Ray's object store, as a verl checkpoint engine.

verl/checkpoint_engine (0.9.1) ships NCCL, NIXL and others, each of which needs an accelerator. This one is
selected by actor_rollout_ref.rollout.checkpoint_engine.backend=ray_object_store.
"""

from __future__ import annotations

from typing import Any

from launch.rehearsal.backend.registry import patch

BACKEND = "ray_object_store"


@patch("verl.checkpoint_engine.base", "0.8", "0.9")
def ray_object_store_engine(base: Any) -> None:
    """Register the checkpoint engine "ray_object_store".

    verl/checkpoint_engine/base.py:CheckpointEngineRegistry (0.8.0, 0.9.1) has none for CPU tensors of two
    processes.
    """
    base.CheckpointEngineRegistry.register(BACKEND)(_engine_class(base.CheckpointEngine))


def _engine_class(checkpoint_engine: Any) -> Any:
    """The engine, as a subclass of verl's CheckpointEngine."""
    import ray

    from launch.rehearsal.backend.mailbox import WeightMailbox

    class RayObjectStoreEngine(checkpoint_engine):  # type: ignore[misc]
        """One sender (training rank 0), any number of receivers, buckets of `bucket_size` bytes."""

        def __init__(self, bucket_size: int, is_master: bool = False) -> None:
            self.bucket_size = bucket_size
            self.is_master = is_master
            self.mailbox: Any = None

        def prepare(self) -> dict[str, Any]:
            if not self.is_master:
                return {}
            self.mailbox = ray.remote(num_cpus=0)(WeightMailbox).remote()  # a fresh one for each update
            return {"mailbox": self.mailbox}

        @classmethod
        def build_topology(
            cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
        ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
            boxes = [entry["mailbox"] for entry in metadata if "mailbox" in entry]
            if len(boxes) != 1:
                raise RuntimeError(f"{BACKEND}: expected one sending rank, {len(boxes)} of {len(metadata)} are")
            return {"mailbox": boxes * actor_wg_world_size}, {"mailbox": boxes * rollout_world_size}

        def init_process_group(self, mailbox: Any) -> None:
            self.mailbox = mailbox

        def finalize(self) -> None:
            self.mailbox = None  # the last handle gone, Ray ends the actor and frees the buckets

        async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
            # Every rank walks through the generator: gathering a tensor is a collective operation.
            bucket: list[tuple[str, Any]] = []
            held = 0
            for name, tensor in weights:
                if not self.is_master:
                    continue
                copy = tensor.detach().cpu().clone()
                if bucket and held + copy.nbytes > self.bucket_size:
                    await self.mailbox.put.remote([ray.put(bucket)])
                    bucket, held = [], 0
                bucket.append((name, copy))
                held += copy.nbytes
            if self.is_master:
                if bucket:
                    await self.mailbox.put.remote([ray.put(bucket)])
                await self.mailbox.close.remote()

        async def receive_weights(self, global_steps: int | None = None) -> Any:
            index = 0
            while (boxed := await self.mailbox.get.remote(index)) is not None:
                for name, tensor in await boxed[0]:
                    yield name, tensor
                index += 1

    return RayObjectStoreEngine
