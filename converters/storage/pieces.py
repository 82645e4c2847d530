"""What one chunk of a checkpoint gives to the rows of a tensor, and the checksum of the storage around it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from threading import Lock

import numpy as np

from converters.storage import checksum
from converters.storage.checksum import combine
from converters.storage.stored import BLOCK_BYTES, Storage, StoredTensor, crc_of, opened, read
from converters.storage.tensors import DTYPE_BYTES, Computed, Stored, Words, as_bytes, words


class Checks:
    """Which storages were checked, or are while they are read: each one once, whatever shares it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._turns: dict[Storage, Lock] = {}
        self._done: set[Storage] = set()

    def claim(self, storage: Storage, nbytes: int) -> bool:
        """Whether the caller, who reads `nbytes` of the storage in order, is to take its checksum on the way."""
        if storage.crc is None:
            return False
        with self._lock:
            if storage in self._done:
                return False
            if 2 * nbytes > storage.nbytes:
                self._done.add(storage)
                return True
            turn = self._turns.setdefault(storage, Lock())
        with turn:
            with self._lock:
                if storage in self._done:
                    return False
            with opened(storage.path) as file:
                storage.compare(crc_of(file, storage, 0, storage.nbytes))
            with self._lock:
                self._done.add(storage)
                self._turns.pop(storage, None)
        return False

    def unclaim(self, storage: Storage) -> None:
        """It was not read to its end."""
        with self._lock:
            self._done.discard(storage)


@dataclass
class Piece:
    """What one chunk holds of a place, read from its first wanted row to its last.

    Attributes:
        where: of the chunk in the tensor, for messages.
        offsets, sizes: in the place: rows first.
        leading: place on the chunk's leading axes.
        wanted: how many of its rows will be read.
    """

    checks: Checks
    where: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: Stored
    leading: tuple[int, ...]
    wanted: int
    _file: int | None = None
    _whole: Words | None = None
    _claimed: bool = False
    _crc: int = 0
    _at: int = 0  # bytes of the storage that the checksum has

    @property
    def last(self) -> int:
        return self.offsets[0] + self.sizes[0]

    @property
    def box(self) -> tuple[slice, ...]:
        """Its columns in a row of the place."""
        pairs = zip(self.offsets[1:], self.sizes[1:], strict=True)
        return tuple(slice(o, o + s) for o, s in pairs)

    def read_beside(self, row: int, out: Words, side: Words) -> None:
        """Rows from `row` to the columns of `out` [rows, ...] that are this piece's, by way of `side`."""
        shape = (len(out), *self.sizes[1:])
        mine = side[: prod(shape) * out.itemsize].view(out.dtype).reshape(shape)
        self.read(row, mine)
        place = (slice(None), *self.box)
        out[place] = mine

    def read(self, row: int, out: Words) -> int | None:
        """Fill `out` [rows, *sizes[1:]] with the rows from `row`; their CRC-32 where it is known by the way."""
        row -= self.offsets[0]
        stored = self.stored
        if not isinstance(stored, StoredTensor):
            assert isinstance(stored, Computed)
            if self._whole is None:
                self._whole = np.empty(stored.shape, words(stored.dtype))
                stored.read_into(self._whole)
            out[...] = self._whole[self.leading].reshape(self.sizes)[row : row + len(out)]
            return None
        storage, size = stored.storage, DTYPE_BYTES[stored.dtype]
        if self._file is None:
            in_order = stored.in_row_order
            share = self.wanted * prod(self.sizes[1:]) * size if in_order else 0
            self._claimed = self.checks.claim(storage, share)
            self._file = os.open(storage.path, os.O_RDONLY | os.O_CLOEXEC)
        axes = len(self.leading)
        begin = stored.offset + sum(i * s for i, s in zip(self.leading, stored.stride, strict=False))
        if not stored.in_row_order:
            strides = stored.stride[axes:]
            _read_strided(self._file, out, storage, begin + row * strides[0], strides)
            return None
        begin = (begin + row * prod(self.sizes[1:])) * size
        view = as_bytes(out)
        if self._claimed:
            self._skip(begin)
        read(self._file, view, storage.start + begin, storage.path)
        if not self._claimed:
            return None
        crc = checksum.crc32(view)
        self._crc = combine(self._crc, crc, len(view))
        self._at += len(view)
        return crc

    def finish(self) -> None:
        """All wanted rows are read: take the rest into the checksum, which must be the saved one."""
        if self._claimed and self._file is not None:
            assert isinstance(self.stored, StoredTensor)
            storage = self.stored.storage
            self._skip(storage.nbytes)
            storage.compare(self._crc)
            self._claimed = False
        self._whole = None
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._claimed:
            assert isinstance(self.stored, StoredTensor)
            self.checks.unclaim(self.stored.storage)
            self._claimed = False

    def _skip(self, begin: int) -> None:
        assert isinstance(self.stored, StoredTensor)
        assert self._file is not None
        if self._at < begin:
            self._crc = crc_of(self._file, self.stored.storage, self._at, begin, self._crc)
            self._at = begin


def _read_strided(file: int, out: Words, storage: Storage, begin: int, strides: tuple[int, ...]) -> None:
    """Fill `out` with elements that lie apart; reads spans of at most a block, however many that takes."""
    order = sorted(range(out.ndim), key=lambda axis: -strides[axis])
    inner: list[int] = []
    span = 1
    for axis in reversed(order):
        longer = span + (out.shape[axis] - 1) * strides[axis]
        if longer * out.itemsize > BLOCK_BYTES:
            break
        inner.insert(0, axis)
        span = longer
    outer = order[: out.ndim - len(inner)]
    flat: Words = np.empty(span, out.dtype)
    apart = np.lib.stride_tricks.as_strided(
        flat, [out.shape[axis] for axis in inner], [strides[axis] * out.itemsize for axis in inner]
    )
    target = out.transpose([*outer, *inner])
    for place in np.ndindex(*(out.shape[axis] for axis in outer)):
        at = begin + sum(i * strides[axis] for i, axis in zip(place, outer, strict=True))
        read(file, as_bytes(flat), storage.start + at * out.itemsize, storage.path)
        target[place] = apart
