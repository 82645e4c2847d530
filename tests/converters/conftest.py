"""Checkpoints for the tests of converters, each written once a session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import merge_models
import pytest
from merge_jobs import JOBS, RECORDED, Recorded

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def hf_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name in merge_models.MODELS -> Hugging Face folder."""
    root = tmp_path_factory.mktemp("hf")
    return {name: merge_models.make(name, root / name) for name in merge_models.MODELS}


@pytest.fixture(scope="session")
def written(hf_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name in JOBS -> actor folder, written by verl 0.9.1 and megatron-core on gloo."""
    root = tmp_path_factory.mktemp("written")
    for ranks in (1, 2):
        jobs = [
            {**job, "hf": str(hf_models[name.rsplit("-", 1)[0]]), "out": str(root / name / "actor")}
            for name, (count, job) in JOBS.items()
            if count == ranks
        ]
        listing = root / f"jobs{ranks}.json"
        listing.write_text(json.dumps(jobs))
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)),
            *(str(HERE / "write_checkpoints.py"), str(listing)),
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
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {name: root / name / "actor" for name in JOBS}


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The recorded run, to read."""
    root = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(root, filter="data")
    return Recorded(root / "run", root / "hf")


@pytest.fixture
def recorded(unpacked: Recorded, tmp_path: Path) -> Recorded:
    """A copy of the recorded run, to damage."""
    shutil.copytree(unpacked.run, tmp_path / "run")
    return Recorded(tmp_path / "run", unpacked.hf)
