"""Tensors in files: where their elements lie, and the checksum over the bytes around them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from converters.errors import ConvertError
from converters.storage import checksum
from converters.storage.tensors import DTYPE_BYTES, Words, as_bytes, words

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

    def read_into(self, out: Words) -> None:
        """Fill `out` and compare the storage's CRC-32 when the tensor is most of it.

        Raises:
            ConvertError: the file ends early, or the bytes are not those that were saved.
        """
        if out.size == 0:
            return
        size = DTYPE_BYTES[self.dtype]
        if self.in_row_order:
            self._read_checked(as_bytes(out), self.offset * size)
            return
        span = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) + 1
        flat: Words = np.empty(span, dtype=words(self.dtype))
        self._read_checked(as_bytes(flat), self.offset * size)
        out[...] = np.lib.stride_tricks.as_strided(flat, self.shape, [s * size for s in self.stride])

    def _read_checked(self, view: memoryview, begin: int) -> None:
        store = self.storage
        # A storage that is shared by many tensors (a flat buffer) would be read once for each of them.
        check = store.crc is not None and store.nbytes <= 2 * len(view)
        with opened(store.path) as file:
            crc = crc_of(file, store, 0, begin) if check else 0
            for at in range(0, len(view), BLOCK_BYTES):
                part = view[at : at + BLOCK_BYTES]
                read(file, part, store.start + begin + at, store.path)
                if check:
                    crc = checksum.crc32(part, crc)
            if check:
                store.compare(crc_of(file, store, begin + len(view), store.nbytes, crc))


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
