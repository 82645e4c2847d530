"""Carry out one step of a plan: read its source block by block and give each block with its place.

Nothing here knows where blocks go: `merge` writes them, `verify` compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from converters.plan import Output, Step
from converters.tensors import Words


@dataclass(frozen=True)
class Block:
    """Rows of one output. `words` [rows, ...] is the output's type and valid until the next block is asked for."""

    output: Output
    first_row: int
    words: Words


def blocks(step: Step) -> Iterator[Block]:
    """Every row of every output once; the rows of one output come in their order.

    Raises:
        ConvertError: a chunk is damaged, or is not what the metadata says.
    """
    rest = step.source.shape[len(step.index) :]
    start = (*step.index, *(0 for _ in rest))
    stop = (*(place + 1 for place in step.index), *rest)
    tensor = step.source.read(start, stop).reshape(rest if rest else (1,))
    for run in step.runs:
        part = tensor[run.source_row : run.source_row + run.rows]
        yield Block(step.outputs[run.output], run.output_row, part)
