"""Collectives: gloo takes NCCL's place, with what gloo lacks."""

from __future__ import annotations

import functools
from typing import Any

from launch.rehearsal.backend.registry import patch


@patch("verl.utils.device", "0.6", "0.8")
def gloo_backend_name(device: Any) -> None:
    """verl/utils/device.py:get_nccl_backend (0.6.1, 0.8.0) knows hccl and nccl only.

    From 0.9 the platform answers: `platform.cpu_platform`.
    """
    device.get_nccl_backend = lambda: "gloo"


@patch("torch.distributed")
def one_backend_for_cpu(distributed: Any) -> None:
    """init_process_group: "cpu:gloo,cpu:gloo" becomes "gloo".

    verl builds f"cpu:gloo,{device}:{backend}" (workers/fsdp_workers.py in 0.6.1, utils/distributed.py in
    both); torch refuses a device named twice.
    """
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(backend, str) and backend.startswith("cpu:gloo,cpu:"):
            backend = "gloo"
        return original(backend, *args, **kwargs)

    distributed.init_process_group = init_process_group


@patch("torch.distributed")
def gather_scalars(distributed: Any) -> None:
    """all_gather of a 0-dim tensor into 1-dim ones, which NCCL takes and gloo does not.

    verl/utils/profiler/performance.py:reduce_timing (0.6.1, 0.9.1) does that.
    """
    original = distributed.all_gather

    @functools.wraps(original)
    def all_gather(tensors: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.ndim == 0 and tensors[0].ndim == 1:
            tensor = tensor.reshape(1)
        return original(tensors, tensor, *args, **kwargs)

    distributed.all_gather = all_gather


@patch("torch.distributed")
def average_by_sum(distributed: Any) -> None:
    """all_reduce with ReduceOp.AVG: a sum, then a division; gloo has no average.

    verl/utils/profiler/performance.py:reduce_timing (0.6.1, 0.9.1), workers/engine_workers.py (0.9.1).

    Raises:
        NotImplementedError: From the patched call, for an average with async_op: who would divide?
    """
    original = distributed.all_reduce
    average = distributed.ReduceOp.AVG
    total = distributed.ReduceOp.SUM

    @functools.wraps(original)
    def all_reduce(tensor: Any, op: Any = total, group: Any = None, async_op: bool = False) -> Any:
        if op != average:
            return original(tensor, op, group, async_op)
        if async_op:
            raise NotImplementedError("all_reduce(op=AVG, async_op=True) does not exist on gloo")
        original(tensor, total, group)
        tensor.div_(distributed.get_world_size(group))
        return None

    distributed.all_reduce = all_reduce
