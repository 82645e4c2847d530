"""Write the weights of a Hugging Face model: safetensors shards in one pass, each tensor straight to its place."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from converters.errors import ConvertError
from converters.hf.hf_files import INDEX, write_json
from converters.planning.shards import planned_shards
from converters.planning.steps import Output
from converters.storage import checksum
from converters.storage.checksum import combine
from converters.storage.tensors import DTYPE_BYTES, Words, as_bytes, words
from converters.writing.journal import Journal
from converters.writing.safetensors_file import Shard

_UNITS: dict[str, int] = {
    "": 1,
    **{f"{k}B": 1000**n for n, k in enumerate("KMGT", 1)},
    **{f"{k}IB": 1024**n for n, k in enumerate("KMGT", 1)},
}


def parse_size(text: str) -> int:
    """'5GB' (10**9), '500MiB' (2**20) or a number of bytes.

    Raises:
        ValueError: not a size, or 0.
    """
    match = re.fullmatch(r"(\d+)\s*([KMGT]i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ValueError(f"{text!r} is no size; write 5GB, 500MiB or a number of bytes")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


class SafetensorsWriter:
    """Shards of at most `max_shard_bytes` of tensors each (a larger tensor has a shard of its own).

    Shards are named as transformers names them: `model.safetensors` if there is one, else
    `model-00001-of-0000N.safetensors` with an index that has the total in bytes. Threads may write different
    tensors at a time.

    Args:
        directory: what else is in it, from an earlier run, is removed.
        journal: where finished tensors are noted; those that it has already can be kept.
    """

    def __init__(
        self, directory: Path, outputs: Sequence[Output], max_shard_bytes: int, journal: Journal | None = None
    ) -> None:
        self._directory, self._journal = directory, journal
        self.total_bytes = sum(output.nbytes for output in outputs)
        planned = planned_shards(outputs, max_shard_bytes)
        shards = [Shard(directory / name, group) for name, group in planned.items()]
        self._shards = shards
        self._shard = {output.name: shard for shard in shards for output in shard.outputs}
        self._tensors = {output.name: _Tensor(output) for output in outputs}
        finished = journal.finished if journal else {}
        for path in directory.iterdir():
            if path.name not in planned and (journal is None or path != journal.path):
                _remove(path)  # files beside the weights, which are copied last
        for shard in shards:
            if not shard.prepare(keep=any(output.name in finished for output in shard.outputs)):
                for output in shard.outputs:
                    finished.pop(output.name, None)

    def keep(self, names: Sequence[str]) -> bool:
        """Whether the journal has these tensors and the files still hold them; then they are complete."""
        finished = self._journal.finished if self._journal else {}
        if not all(name in finished and self._shard[name].crc(name) == finished[name] for name in names):
            return False
        for name in names:
            self._tensors[name].rows = self._tensors[name].row_count
            self._end(name)
        return True

    def write(self, name: str, first_row: int, rows: Words, crc: int | None = None) -> None:
        """Put rows of a tensor in their place; those of one tensor come in their order.

        Args:
            crc: CRC-32 of the rows' bytes, if it is known.

        Raises:
            ConvertError: they are not what the plan says, or were written already.
        """
        tensor = self._tensors.get(name)
        if tensor is None or tensor.rows != first_row:
            raise ConvertError(f"{name}: row {first_row} is written twice or out of order, or is not in the plan")
        output = tensor.output
        tail = output.shape[1:]
        if rows.shape[1:] != tail or rows.dtype != words(output.dtype) or first_row + len(rows) > tensor.row_count:
            raise ConvertError(f"{name}: {rows.dtype} {rows.shape}, the plan says {output.dtype} {output.shape}")
        data = as_bytes(np.ascontiguousarray(rows))
        if self._journal is not None:
            known = checksum.crc32(data) if crc is None else crc
            tensor.crc = combine(tensor.crc, known, len(data)) if tensor.rows else known
        self._shard[name].write(name, first_row * prod(tail) * DTYPE_BYTES[output.dtype], data)
        tensor.rows += len(rows)

    def complete(self, name: str) -> None:
        """The tensor is written, and what it was read from is checked. The last of a shard flushes it to disk.

        Raises:
            ConvertError: rows are missing.
        """
        tensor = self._tensors[name]
        if tensor.rows != tensor.row_count:
            raise ConvertError(f"{name}: {tensor.rows} of {tensor.row_count} rows were written")
        if self._journal is not None:
            self._journal.add(name, tensor.crc)
        self._end(name)

    def _end(self, name: str) -> None:
        self._tensors[name].done = True
        self._shard[name].complete(name)

    def flush(self) -> None:
        """Let what was written so far go to disk; other threads may write meanwhile."""
        for shard in self._shards:
            shard.flush()

    def finish(self) -> None:
        """Write the index, when every tensor is complete.

        Raises:
            ConvertError: a tensor of the plan was not written.
        """
        short = [name for name, tensor in self._tensors.items() if not tensor.done]
        if short:
            raise ConvertError(f"not written: {', '.join(sorted(short)[:20])}")
        if len(self._shards) > 1:
            index = {
                "metadata": {"total_size": self.total_bytes},
                "weight_map": {name: shard.path.name for name, shard in self._shard.items()},
            }
            write_json(self._directory / INDEX, index)

    def close(self) -> None:
        """Let go of the files."""
        for shard in self._shards:
            shard.close()


@dataclass
class _Tensor:
    output: Output
    rows: int = 0  # that were written
    crc: int = 0
    done: bool = False

    @property
    def row_count(self) -> int:
        return (self.output.shape or (1,))[0]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
