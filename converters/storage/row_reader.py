"""Rows of a checkpoint's tensors, block by block: bounded memory, and every storage's checksum taken once.

A row is one place on the first axis after the leading ones (layer, expert). Chunks that stand one below the other
are read straight into the block; chunks side by side (columns of tensor parallelism) are read by the same rows and
put together. The CRC-32 of a torch storage runs along with its bytes where a step takes most of it; of a storage
that many tensors share it is taken before the first of them, in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from math import prod
from threading import Lock

import numpy as np

from converters.errors import ConvertError
from converters.storage.pieces import Checks, Piece
from converters.storage.stored import BLOCK_BYTES, StoredTensor
from converters.storage.tensors import DTYPE_BYTES, Chunk, GlobalTensor, Stored, Words, words

Span = tuple[int, int]  # first row and the one after the last


class Reader:
    """Reads for one merge; its threads share one. Keeps what was checked, and tables of chunks of many places."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._lock = Lock()
        self._checks = Checks()
        self._opened: dict[int, tuple[Chunk, Stored]] = {}
        self._spare: list[Words] = []

    def rows(
        self, tensor: GlobalTensor, index: tuple[int, ...] = (), spans: Sequence[Span] | None = None
    ) -> Iterator[tuple[int, Words, int | None]]:
        """First row, [rows, ...] in the tensor's type and, if known, their CRC-32; by rising row.

        The rows are valid until the next ones are asked for, and lie in one span.

        Args:
            index: place on the leading axes.
            spans: rows that are wanted, rising; default: all.

        Raises:
            ConvertError: a chunk is damaged, is not what the metadata says, or chunks overlap or leave a hole.
        """
        shape = tensor.shape[len(index) :] or (1,)
        wanted = [(0, shape[0])] if spans is None else [(a, b) for a, b in spans if b > a]
        if 0 in shape:
            yield from ((a, np.empty((b - a, *shape[1:]), words(tensor.dtype)), 0) for a, b in wanted)
            return
        pieces = self._pieces(tensor, index, wanted)
        row_bytes = prod(shape[1:]) * DTYPE_BYTES[tensor.dtype]
        most = max(1, self._block_bytes // row_bytes)
        block, side = self._take(min(most, shape[0]) * row_bytes), self._take(0)
        try:
            for first, last, band in _bands(tensor, shape, wanted, pieces):
                for row in range(first, last, most):
                    count = min(most, last - row)
                    out = block[: count * row_bytes].view(words(tensor.dtype)).reshape(count, *shape[1:])
                    crc = None
                    if len(band) == 1:
                        crc = band[0].read(row, out)
                    else:
                        largest = max(prod(piece.sizes[1:]) for piece in band) * DTYPE_BYTES[tensor.dtype] * count
                        if side.size < largest:
                            side = np.empty(largest, np.uint8)
                        for piece in band:
                            piece.read_beside(row, out, side)
                    yield row, out, crc
                for piece in band:
                    if piece.last <= last:
                        piece.finish()
            for piece in pieces:
                piece.finish()
        finally:
            for piece in pieces:
                piece.close()
            self._spare += [block, side]

    def whole(self, tensor: GlobalTensor) -> Words:
        """All of a small tensor.

        Raises:
            ConvertError: as `rows`.
        """
        out: Words = np.empty(tensor.shape or (1,), words(tensor.dtype))
        for first, part, _ in self.rows(tensor):
            out[first : first + len(part)] = part
        return out.reshape(tensor.shape)

    def same_bits(self, one: GlobalTensor, other: GlobalTensor) -> bool:
        """Whether two tensors are of one shape and type and have the same bits."""
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        if _same_places(one, other):
            return True
        # Chunks of the two may differ: what both have of a block is compared.
        left, right = self.rows(one), self.rows(other)
        at, mine, _ = next(left, (0, None, None))
        there, theirs, _ = next(right, (0, None, None))
        while mine is not None and theirs is not None:
            low, high = max(at, there), min(at + len(mine), there + len(theirs))
            if not np.array_equal(mine[low - at : high - at], theirs[low - there : high - there]):
                return False
            if at + len(mine) == high:
                at, mine, _ = next(left, (0, None, None))
            if there + len(theirs) == high:
                there, theirs, _ = next(right, (0, None, None))
        return True

    def _take(self, nbytes: int) -> Words:
        """A spare buffer of at least `nbytes`, or a new one that serves other steps too."""
        with self._lock:
            for number, buffer in enumerate(self._spare):
                if buffer.size >= nbytes:
                    return self._spare.pop(number)
            self._spare[:] = self._spare[:-1]
        return np.empty(max(nbytes, self._block_bytes), np.uint8)

    def _open(self, chunk: Chunk, index: tuple[int, ...]) -> Stored:
        if prod(chunk.sizes[: len(index)]) == 1:
            return chunk.open()
        with self._lock:  # other places of this chunk will come
            if id(chunk) not in self._opened:
                self._opened[id(chunk)] = chunk, chunk.open()
            return self._opened[id(chunk)][1]

    def _pieces(self, tensor: GlobalTensor, index: tuple[int, ...], wanted: Sequence[Span]) -> list[Piece]:
        pieces = []
        axes = len(index)
        for chunk in tensor.chunks:
            if not all(o <= i < o + s for i, o, s in zip(index, chunk.offsets, chunk.sizes, strict=False)):
                continue
            offsets, sizes = chunk.offsets[axes:] or (0,), chunk.sizes[axes:] or (1,)
            rows = sum(max(0, min(b, offsets[0] + sizes[0]) - max(a, offsets[0])) for a, b in wanted if a < b)
            if not rows or 0 in sizes:
                continue
            stored = self._open(chunk, index)
            if stored.shape != chunk.sizes or stored.dtype != tensor.dtype:
                raise ConvertError(
                    f"{_place(tensor, stored)}: the shard at {chunk.offsets} holds {stored.dtype} "
                    f"{list(stored.shape)}, the metadata {tensor.dtype} {list(chunk.sizes)}: damaged. "
                    "Copy the checkpoint again."
                )
            place = tuple(i - o for i, o in zip(index, chunk.offsets, strict=False))
            pieces.append(Piece(self._checks, chunk.offsets, offsets, sizes, stored, place, rows))
        return sorted(pieces, key=lambda piece: piece.offsets)


def _same_places(one: GlobalTensor, other: GlobalTensor) -> bool:
    """Whether both are the same bytes of the same files, as tied weights are in what torch.save wrote."""
    return len(one.chunks) == len(other.chunks) and all(
        (a.offsets, a.sizes) == (b.offsets, b.sizes) and _is_same_file_part(a.open(), b.open())
        for a, b in zip(one.chunks, other.chunks, strict=True)
    )


def _is_same_file_part(one: Stored, other: Stored) -> bool:
    return isinstance(one, StoredTensor) and one == other


def _bands(
    tensor: GlobalTensor, shape: tuple[int, ...], wanted: Sequence[Span], pieces: Sequence[Piece]
) -> Iterator[tuple[int, int, list[Piece]]]:
    """Rows [first, last) that the same pieces hold, whose columns make whole rows; all wanted rows are in one."""
    edges = sorted({edge for piece in pieces for edge in (piece.offsets[0], piece.last)})
    waiting, active, edge = list(reversed(pieces)), list[Piece](), 0
    for low, high in wanted:
        while edge < len(edges) and edges[edge] <= low:
            edge += 1
        after = edge
        while after < len(edges) and edges[after] < high:
            after += 1
        for first, last in pairwise([low, *edges[edge:after], high]):
            while waiting and waiting[-1].offsets[0] < last:
                active.append(waiting.pop())
            active = [piece for piece in active if piece.last > first]
            _check_band(tensor, shape, first, last, active)
            yield first, last, active


def _check_band(
    tensor: GlobalTensor, shape: tuple[int, ...], first: int, last: int, band: Sequence[Piece]
) -> None:
    ordered = sorted(band, key=lambda piece: piece.offsets[1:])
    for number, one in enumerate(ordered):
        for other in islice(ordered, number + 1, None):
            if one.box and other.box[0].start >= one.box[0].stop:
                break
            if all(a.start < b.stop and b.start < a.stop for a, b in zip(one.box, other.box, strict=True)):
                raise ConvertError(
                    f"{_place(tensor, one.stored)}: shards at {one.where} and {other.where} overlap: the metadata "
                    "is damaged. "
                    "Copy the checkpoint again."
                )
    inside = all(box.stop <= n for piece in band for box, n in zip(piece.box, shape[1:], strict=True))
    held, whole = sum(prod(piece.sizes[1:]) for piece in band), prod(shape[1:])
    if held != whole or not inside:
        place = _place(tensor, band[0].stored if band else None)
        raise ConvertError(
            f"{place}: the shards hold {held} of {whole} elements of the "
            f"rows {first} to {last}: a shard is missing from the checkpoint. Copy it again, or take another step."
        )


def _place(tensor: GlobalTensor, stored: Stored | None) -> str:
    """File and tensor, for messages."""
    return f"{stored.storage.path}: {tensor.name}" if isinstance(stored, StoredTensor) else tensor.name
