"""Give torch on CPU the calls that verl and Megatron-core make on a GPU unconditionally."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from launch.rehearsal.backend.registry import patch


@patch("torch")
def device_module_calls(torch: Any) -> None:
    """torch.cpu: memory statistics and random state, which verl asks of `torch.<device>`.

    verl/utils/device.py:get_torch_device returns torch.cpu (0.6.1, 0.9.1); its callers, among them
    verl/utils/profiler/performance.py and verl/utils/memory_utils.py, expect torch.cuda's functions on it.
    """
    cpu = torch.cpu
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(cpu, name, lambda *args, **kwargs: 0)
    cpu.mem_get_info = lambda *args, **kwargs: (1 << 33, 1 << 34)  # free, total; only printed
    cpu.empty_cache = lambda *args, **kwargs: None
    cpu.reset_peak_memory_stats = lambda *args, **kwargs: None
    cpu.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cpu.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cpu.manual_seed = lambda seed: torch.manual_seed(seed)
    cpu.manual_seed_all = cpu.manual_seed
    cpu.get_device_name = lambda *args, **kwargs: "CPU"
    cpu.memory = SimpleNamespace(_record_memory_history=lambda *args, **kwargs: None)


@patch("torch")
def cuda_calls_on_cpu(torch: Any) -> None:
    """torch.cuda: current_device, synchronize, random state; Tensor.cuda returns the tensor itself.

    Called without a question by Megatron-core 0.13.1 and 0.16.1 (core/models/gpt/gpt_model.py,
    core/tensor_parallel/random.py, core/dist_checkpointing/strategies/filesystem_async.py) and by mbridge
    0.15.1.
    """
    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *args, **kwargs: None
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.manual_seed(seed)
    torch.Tensor.cuda = lambda self, *args, **kwargs: self


@patch("torch")
def cuda_literals_on_cpu(torch: Any) -> None:
    """Tensor factories: `device="cuda"` means the CPU.

    The literal stands in Megatron-core's core/optimizer/{optimizer,clip_grads}.py and
    core/pipeline_parallel/schedules.py (0.13.1, 0.16.1).
    """
    import torch.utils._device as device_context

    # Fills its cache with the original factories first. It compares functions by identity: with wrapped ones
    # `with torch.device("meta")` would do nothing, and from_pretrained leave rotary buffers unset, silently.
    device_context._device_constructors()

    def on_cpu(factory: Any) -> Any:
        @functools.wraps(factory)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is not None and str(device).startswith("cuda"):
                kwargs["device"] = "cpu"
            return factory(*args, **kwargs)

        return wrapped

    for name in ("tensor", "zeros", "ones", "empty", "full", "arange"):
        setattr(torch, name, on_cpu(getattr(torch, name)))


@patch("megatron.core.optimizer.optimizer")
def cuda_type_names(optimizer: Any) -> None:
    """Tensor.type() answers with a torch.cuda name.

    Megatron-core sorts parameters by comparing it with 'torch.cuda.BFloat16Tensor' and two more, and refuses
    all else (core/optimizer/{optimizer,distrib_optimizer,clip_grads}.py, 0.13.1 and 0.16.1).
    """
    import torch

    original = torch.Tensor.type

    @functools.wraps(original)
    def type_name(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None or args or kwargs:
            return original(self, dtype, *args, **kwargs)
        name = original(self)
        return name if "cuda" in name else name.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_name


@patch("torch", "0.6", "0.8")
def cpu_index_devices(torch: Any) -> None:
    """Module.to accepts "cpu:cpu" as "cpu".

    verl/utils/megatron_utils.py (0.6.1, 0.8.0) builds f"{get_device_name()}:{get_device_id()}".
    """
    original = torch.nn.Module.to

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str) and args[0].startswith("cpu:"):
            args = ("cpu", *args[1:])
        return original(self, *args, **kwargs)

    torch.nn.Module.to = to


@patch("torch.distributed.fsdp")
def pageable_offload(fsdp: Any) -> None:
    """FSDP2's CPUOffloadPolicy without pinned memory, which needs an accelerator.

    verl/workers/fsdp_workers.py (0.6.1) and verl/workers/engine/fsdp/transformer_impl.py (0.9.1) want it
    pinned.
    """
    original = fsdp.CPUOffloadPolicy

    def policy(pin_memory: bool = True) -> Any:
        return original(pin_memory=False)

    fsdp.CPUOffloadPolicy = policy


@patch("transformers.models.auto.auto_factory")
def sdpa_for_flash_attention(auto_factory: Any) -> None:
    """from_pretrained takes PyTorch's attention where flash-attention is hard-coded.

    verl/utils/model.py:load_valuehead_model (the critic of FSDP; 0.6.1, 0.8.0, 0.9.1) writes
    attn_implementation="flash_attention_2", and asks for trl when that fails.
    """
    base = auto_factory._BaseAutoModelClass
    original = base.from_pretrained.__func__

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("attn_implementation") == "flash_attention_2":
            kwargs["attn_implementation"] = "sdpa"
        return original(cls, *args, **kwargs)

    base.from_pretrained = classmethod(from_pretrained)


@patch("verl.utils.attention_utils", "0.8")
def unpad_without_flash_attention(attention_utils: Any) -> None:
    """index_first_axis, pad_input, rearrange and unpad_input by the torch code that verl ships for NPUs.

    verl/utils/attention_utils.py (0.8.0) takes flash-attention's for everything else; 0.9.1 falls back by itself.
    """

    def functions() -> tuple[Any, Any, Any, Any]:
        from verl.utils import npu_flash_attn_utils as plain

        return plain.index_first_axis, plain.pad_input, plain.rearrange, plain.unpad_input

    attention_utils._get_attention_functions = functions
