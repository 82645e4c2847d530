"""verl 0.9: the CPU as a platform of verl's own plugin registry (select it with VERL_PLATFORM=cpu)."""

from __future__ import annotations

from typing import Any

from launch.rehearsal.backend.registry import patch


@patch("verl.plugin.platform.platform_manager", "0.9")
def cpu_platform(manager: Any) -> None:
    """Register and select the platform "cpu".

    verl/plugin/platform/platform_manager.py (0.9.1) ships cuda, npu and rocm.
    """
    from launch.rehearsal.backend.cpu_platform import PlatformCPU

    manager.PlatformRegistry.register(platform="cpu")(PlatformCPU)
    manager.set_platform(PlatformCPU())


@patch("verl.workers.engine.base", "0.8", "0.9")
def engines_on_cpu(base: Any) -> None:
    """EngineRegistry: what is registered for "cuda" serves "cpu" too.

    The engines of verl/workers/engine/{fsdp,megatron}/transformer_impl.py (0.8.0, 0.9.1) register for cuda and npu
    only; they are plain torch and Megatron-core, which run on gloo.
    """
    registry = base.EngineRegistry
    original = registry.get_engine_cls.__func__

    def get_engine_cls(cls: Any, model_type: str, backend: str) -> Any:
        devices = cls._engines.get(model_type, {}).get(backend, {})
        if "cuda" in devices:
            devices.setdefault("cpu", devices["cuda"])
        return original(cls, model_type, backend)

    registry.get_engine_cls = classmethod(get_engine_cls)
