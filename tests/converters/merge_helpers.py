"""Compare model folders and edit JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from converters import families
from converters.hf.hf_config import ModelConfig
from converters.planning.steps import Step
from converters.writing import stream


def load(folder: Path) -> dict[str, Any]:
    """All tensors of a model folder, read by the safetensors library."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def assert_same_tensors(one: Path, other: Path, dtype: Any = None) -> None:
    """Same names, types, shapes and bits; `dtype` converts `one` first (exact from bfloat16 to float32)."""
    import torch

    expected, found = load(one), load(other)
    assert set(expected) == set(found)
    for name, tensor in expected.items():
        tensor = tensor.to(dtype) if dtype is not None else tensor
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def run_step(step: Step) -> dict[str, Any]:
    """Output name -> its words."""
    parts: dict[str, list[Any]] = {}
    for block in stream.blocks(step):
        parts.setdefault(block.output.name, []).append(block.words.copy())
    return {name: np.concatenate(rows) for name, rows in parts.items()}


def split(rule: families.Rule, config: ModelConfig, stored: Any) -> list[Any]:
    """The rows of one Megatron tensor as the tensors of `rule.hf`."""
    parts: dict[int, list[Any]] = {}
    for run in families.runs(rule, config):
        assert run.output_row == sum(map(len, parts.get(run.output, [])))
        parts.setdefault(run.output, []).append(stored[run.source_row : run.source_row + run.rows])
    return [np.concatenate(parts[number]) for number in sorted(parts)]


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON object; None removes one."""
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def snapshot(tree: Path) -> dict[str, tuple[int, int]]:
    """Every path below `tree` -> size and time of change."""
    return {str(p.relative_to(tree)): (p.lstat().st_size, p.lstat().st_mtime_ns) for p in sorted(tree.rglob("*"))}
