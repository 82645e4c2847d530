"""Carry out one step of a plan: read its source block by block and give each block with its place.

Nothing here knows where blocks go: `merge` writes them, `verify` compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from converters.errors import ConvertError
from converters.plan import LowRank, Output, Step
from converters.rounding import convert, float32
from converters.row_reader import Reader, Span
from converters.tensors import Words, words


@dataclass(frozen=True)
class Block:
    """Rows of one output. `words` [rows, ...] is the output's type and valid until the next block is asked for."""

    output: Output
    first_row: int
    words: Words


def blocks(step: Step, reader: Reader | None = None) -> Iterator[Block]:
    """Every row of every output once; the rows of one output come in their order.

    Args:
        reader: that of all steps of a merge, so that a storage which several of them share is checked once.

    Raises:
        ConvertError: a chunk is damaged, or is not what the metadata says; a value is beyond an output's type.
    """
    reader = reader or Reader()
    added = [_Added(step, one, reader) for one in step.added]
    first_run = 0
    for first, rows in reader.rows(step.source, step.index, _spans(step)):
        last = first + len(rows)
        while first_run < len(step.runs) and _end(step, first_run) <= first:
            first_run += 1
        for number in range(first_run, len(step.runs)):
            run = step.runs[number]
            if run.source_row >= last:
                break
            low, high = max(first, run.source_row), min(last, run.source_row + run.rows)
            if low >= high:
                continue
            part, dtype, output = rows[low - first : high - first], step.source.dtype, step.outputs[run.output]
            if added:
                numbers = float32(part, dtype, output.name).copy()
                for one in added:
                    one.add_to(numbers, low)
                part, dtype = numbers.view(words("F32")), "F32"
            part = convert(part, dtype, output.dtype, output.name)
            yield Block(output, run.output_row + low - run.source_row, part)


def _end(step: Step, run: int) -> int:
    return step.runs[run].source_row + step.runs[run].rows


def _spans(step: Step) -> list[Span]:
    """Rows of the source that a run takes."""
    spans: list[Span] = []
    for run in step.runs:
        end = run.source_row + run.rows
        if spans and run.source_row <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((run.source_row, end))
    return spans


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

    def add_to(self, numbers: Words, first: int) -> None:
        """Add the rows from `first` to `numbers` [rows, in], float32."""
        numbers += self._scale * (self._b[first : first + len(numbers)] @ self._a)
