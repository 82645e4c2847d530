"""verl's CPU backend: the real trainer on a machine without a GPU.

With `VERL_USE_EXTERNAL_MODULES=launch.rehearsal.backend` verl imports this package in every process
(verl/__init__.py, once `verl.__version__` is known). Where CUDA is there it does nothing at all.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch

from launch.hooks.after_import import after_import
from launch.rehearsal.backend.registry import install

logger = logging.getLogger(__name__)


def _speak_once_a_job() -> None:
    """Show this package's lines in the driver; a dozen Ray workers would repeat them."""
    in_ray_worker = Path(sys.argv[0] if sys.argv else "").name == "default_worker.py"
    logger.setLevel(os.environ.get("REHEARSAL_LOG_LEVEL", "WARNING" if in_ray_worker else "INFO"))
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[rehearsal] %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


def load() -> list[str]:
    """Apply the patches of the running verl version and say which.

    Returns:
        Names of the patches; empty where CUDA is available.
    """
    _speak_once_a_job()
    if torch.cuda.is_available():
        logger.info("CUDA is available: the CPU backend stays inactive")
        return []
    import verl

    # The order of these imports is the order of the patches.
    from launch.rehearsal.backend import (  # noqa: F401
        gloo,
        mbridge_names,
        megatron_local,
        platform,
        rollouts,
        torch_cpu,
        vllm_rollout,
        weight_transfer,
    )

    names = install(verl.__version__)
    logger.info("CPU backend on verl %s, patches: %s", verl.__version__, ", ".join(names))
    return names


if __name__ in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    # verl asks for this package at the end of its own import. A Ray actor of ours comes first, without verl.
    after_import("verl", lambda _: load())
