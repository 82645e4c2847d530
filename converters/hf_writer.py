"""Write a Hugging Face model folder: safetensors shards in one pass, whole at the end or not there at all.

safetensors: 8 bytes of header length, a JSON header, the tensors' bytes. Every position is known from the
plan, so each tensor goes straight to its place, and nothing waits in memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from converters.errors import ConvertError
from converters.plan import Output
from converters.tensors import DTYPE_BYTES, Words, as_bytes, words

MANIFEST = "merge_manifest.json"
INDEX = "model.safetensors.index.json"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(text: str) -> int:
    """'5GB' (10**9), '500MiB' (2**20) or a number of bytes.

    Raises:
        ValueError: not a size, or 0.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is no size; write 5GB, 500MiB or a number of bytes")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


class SafetensorsWriter:
    """Shards of at most `max_shard_bytes` of tensors each (a larger tensor has a shard of its own).

    Shards are named as transformers names them: `model.safetensors` if there is one, else
    `model-00001-of-0000N.safetensors` with an index that has the total in bytes.
    """

    def __init__(self, directory: Path, outputs: Sequence[Output], max_shard_bytes: int) -> None:
        self._directory = directory
        self.total_bytes = sum(output.nbytes for output in outputs)
        shards: list[list[Output]] = [[]]
        filled = 0
        for output in outputs:
            if shards[-1] and filled + output.nbytes > max_shard_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(output)
            filled += output.nbytes
        self._outputs = {output.name: output for output in outputs}
        self._place: dict[str, tuple[str, int]] = {}
        self._written = dict.fromkeys(self._outputs, 0)  # rows
        for number, shard in enumerate(shards, 1):
            name = (
                f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
            )
            self._create(name, shard)
        self._single = len(shards) == 1

    def _create(self, name: str, outputs: list[Output]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for output in outputs:
            end = at + output.nbytes
            header[output.name] = {
                "dtype": output.dtype,
                "shape": list(output.shape),
                "data_offsets": [at, end],
            }
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (self._directory / name).open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            start = file.tell()
            file.truncate(start + at)
        for output in outputs:
            entry = header[output.name]
            assert isinstance(entry, dict)
            self._place[output.name] = (name, start + entry["data_offsets"][0])

    def write(self, name: str, first_row: int, rows: Words) -> None:
        """Put rows of a tensor in their place; those of one tensor come in their order.

        Raises:
            ConvertError: they are not what the plan says, or were written already.
        """
        output = self._outputs.get(name)
        if output is None or self._written[name] != first_row:
            raise ConvertError(f"{name}: row {first_row} is written twice or out of order, or is not in the plan")
        shape = output.shape or (1,)
        if rows.shape[1:] != shape[1:] or rows.dtype != words(output.dtype) or first_row + len(rows) > shape[0]:
            raise ConvertError(f"{name}: {rows.dtype} {rows.shape}, the plan says {output.dtype} {output.shape}")
        file_name, start = self._place[name]
        data = as_bytes(np.ascontiguousarray(rows))
        with (self._directory / file_name).open("r+b", buffering=0) as file:
            file.seek(start + first_row * prod(shape[1:]) * DTYPE_BYTES[output.dtype])
            while data:
                data = data[file.write(data) :]
        self._written[name] += len(rows)

    def finish(self) -> None:
        """Flush every shard to disk and write the index.

        Raises:
            ConvertError: a tensor of the plan was not written.
        """
        short = [o.name for o in self._outputs.values() if self._written[o.name] != (o.shape or (1,))[0]]
        if short:
            raise ConvertError(f"not written: {', '.join(sorted(short)[:20])}")
        for name in sorted({file for file, _ in self._place.values()}):
            with (self._directory / name).open("r+b") as file:
                os.fsync(file.fileno())
        if not self._single:
            index = {
                "metadata": {"total_size": self.total_bytes},
                "weight_map": {name: file for name, (file, _) in self._place.items()},
            }
            write_json(self._directory / INDEX, index)


def write_json(path: Path, value: object) -> None:
    """A JSON file as transformers writes it, flushed to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def target(out: Path, need_bytes: int, force: bool = False, forbidden: Sequence[Path] = ()) -> Iterator[Path]:
    """A folder beside `out` to write in, renamed to `out` if the block ends well and removed if not.

    Args:
        out: does not exist, or is an empty folder, or with `force` is the result of an earlier merge.
        need_bytes: that will be written, compared with the free space first.
        forbidden: folders that `out` must not lie in (the checkpoint).

    Raises:
        ConvertError: `out` is taken, lies in the checkpoint, or the disk is too small.
    """
    out = out.absolute()
    for tree in forbidden:
        if out.resolve().is_relative_to(tree.resolve()):
            raise ConvertError(
                f"{out}: lies in the checkpoint {tree}, where nothing is written. Choose another target."
            )
    replaces = _check_free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    if free < need_bytes:
        raise ConvertError(
            f"{out.parent}: {free} bytes free, {need_bytes} needed. Make room, or choose another target."
        )
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        _sync(partial)
        old = out.with_name(f"{out.name}.old-{os.getpid()}")
        if replaces:
            out.rename(old)
        partial.rename(out)
        _sync(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if replaces:
        shutil.rmtree(old)


def _check_free(out: Path, force: bool) -> bool:
    """Whether `out` holds an earlier merge to replace."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConvertError(f"{out}: exists and is no folder. Choose another target.")
    if not out.exists() or not any(out.iterdir()):
        return False
    if not (out / MANIFEST).is_file():
        raise ConvertError(
            f"{out}: not empty, and not made by this command (no {MANIFEST}). Choose another target."
        )
    if not force:
        raise ConvertError(f"{out}: holds the result of an earlier merge. Add --force to replace it.")
    return True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
