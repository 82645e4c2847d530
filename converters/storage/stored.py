"""Tensors in files: where their elements lie, and the checksum over the bytes around them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from converters.errors import ConvertError
from converters.storage import checksum

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Storage:
    """Bytes of a file that have one checksum, for one tensor or many.

    Attributes:
        start: first byte in `path`.
        crc: CRC-32 that was saved; None: the format has none.
        dtype: as the storage says; a tensor over an untyped one has its own.
    """

    path: Path
    start: int
    nbytes: int
    crc: int | None
    dtype: str

    def compare(self, crc: int) -> None:
        """Whether `crc`, of all bytes, is the one that was saved.

        Raises:
            ConvertError: it is another.
        """
        if self.crc is not None and crc != self.crc:
            raise ConvertError(
                f"{self.path}: damaged: the bytes {self.start} to {self.start + self.nbytes} have CRC-32 "
                f"{crc:08x}, {self.crc:08x} was saved. Copy the file again."
            )


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `stride` and `offset` count elements of its storage."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    offset: int
    storage: Storage

    @property
    def in_row_order(self) -> bool:
        """Whether the elements lie one after the other, the last axis first."""
        wanted = row_major(self.shape)
        return all(n == 1 or s == w for n, s, w in zip(self.shape, self.stride, wanted, strict=True))


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without gaps."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor to read from, by any thread at any place."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def read(file: int, view: memoryview, at: int, path: Path) -> None:
    """Fill `view` from byte `at`.

    Raises:
        ConvertError: the file ends before.
    """
    done = 0
    while done < len(view):
        got = os.preadv(file, [view[done:]], at + done)
        if not got:
            raise truncated(path)
        done += got


def crc_of(
    file: int, storage: Storage, begin: int, end: int, crc: int = 0, spare: memoryview | None = None
) -> int:
    """CRC-32 over the bytes `begin` to `end` of a storage, going on from `crc`; nothing of them is kept."""
    if begin < end:
        spare = memoryview(bytearray(min(BLOCK_BYTES, end - begin))) if spare is None else spare
    while begin < end:
        assert spare is not None
        part = spare[: min(len(spare), end - begin)]
        read(file, part, storage.start + begin, storage.path)
        crc = checksum.crc32(part, crc)
        begin += len(part)
    return crc


def truncated(path: Path) -> ConvertError:
    return ConvertError(f"{path}: truncated: the file ends before the data that belongs to it. Copy it again.")
