"""Carry out one step of a plan: read its source block by block and give each block with its place.

Nothing here knows where blocks go: `merge` writes them, `verify` compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from converters.errors import ConvertError
from converters.planning.steps import LowRank, Output, Step
from converters.storage.rounding import convert, float32
from converters.storage.row_reader import Reader
from converters.storage.tensors import Words, words

_TILE = 64  # rows


@dataclass(frozen=True)
class Block:
    """Rows of one output.

    Attributes:
        words: [rows, ...] in the output's type; valid until the next block is asked for.
        crc: CRC-32 of their bytes where reading them told it.
    """

    output: Output
    first_row: int
    words: Words
    crc: int | None = None


def blocks(step: Step, reader: Reader | None = None) -> Iterator[Block]:
    """Every row of every output once; the rows of one output come in their order.

    Args:
        reader: that of all steps of a merge, so that a storage which several of them share is checked once.

    Raises:
        ConvertError: a chunk is damaged, or is not what the metadata says; a value is beyond an output's type.
    """
    reader = reader or Reader()
    added = [_Added(step, one, reader) for one in step.added]
    runs = [run for run in step.runs if run.rows]
    if any(run.source_row < before.source_row + before.rows for before, run in pairwise(runs)):
        raise ValueError(f"{step.source.name}: runs that take a row twice, or do not rise")
    number = 0
    spans = [(run.source_row, run.source_row + run.rows) for run in runs]
    for first, rows, crc in reader.rows(step.source, step.index, spans):
        while first >= spans[number][1]:
            number += 1
        run, part, dtype = runs[number], rows, step.source.dtype
        output = step.outputs[run.output]
        if added:
            numbers = float32(part, dtype, output.name).copy()
            for one in added:
                one.add_to(numbers, first)
            part, dtype, crc = numbers.view(words("F32")), "F32", None
        if dtype != output.dtype:
            part, crc = convert(part, dtype, output.dtype, output.name), None
        yield Block(output, run.output_row + first - run.source_row, part, crc)


class _Added:
    """A product of two small matrices, by rows of the weight that it is added to."""

    def __init__(self, step: Step, product: LowRank, reader: Reader) -> None:
        a, b, shape = product.a, product.b, step.source.shape[len(step.index) :]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or (b.shape[0], a.shape[1]) != shape:
            raise ConvertError(
                f"{step.source.name}: {b.name} {list(b.shape)} times {a.name} {list(a.shape)} does not have the "
                f"shape of the weight, {list(shape)}: the adapter is of another model."
            )
        self._a = float32(reader.whole(a), a.dtype, a.name)
        self._b = float32(reader.whole(b), b.dtype, b.name)
        self._scale = np.float32(product.scale)
        self._tile, self._product = -1, np.empty((0, 0), np.float32)

    def add_to(self, numbers: Words, first: int) -> None:
        """Add the rows from `first` to `numbers` [rows, in], float32.

        A row's product is always taken within the same `_TILE` rows: BLAS sums one row, a few and many in orders
        of their own, and the result is not to depend on how the rows come in blocks.
        """
        at, end = first, first + len(numbers)
        while at < end:
            tile = at // _TILE
            if tile != self._tile:
                self._tile = tile
                self._product = self._scale * (self._b[tile * _TILE : (tile + 1) * _TILE] @ self._a)
            stop = min(end, (tile + 1) * _TILE)
            numbers[at - first : stop - first] += self._product[at - tile * _TILE : stop - tile * _TILE]
            at = stop
