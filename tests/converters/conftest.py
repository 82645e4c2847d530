"""Checkpoints for the tests of converters, each written once a session."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import merge_models
import pytest
from merge_jobs import JOBS, JOBS_061, RECORDED, Recorded
from torchrun import once, torchrun

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def hf_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name in merge_models.MODELS -> Hugging Face folder."""

    def make(root: Path) -> None:
        for name in merge_models.MODELS:
            merge_models.make(name, root / name)

    root = once(tmp_path_factory, "hf", make)
    return {name: root / name for name in merge_models.MODELS}


@pytest.fixture(scope="session")
def written(hf_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name in JOBS -> actor folder, written by verl 0.9.1 and megatron-core on gloo."""

    def make(root: Path) -> None:
        for ranks in (1, 2):
            jobs = [
                {**job, "hf": str(hf_models[name.rsplit("-", 1)[0]]), "out": str(root / name / "actor")}
                for name, (count, job) in JOBS.items()
                if count == ranks
            ]
            _write(sys.executable, ranks, jobs, root / f"jobs{ranks}.json")

    root = once(tmp_path_factory, "written", make)
    return {name: root / name / "actor" for name in JOBS}


@pytest.fixture(scope="session")
def written_by_061(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hf/MODEL, by transformers 4.56, and NAME/actor for each of JOBS_061, by verl 0.6.1."""
    python = Path(os.environ.get("VERL061_PYTHON") or HERE.parents[1] / ".envs/verl-0.6.1/bin/python")
    if not python.is_file():
        pytest.fail(f"{python} does not exist: run `make env-061`, or set VERL061_PYTHON to such a Python")

    def make(root: Path) -> None:
        models = dict.fromkeys(name.rsplit("-", 1)[0] for name in JOBS_061)
        jobs = [
            *({"kind": "model", "name": name, "out": str(root / "hf" / name)} for name in models),
            *(
                {**job, "hf": str(root / "hf" / name.rsplit("-", 1)[0]), "out": str(root / name / "actor")}
                for name, job in JOBS_061.items()
            ),
        ]
        _write(str(python), 2, jobs, root / "jobs.json")

    return once(tmp_path_factory, "written-0.6.1", make)


def _write(python: str, ranks: int, jobs: list[dict[str, Any]], listing: Path) -> None:
    listing.write_text(json.dumps(jobs))
    torchrun(ranks, "write_checkpoints.py", listing, python)


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
