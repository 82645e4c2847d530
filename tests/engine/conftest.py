"""Environments, models and data of the engine tests."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside: verl_runs.py
from verl_runs import ROOT, Stack

from launch.rehearsal.overlay import make_overlay


def interpreter(variable: str, default: str, target: str) -> str:
    """The Python of an environment beside this one; a missing one fails the test with the remedy."""
    python = Path(os.environ.get(variable) or ROOT / default)
    if not python.is_file():
        pytest.fail(f"{python} does not exist: run `make {target}`, or set {variable} to such a Python")
    return str(python)


def prepared(python: str, verl: str, out: Path) -> Stack:
    """Make the tiny models with the environment that will train them."""
    command = [python, "-m", "launch.rehearsal.prepare", f"--out={out}", f"--verl={verl}", "--actor=megatron"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Stack(python, verl, out)


@pytest.fixture(scope="session")
def stack091(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """verl 0.9.1: the environment that runs the tests."""
    return prepared(sys.executable, "0.9.1", tmp_path_factory.mktemp("models-0.9.1"))


@pytest.fixture(scope="session")
def stack080(stack091: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """verl 0.8.0 on the packages of the environment that runs the tests, and the models of 0.9.1."""
    python = make_overlay("0.8.0", tmp_path_factory.mktemp("verl-0.8.0") / "overlay")
    return Stack(str(python), "0.8.0", stack091.models)


@pytest.fixture(scope="session")
def stack061(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """verl 0.6.1, in its own environment."""
    python = interpreter("VERL061_PYTHON", ".envs/verl-0.6.1/bin/python", "env-061")
    return prepared(python, "0.6.1", tmp_path_factory.mktemp("models-0.6.1"))


@pytest.fixture(scope="session")
def stack_vllm(stack091: Stack) -> Stack:
    """verl 0.9.1 with vLLM's CPU build, in its own environment, and the models of the other 0.9.1."""
    return Stack(interpreter("VLLM_PYTHON", ".envs/verl-vllm/bin/python", "env-vllm"), "0.9.1", stack091.models)


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 rows "What is a + b?" as verl reads them."""
    rng = random.Random(0)
    rows = []
    for index in range(32):
        a, b = rng.randint(0, 39), rng.randint(0, 39)
        rows.append(
            {
                "data_source": "sums",
                "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": "train", "index": index},
            }
        )
    path = tmp_path_factory.mktemp("data") / "train.parquet"
    pd.DataFrame(rows).to_parquet(path)
    return path
