"""Run a script that writes checkpoints on several ranks, once for all test processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def torchrun(ranks: int, script: str, argument: Path, python: str = sys.executable) -> None:
    """Run `script`, beside this file, by gloo on this machine, with the CPU backend of the rehearsal."""
    command = [
        *(python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)),
        *(str(HERE / script), str(argument)),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "VERL_USE_EXTERNAL_MODULES": "launch.rehearsal.backend",
        "VERL_PLATFORM": "cpu",
        "TORCH_COMPILE_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first test process to need it has made; the others wait for that one, and read it."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    whole = folder.with_name(f"{name}.whole")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
