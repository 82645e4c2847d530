"""Whether the weights of a model directory are whole, from names, sizes and headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reward.errors import ModelDirError

_SINGLE = ("model.safetensors", "pytorch_model.bin")
_LFS_POINTER = b"version https://git-lfs"
# safetensors 0.4 to 0.7 refuse longer headers (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
_LONGEST_HEADER = 100_000_000


def check_weights(path: Path) -> None:
    """Refuse a directory without weights, with missing shards, or with files that were cut off.

    Looks at what transformers would load: safetensors first, one file before shards.

    Raises:
        ModelDirError: names the file and what is wrong with it.
    """
    for name in _SINGLE:
        if (path / name).is_file():
            _check_file(path / name)
            return
        if (path / f"{name}.index.json").is_file():
            for shard in _shards(path / f"{name}.index.json"):
                _check_file(shard)
            return
    names = " or ".join(f"{name}, {name}.index.json" for name in _SINGLE)
    raise ModelDirError(f"{path}: no weights ({names}). Copy them here, or correct --model.")


def _shards(index: Path) -> list[Path]:
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelDirError(f"{index}: not an index of shards: {error!r}; copy the model again") from error
    shards = [index.parent / str(name) for name in files]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelDirError(
            f"{index} names {len(shards)} files, of which {', '.join(missing[:3])}{' ...' if missing[3:] else ''} "
            "is missing; copy the model again"
        )
    return shards


def _check_file(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as content:
        head = content.read(len(_LFS_POINTER))
        if head == _LFS_POINTER:
            raise ModelDirError(f"{file}: a Git LFS pointer, not the weights; run: git lfs pull")
        if not head:
            raise ModelDirError(f"{file}: empty; copy the model again")
        if file.suffix != ".safetensors":
            return
        length = int.from_bytes(head[:8], "little")
        content.seek(8)
        header = _header(content.read(min(length, _LONGEST_HEADER))) if 8 + length <= size else None
    if header is None:
        raise ModelDirError(f"{file}: no safetensors file: its header is damaged or cut off; copy the model again")
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelDirError(
            f"{file}: {size} bytes, but its header tells of {expected}: the copy is not whole; copy it again"
        )


def _header(text: bytes) -> dict[str, Any] | None:
    """A safetensors header, name -> {dtype, shape, data_offsets}; None for anything else."""
    try:
        header = json.loads(text)
        for name, tensor in header.items():
            if name != "__metadata__":
                _, end = tensor["data_offsets"]
                if not isinstance(end, int):
                    return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dict(header)
