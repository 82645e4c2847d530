"""Weights in Hugging Face form already (mbridge, or `hf_model` in save_contents): safetensors, checked."""

from __future__ import annotations

import reprlib
from math import prod
from pathlib import Path
from typing import Any

from converters.errors import ConvertError, listing
from converters.hf.hf_files import INDEX
from converters.json_file import MOST_BYTES, check_regular, parse, read_json
from converters.storage.stored import Storage, StoredTensor, row_major
from converters.storage.tensors import DTYPE_BYTES, Chunk, GlobalTensor, Stored

# numpy 1 has no more axes; a byte has a number of 63 bits.
_MOST_AXES, _MOST_BYTES = 32, 2**63


def has_weights(directory: Path) -> bool:
    """Whether `directory` claims to hold weights (whole or not)."""
    return directory.is_dir() and any(
        path.suffix == ".safetensors" or path.name == INDEX for path in directory.iterdir()
    )


def read_index(directory: Path) -> dict[str, GlobalTensor]:
    """Every tensor of a safetensors folder, by name; only headers are read.

    Files of other names beside `model*.safetensors` are no part of the model, as for transformers, unless the
    index names them (Mistral's folders have the same weights in `consolidated.safetensors`, in another form).

    Raises:
        ConvertError: a shard is missing, truncated or empty, or the index does not list what the shards hold.
    """
    files = sorted(path for path in directory.iterdir() if path.suffix == ".safetensors")
    problems: list[str] = []
    weight_map: dict[str, str] = {}
    index = directory / INDEX
    if index.is_file():
        loaded = read_json(index).get("weight_map")
        if not isinstance(loaded, dict) or not all(isinstance(v, str) for v in loaded.values()):
            raise ConvertError(f"{index}: damaged: no weight_map. Copy the folder again.")
        if not loaded:
            raise ConvertError(f"{index}: damaged: weight_map is empty. Copy the folder again.")
        weight_map = loaded
    named = {path.name for path in files if path.name.startswith("model") or path.name in weight_map.values()}
    if named:
        files = [path for path in files if path.name in named]
    if weight_map:
        names = {path.name for path in files}
        problems += [f"{INDEX} names {n}, which is missing" for n in sorted(set(weight_map.values()) - names)]
    elif len(files) > 1 and not index.is_file():
        problems.append(f"{len(files)} shards and no {INDEX}")
    tensors: dict[str, GlobalTensor] = {}
    unread = {name for name in weight_map.values() if name not in {path.name for path in files}}
    for path in files:
        try:
            held = _read_file(path)
        except ConvertError as error:
            problems.append(str(error))
            unread.add(path.name)
            continue
        for name, tensor in held.items():
            if name in tensors:
                problems.append(f"{name} is in {path.name} and in another shard")
            if weight_map and weight_map.get(name) != path.name:
                problems.append(f"{name} is in {path.name}, {INDEX} says {weight_map.get(name)}")
            tensors[name] = tensor
    problems += [
        f"{INDEX} lists {name}, which no shard holds"
        for name, file in weight_map.items()
        if name not in tensors and file not in unread
    ]
    if not tensors and not problems:
        problems.append("no tensor")
    if problems:
        raise listing(f"{directory}: not a whole model", problems, "Copy the folder again, or take another step.")
    return tensors


def place(tensor: GlobalTensor) -> tuple[Path, int]:
    """File of a tensor that `read_index` found, and the number of its first byte there."""
    stored = tensor.chunks[0].open()
    if not isinstance(stored, StoredTensor):
        raise TypeError(f"{tensor.name} is not of a safetensors file")
    return stored.storage.path, stored.storage.start


def _read_file(path: Path) -> dict[str, GlobalTensor]:
    check_regular(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MOST_BYTES):
            raise ConvertError(f"{path}: {size} bytes, shorter than its header: truncated. Copy the file again.")
        header = parse(file.read(length), f"{path}: damaged header", once=True)
        try:
            entries = {n: _entry(path, n, e, 8 + length) for n, e in header.items() if n != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConvertError(f"{path}: damaged header ({error}). Copy the file again.") from error
    end = 8 + length
    for start, stop in sorted(span for _, span in entries.values()):
        if start != end:
            raise ConvertError(f"{path}: damaged header: a hole or an overlap at byte {min(start, end)}")
        end = stop
    if end != size:
        raise ConvertError(
            f"{path}: {size} bytes, its header needs {end}: truncated or damaged. Copy the file again."
        )
    return {name: tensor for name, (tensor, _) in entries.items()}


def _entry(path: Path, name: str, entry: dict[str, Any], base: int) -> tuple[GlobalTensor, tuple[int, int]]:
    shape, dtype, (begin, end) = tuple(entry["shape"]), entry["dtype"], entry["data_offsets"]
    if not all(type(n) is int and 0 <= n < _MOST_BYTES for n in (*shape, begin, end)):
        raise ValueError(f"{name}: shape {reprlib.repr(list(shape))}, offsets {begin} to {end}")
    if dtype not in DTYPE_BYTES:
        raise ConvertError(
            f"{path}: {name} is of the type {reprlib.repr(dtype)}, which is not read, only "
            f"{', '.join(DTYPE_BYTES)}"
        )
    # numpy counts the bytes without axes of length 0.
    if len(shape) > _MOST_AXES or prod(n for n in shape if n) * DTYPE_BYTES[dtype] >= _MOST_BYTES:
        raise ValueError(f"{name}: no tensor has the shape {reprlib.repr(list(shape))}")
    if end - begin != prod(shape) * DTYPE_BYTES[dtype]:
        raise ValueError(f"{name}: {end - begin} bytes for {dtype} {list(shape)}")
    # There is no checksum in this format.
    storage = Storage(path, base + begin, end - begin, None, dtype)
    stored: Stored = StoredTensor(shape, dtype, row_major(shape), 0, storage)
    chunk = Chunk((0,) * len(shape), shape, lambda: stored)
    return GlobalTensor(name, shape, dtype, (chunk,)), (base + begin, base + end)
