"""Megatron-core `torch_dist` checkpoints: `.metadata` names every tensor and its chunks in `*.distcp`.

What is stored are global tensors, whatever tensor and pipeline parallel sizes wrote them, with the layers
stacked on the first axis. `.metadata` is a pickle of `torch.distributed.checkpoint.metadata.Metadata` (torch
2.4 to 2.13). `common.pt` (optimizer settings, scheduler) holds no weight and is not opened.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from converters import torch_zip
from converters.errors import ConvertError, listing
from converters.safe_unpickle import Record, unpickle_file
from converters.tensors import DTYPE_BYTES, Chunk, GlobalTensor, Stored

# Written beside the weights by megatron-core 0.13 to 0.16: optimizer, layers' FP8 state, RNG and scheduler
# state.
_NOT_WEIGHTS = re.compile(r"(chained_\d+\.)?optimizer\.|rng_state\b|opt_param_scheduler\b|lr_scheduler\b")
_EXTRA_STATE = re.compile(r"\._extra_state(\d*)(/|$)")

Range = tuple[str, int, int]  # file name, first byte, number of bytes


def read_index(directory: Path) -> dict[str, GlobalTensor]:
    """Every weight in `directory`, by name; only `.metadata` is read, optimizer and RNG entries are left out.

    Raises:
        ConvertError: `.metadata` or a shard is missing, damaged or refused, or another backend wrote the
        folder.
    """
    _check_backend(directory)
    path = directory / ".metadata"
    metadata = _read_metadata(path)
    try:
        return _tensors(directory, metadata, path)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConvertError(f"{path}: damaged ({error}). Copy the checkpoint again.") from error


def check_files(directory: Path) -> None:
    """Every file that `.metadata` names is there and long enough, for the optimizer and the rest, too.

    Raises:
        ConvertError: `.metadata` or a shard is missing, damaged, short or refused.
    """
    path = directory / ".metadata"
    _checked_ranges(directory, _read_metadata(path), path)


def holds_model(directory: Path) -> bool:
    """Whether there is a weight in it; with mbridge a dist_ckpt holds optimizer and RNG state only.

    Raises:
        ConvertError: `.metadata` is missing, damaged or refused.
    """
    path = directory / ".metadata"
    names = _field(_read_metadata(path), "state_dict_metadata", path)
    return any(not _NOT_WEIGHTS.match(str(name)) and not _EXTRA_STATE.search(str(name)) for name in names)


def _read_metadata(path: Path) -> Any:
    if not path.is_file():
        raise ConvertError(
            f"{path}: missing. It is written last, so the save was interrupted. Take an earlier step with "
            "--step N."
        )
    return unpickle_file(path)


def _checked_ranges(directory: Path, metadata: Any, path: Path) -> dict[tuple[str, tuple[int, ...]], Range]:
    ranges = _ranges(_field(metadata, "storage_data", path), path)
    _check_files(directory, list(ranges.values()))
    return ranges


def _tensors(directory: Path, metadata: Any, path: Path) -> dict[str, GlobalTensor]:
    entries = _field(metadata, "state_dict_metadata", path)
    ranges = _checked_ranges(directory, metadata, path)
    tensors = {}
    for name, entry in entries.items():
        if not isinstance(name, str) or not isinstance(entry, Record):
            raise ConvertError(f"{path}: damaged: entry {name!r}. Copy the checkpoint again.")
        if _NOT_WEIGHTS.match(name) or _EXTRA_STATE.search(name):
            continue
        if not entry.name.endswith(".TensorStorageMetadata"):
            raise ConvertError(
                f"{path}: {name!r} is an object, not a tensor ({entry.name}), and no known kind of "
                "training state. This checkpoint holds something that cannot be merged by name."
            )
        tensors[name] = _tensor(directory, name, entry, ranges, path)
    return tensors


def _check_backend(directory: Path) -> None:
    path = directory / "metadata.json"
    if not path.is_file():
        raise ConvertError(f"{path}: missing: {directory} is not a Megatron-core checkpoint, or not whole")
    try:
        backend = json.loads(path.read_bytes()).get("sharded_backend")
    except (ValueError, AttributeError) as error:
        raise ConvertError(f"{path}: damaged: {error}. Copy the checkpoint again.") from error
    if backend != "torch_dist":
        raise ConvertError(
            f"{path}: sharded_backend is {backend!r}; only 'torch_dist' is read. Save again with "
            "dist_ckpt_format=torch_dist."
        )


def _field(record: Any, field: str, path: Path) -> Any:
    if not isinstance(record, Record):
        raise ConvertError(f"{path}: damaged: {type(record).__name__} where a record is expected")
    value = record.get(field)
    if field in ("state_dict_metadata", "storage_data") and not isinstance(value, dict):
        raise ConvertError(f"{path}: damaged: {field} is no table. Copy the checkpoint again.")
    return value


def _ranges(storage: dict[Any, Any], path: Path) -> dict[tuple[str, tuple[int, ...]], Range]:
    """(tensor name, chunk offset) -> where its bytes are."""
    ranges = {}
    for key, info in storage.items():
        name = _field(key, "fqn", path)
        offset = key.state.get("offset")  # absent for objects
        file, first, length = (_field(info, f, path) for f in ("relative_path", "offset", "length"))
        if info.state.get("transform_descriptors"):
            raise ConvertError(
                f"{path}: {name} is stored compressed; save the checkpoint without stream transforms"
            )
        if not (isinstance(file, str) and re.fullmatch(r"[\w.-]+", file)):
            raise ConvertError(f"{path}: refused: {name} lies in {file!r}, not a file of this folder")
        if not (isinstance(name, str) and isinstance(first, int) and isinstance(length, int)):
            raise ConvertError(f"{path}: damaged: storage of {name!r}. Copy the checkpoint again.")
        ranges[(name, tuple(offset) if offset is not None else ())] = (file, first, length)
    return ranges


def _check_files(directory: Path, ranges: list[Range]) -> None:
    """Every range inside its file, none over another: a changed name or number points at other data."""
    problems = []
    ends: dict[str, int] = {}
    for file, first, length in sorted(ranges):
        if first < ends.get(file, 0):
            problems.append(f"{file}: two entries of .metadata share byte {first}")
        ends[file] = max(ends.get(file, 0), first + length)
    for file, end in ends.items():
        path = directory / file
        if not path.is_file():
            problems.append(f"{file}: missing")
        elif path.stat().st_size < end:
            problems.append(f"{file}: {path.stat().st_size} bytes, .metadata needs {end}: truncated")
    if problems:
        raise listing(
            f"{directory}: not whole",
            problems,
            "Copy the checkpoint again, or take another step with --step N.",
        )


def _tensor(
    directory: Path, name: str, entry: Record, ranges: dict[tuple[str, tuple[int, ...]], Range], path: Path
) -> GlobalTensor:
    shape = _numbers(entry.get("size"), name, path)
    dtype = _dtype(entry.get("properties"))
    if dtype not in DTYPE_BYTES:
        raise ConvertError(f"{path}: {name} has the unknown type {dtype!r}")
    chunks = []
    for chunk in entry.get("chunks"):
        offsets, sizes = (_numbers(_field(chunk, f, path), name, path) for f in ("offsets", "sizes"))
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise ConvertError(f"{path}: damaged: {name} has shape {shape} and a chunk at {offsets}")
        if (name, offsets) not in ranges:
            raise ConvertError(
                f"{path}: damaged: the chunk of {name} at {offsets} is stored nowhere. Copy it again."
            )
        file, first, length = ranges[(name, offsets)]
        chunks.append(Chunk(offsets, sizes, partial(_open, directory / file, first, length, name)))
    return GlobalTensor(name, shape, dtype, tuple(chunks))


def _open(path: Path, first: int, length: int, name: str) -> Stored:
    value = torch_zip.load(path, first, length)
    if not isinstance(value, torch_zip.StoredTensor):
        raise ConvertError(f"{path}: damaged: {name} at byte {first} is no tensor. Copy the checkpoint again.")
    return value


def _dtype(properties: Any) -> Any:
    # TensorProperties pickles as (dtype, layout, requires_grad, memory_format, pin_memory).
    state = properties.state if isinstance(properties, Record) else None
    if isinstance(state, tuple) and state:
        return state[0]
    return state.get("dtype") if isinstance(state, dict) else None


def _numbers(value: Any, name: str, path: Path) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (-1,)
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ConvertError(f"{path}: damaged: {name} has the size or offset {value!r}. Copy the checkpoint again.")
    return numbers
