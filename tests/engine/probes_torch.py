"""Probes of the patches of torch, of its distributed package, and of verl's platform layer."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path

import verl  # noqa: F401 - loads the backend

import torch  # isort: skip

POLICY = Path(sys.argv[1])


def device_module_calls():
    assert torch.cpu.memory_allocated() == torch.cpu.max_memory_reserved() == 0
    assert len(torch.cpu.mem_get_info()) == 2
    torch.cpu.manual_seed(7)
    state, first = torch.cpu.get_rng_state(), torch.rand(3)
    torch.cpu.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def cuda_calls_on_cpu():
    tensor = torch.ones(2)
    assert tensor.cuda() is tensor
    assert torch.cuda.current_device() == torch.device("cpu")
    assert torch.empty(1, device=torch.cuda.current_device()).device.type == "cpu"
    torch.cuda.synchronize()
    state, first = torch.cuda.get_rng_state(), torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def cuda_literals_on_cpu():
    for factory in (torch.zeros, torch.ones, torch.empty):
        assert factory(2, device="cuda").device.type == "cpu"
    assert torch.tensor([1.0], device="cuda:0").device.type == "cpu"
    with torch.device("meta"):  # what from_pretrained uses
        assert torch.empty(2).device.type == torch.arange(2).device.type == "meta"


def cuda_type_names():
    import megatron.core.optimizer.optimizer  # noqa: F401

    assert torch.zeros(1, dtype=torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"
    assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
    assert torch.zeros(1, dtype=torch.bfloat16).type(torch.float32).dtype is torch.float32


def cpu_index_devices():
    assert torch.nn.Linear(1, 1).to("cpu:cpu").weight.device.type == "cpu"


def pageable_offload():
    from torch.distributed.fsdp import CPUOffloadPolicy

    assert CPUOffloadPolicy(pin_memory=True).pin_memory is False
    assert CPUOffloadPolicy().pin_memory is False


def sdpa_for_flash_attention():
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(POLICY, attn_implementation="flash_attention_2")
    assert model.config._attn_implementation == "sdpa"


def unpad_without_flash_attention():
    from verl.utils.attention_utils import pad_input, unpad_input

    hidden = torch.arange(12.0).reshape(2, 3, 2)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    packed, indices, lengths, *_ = unpad_input(hidden, mask)
    assert packed.shape == (5, 2)
    assert lengths.tolist() == [0, 2, 5]
    assert torch.equal(pad_input(packed, indices, 2, 3), hidden * mask.unsqueeze(-1))


def gloo_backend_name():
    from verl.utils.device import get_nccl_backend

    assert get_nccl_backend() == "gloo"


def one_backend_for_cpu():
    one_rank_group()  # asks for "cpu:gloo,cpu:gloo"
    assert torch.distributed.get_backend() == "gloo"


def gather_scalars():
    one_rank_group()
    gathered = [torch.zeros(1)]
    torch.distributed.all_gather(gathered, torch.tensor(3.0))
    assert gathered[0].tolist() == [3.0]


def average_by_sum():
    with tempfile.TemporaryDirectory() as meeting:
        context = multiprocessing.get_context("fork")  # a spawned rank would import verl again
        queue = context.Queue()
        ranks = [context.Process(target=_average, args=(meeting, rank, queue)) for rank in range(2)]
        for process in ranks:
            process.start()
        answers = [queue.get(timeout=120) for _ in ranks]
        for process in ranks:
            process.join(30)
    assert answers == [(2.0, "refused")] * 2, answers


def _average(meeting, rank, queue):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{meeting}/rank", rank=rank, world_size=2)
    value = torch.tensor([1.0 + 2.0 * rank])
    distributed.all_reduce(value, op=distributed.ReduceOp.AVG)
    try:
        distributed.all_reduce(value, op=distributed.ReduceOp.AVG, async_op=True)
        refused = "accepted"
    except NotImplementedError:
        refused = "refused"
    queue.put((value.item(), refused))
    distributed.destroy_process_group()


def cpu_platform():
    from verl.plugin.platform import get_platform

    platform = get_platform()
    assert (platform.device_name, platform.communication_backend_name()) == ("cpu", "gloo")
    assert platform.ray_resource_options(2) == {"num_gpus": 2}
    assert not platform.is_ipc_supported()


def engines_on_cpu():
    import verl.workers.engine  # noqa: F401
    from verl.workers.engine.base import EngineRegistry

    for backend in ("megatron", "fsdp2"):
        engine = EngineRegistry.get_engine_cls("language_model", backend)
        assert EngineRegistry._engines["language_model"][backend]["cuda"] is engine


def one_rank_group():
    if not torch.distributed.is_initialized():
        meeting = tempfile.mkdtemp()
        torch.distributed.init_process_group(
            "cpu:gloo,cpu:gloo", init_method=f"file://{meeting}/rank", rank=0, world_size=1
        )
