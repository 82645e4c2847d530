"""Experts and latent attention as verl 0.6.1 and megatron-core 0.13.1 wrote them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from merge_helpers import assert_same_tensors
from merge_jobs import RECORDED

from converters.merge import merge


@pytest.mark.parametrize("name", ["ep2_qwen2moe", "tp2_deepseek"])
def test_exact(name: str, tmp_path: Path) -> None:
    with tarfile.open(RECORDED.parent / f"verl061_mcore0131_{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    merge(tmp_path / "run", tmp_path / "out")
    assert_same_tensors(tmp_path / "hf", tmp_path / "out")
