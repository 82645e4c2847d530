"""Megatron-core `torch_dist` checkpoints: `.metadata` names every tensor and its chunks in `*.distcp`.

What is stored are global tensors, whatever tensor, pipeline and data parallel sizes wrote them, with the layers
stacked on the first axis. `.metadata` is a pickle of `torch.distributed.checkpoint.metadata.Metadata` (torch
2.4 to 2.13). `common.pt` holds no weight (optimizer settings, scheduler, arguments); it is opened all the same,
for one that would run something when the trainer loads it is not to be passed over in silence.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

from converters.checkpoint import foreign, torch_zip
from converters.errors import ConvertError, listing
from converters.json_file import read_json
from converters.pickles.records import Record
from converters.pickles.safe_unpickle import unpickle_file
from converters.storage.stored import StoredTensor
from converters.storage.tensors import DTYPE_BYTES, Chunk, GlobalTensor, Stored

# Written beside the weights by megatron-core 0.13 to 0.16: optimizer, layers' FP8 state, RNG and scheduler
# state, the state of its rerun of steps.
_NOT_WEIGHTS = re.compile(
    r"(chained_\d+\.)?optimizer\.|rng_state\b|opt_param_scheduler\b|lr_scheduler\b|rerun_state_machine_state\b"
)
_EXTRA_STATE = re.compile(r"\._extra_state(\d*)(/|$)")
# peft of Megatron-Bridge: linear_qkv.adapter.linear_in.weight, and what it wraps.
_ADAPTER = re.compile(r"\.adapter\.|\.lora_[AB]\.")
CONFIG = "metadata.json"
_MOST_AXES, _MOST_ELEMENTS = 16, 1 << 48  # of a tensor, on one axis
_VERSIONS = {"sharded_backend": ("torch_dist", 1), "common_backend": ("torch", 1)}

Range = tuple[str, int, int]  # file name, first byte, number of bytes


@dataclass(frozen=True)
class _Table:
    """What `.metadata` says.

    Attributes:
        names: of every entry.
        ends: file -> how long it has to be.
        problems: entries of `.metadata` that share a byte.
        tensors: the weights.
    """

    names: tuple[str, ...]
    ends: dict[str, int]
    problems: tuple[str, ...]
    tensors: dict[str, GlobalTensor]


def read_index(directory: Path) -> dict[str, GlobalTensor]:
    """Every weight in `directory`, by name; only tables are read, optimizer and RNG entries are left out.

    Raises:
        ConvertError: `.metadata` or a shard is missing, damaged or refused, another backend wrote the folder, or
            there is no weight in it.
    """
    if _common_backend(directory) == "torch":
        common = directory / "common.pt"
        if not common.is_file():
            raise ConvertError(f"{common}: missing: {directory} is not whole. Copy the checkpoint again.")
        torch_zip.load(common)
    table = _table(directory)
    _check_files(directory, table)
    if not table.tensors:
        kinds = sorted({name.split(".", 1)[0].split("/", 1)[0] for name in table.names})
        raise ConvertError(
            f"{directory}: no weight in it, only {', '.join(kinds[:5]) or 'nothing'}. Give the folder of the role "
            "(actor): its model lies in model/ or huggingface/."
        )
    adapters = [name for name in table.tensors if _ADAPTER.search(name)]
    if adapters:
        raise ConvertError(
            f"{directory}: holds shards of a LoRA adapter ({adapters[0]}, {len(adapters)} in all), which are not "
            "merged. Save again with hf_model in checkpoint.save_contents, which exports the adapter, and give "
            "the actor's folder."
        )
    return dict(table.tensors)


def check_files(directory: Path) -> None:
    """Every file that `.metadata` names is there and long enough, for the optimizer and the rest, too.

    Raises:
        ConvertError: `.metadata` or a shard is missing, damaged, short or refused.
    """
    _check_files(directory, _table(directory, weights=False))


def holds_model(directory: Path) -> bool:
    """Whether there is a weight in it; with mbridge a dist_ckpt holds optimizer and RNG state only.

    Raises:
        ConvertError: `.metadata` is missing, damaged or refused.
    """
    return any(_is_weight(name) for name in _table(directory, weights=False).names)


def _is_weight(name: str) -> bool:
    return not _NOT_WEIGHTS.match(name) and not _EXTRA_STATE.search(name)


def _table(directory: Path, *, weights: bool = True) -> _Table:
    path = directory / ".metadata"
    if not path.is_file():
        foreign.refuse(directory)
        begun = directory / ".metadata.tmp"
        also = f"; {begun.name} is there" if begun.is_file() else ""
        raise ConvertError(
            f"{path}: missing. It is written last, so the save (async_save, too) was interrupted{also}. Take an "
            "earlier step with --step N."
        )
    status = path.stat()
    return _parsed(path, weights, status.st_mtime_ns, status.st_size, status.st_ino)


# Who looks for the step reads the table, and who then merges it reads it again.
@lru_cache(maxsize=1)
def _parsed(path: Path, weights: bool, *version: int) -> _Table:
    del version
    metadata = unpickle_file(path)
    try:
        entries = _field(metadata, "state_dict_metadata", path)
        ranges = _ranges(_field(metadata, "storage_data", path), path)
        tensors = _tensors(path.parent, entries, ranges, path) if weights else {}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConvertError(f"{path}: damaged ({error}). Copy the checkpoint again.") from error
    ends: dict[str, int] = {}
    problems = []
    for file, first, length in sorted(ranges.values()):
        if first < ends.get(file, 0):
            problems.append(f"{file}: two entries of .metadata share byte {first}")
        ends[file] = max(ends.get(file, 0), first + length)
    return _Table(tuple(map(str, entries)), ends, tuple(problems), tensors)


def _tensors(
    directory: Path, entries: dict[Any, Any], ranges: dict[tuple[str, tuple[int, ...]], Range], path: Path
) -> dict[str, GlobalTensor]:
    tensors = {}
    for name, entry in entries.items():
        if not isinstance(name, str) or not isinstance(entry, Record):
            raise ConvertError(f"{path}: damaged: entry {reprlib.repr(name)}. Copy the checkpoint again.")
        if not _is_weight(name):
            continue
        if not entry.name.endswith(".TensorStorageMetadata"):
            raise ConvertError(
                f"{path}: {name!r} is an object, not a tensor ({entry.name}), and no known kind of "
                "training state. This checkpoint holds something that cannot be merged by name."
            )
        tensors[name] = _tensor(directory, name, entry, ranges, path)
    return tensors


def _common_backend(directory: Path) -> str | None:
    """Of metadata.json, which megatron-core writes last.

    Raises:
        ConvertError: it is missing, damaged, or names another backend or version for the shards.
    """
    path = directory / CONFIG
    if not path.is_file():
        raise ConvertError(_without_config(directory))
    config = read_json(path)
    told = {key: (config.get(key), config.get(f"{key}_version", 1)) for key in _VERSIONS}
    if told["sharded_backend"] != _VERSIONS["sharded_backend"]:
        backend, version = told["sharded_backend"]
        foreign.refuse(directory)
        raise ConvertError(
            f"{path}: sharded_backend is {backend!r}, version {version!r}; only 'torch_dist', version 1 is read. "
            "Save again with dist_ckpt_format=torch_dist."
        )
    return "torch" if told["common_backend"] == _VERSIONS["common_backend"] else None


def _without_config(directory: Path) -> str:
    """Why a folder has no metadata.json."""
    path = directory / CONFIG
    if (directory / "common.pt").is_file() or not (directory / ".metadata").is_file():
        foreign.refuse(directory)
        return (
            f"{path}: missing: {directory} is not a Megatron-core checkpoint, or not whole: it is written last, "
            "so the save (async_save, too) was interrupted. Take an earlier step with --step N."
        )
    names = _table(directory, weights=False).names
    writer = (
        "Megatron-FSDP (use_megatron_fsdp=True)"
        if any(name.startswith(("model.module.", "optimizer.state.module.")) for name in names)
        else "torch.distributed.checkpoint itself (DCP, or Megatron-FSDP)"
    )
    return (
        f"{path}: missing: the folder was written by {writer}, whose tensors are not merged. Let the trainer "
        "write Hugging Face weights (hf_model in checkpoint.save_contents), or save without use_megatron_fsdp."
    )


def _field(record: Any, field: str, path: Path) -> Any:
    if not isinstance(record, Record):
        raise ConvertError(f"{path}: damaged: {type(record).__name__} where a record is expected")
    try:
        value = record.get(field)
    except ConvertError as error:
        raise ConvertError(f"{path}: {error}") from error
    if field in ("state_dict_metadata", "storage_data") and not isinstance(value, dict):
        raise ConvertError(f"{path}: damaged: {field} is no table. Copy the checkpoint again.")
    return value


def _ranges(storage: dict[Any, Any], path: Path) -> dict[tuple[str, tuple[int, ...]], Range]:
    """(tensor name, chunk offset) -> where its bytes are."""
    ranges = {}
    for key, info in storage.items():
        name = _field(key, "fqn", path)
        offset = key.state.get("offset")  # absent for objects
        place = _numbers(offset, "a chunk", path) if offset is not None else ()
        file, first, length = (_field(info, f, path) for f in ("relative_path", "offset", "length"))
        if info.state.get("transform_descriptors"):
            raise ConvertError(
                f"{path}: {name} is stored compressed; save the checkpoint without stream transforms"
            )
        if not (isinstance(file, str) and re.fullmatch(r"[\w.-]+", file)):
            raise ConvertError(f"{path}: refused: {name} lies in {reprlib.repr(file)}, not a file of this folder")
        numbers = all(isinstance(number, int) and number >= 0 for number in (first, length))
        if not (isinstance(name, str) and numbers):
            raise ConvertError(f"{path}: damaged: storage of {reprlib.repr(name)}. Copy the checkpoint again.")
        ranges[(name, place)] = (file, first, length)
    return ranges


def _check_files(directory: Path, table: _Table) -> None:
    """Every range inside its file, none over another: a changed name or number points at other data."""
    problems = list(table.problems)
    for file, end in table.ends.items():
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
    shape = _numbers(_field(entry, "size", path), name, path)
    dtype = _dtype(_field(entry, "properties", path))
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ConvertError(f"{path}: {name} has the unknown type {reprlib.repr(dtype)}")
    chunks: dict[tuple[int, ...], Chunk] = {}
    for chunk in _field(entry, "chunks", path):
        offsets, sizes = (_numbers(_field(chunk, f, path), name, path) for f in ("offsets", "sizes"))
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise ConvertError(f"{path}: damaged: {name} has shape {shape} and a chunk at {offsets}")
        if (name, offsets) not in ranges:
            raise ConvertError(
                f"{path}: damaged: the chunk of {name} at {offsets} is stored nowhere. Copy it again."
            )
        file, first, length = ranges[(name, offsets)]
        _check_chunk(name, shape, offsets, sizes, length // DTYPE_BYTES[dtype], path)
        if prod(shape) and not prod(sizes):
            continue  # of a rank without rows, maybe at the place of another's
        if offsets in chunks:
            raise ConvertError(
                f"{path}: damaged: {name} has two chunks at {reprlib.repr(list(offsets))}. Copy the checkpoint "
                "again."
            )
        chunks[offsets] = Chunk(offsets, sizes, partial(_open, directory / file, first, length, name))
    held = sum(prod(chunk.sizes) for chunk in chunks.values())
    if held != prod(shape):
        raise ConvertError(
            f"{path}: damaged: the chunks of {name} hold {held} elements, its shape "
            f"{reprlib.repr(list(shape))} has {prod(shape)}. Copy the checkpoint again, "
            "or take another step with --step N."
        )
    return GlobalTensor(name, shape, dtype, tuple(chunks.values()))


def _check_chunk(
    name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...], most: int, path: Path
) -> None:
    """A chunk is inside its tensor and not larger than the bytes that hold it: a wrong number costs no memory."""
    inside = all(o + size <= whole for o, size, whole in zip(offsets, sizes, shape, strict=True))
    if not inside or prod(sizes) > most:
        raise ConvertError(
            f"{path}: damaged: {name} {reprlib.repr(list(shape))} has a chunk {reprlib.repr(list(sizes))} at "
            f"{reprlib.repr(list(offsets))}, whose bytes hold {most} elements. Copy the checkpoint again."
        )


def _open(path: Path, first: int, length: int, name: str) -> Stored:
    value = torch_zip.load(path, first, length)
    if not isinstance(value, StoredTensor):
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
    if len(numbers) > _MOST_AXES or not all(isinstance(n, int) and 0 <= n < _MOST_ELEMENTS for n in numbers):
        raise ConvertError(
            f"{path}: damaged: {name} has the size or offset {reprlib.repr(value)}. Copy the checkpoint again."
        )
    return numbers
