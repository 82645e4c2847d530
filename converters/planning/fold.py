"""A plan for people: steps that differ only in numbers of layers and experts are one entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from converters.families import Run
from converters.planning.steps import Step

# A number that is a part of a dotted name, or that ends it: experts.linear_fc1.weight12.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=weight)\d+$|(?<=bias)\d+$")

# The second type has every value of the first.
_EXACT = {("BF16", "F32"), ("F16", "F32"), ("BF16", "F64"), ("F16", "F64"), ("F32", "F64")}


class _Kind(NamedTuple):
    """What steps of one group have in common."""

    source: str
    depth: int
    source_shape: tuple[int, ...]
    dtype: str
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    runs: tuple[Run, ...]
    added: tuple[tuple[int, float], ...]


@dataclass
class Group:
    """Steps of one kind.

    Attributes:
        numbers: for the source's name, its index and each output's name: the numbers seen at each place.
    """

    first: Step
    count: int = 0
    source: list[set[int]] = field(default_factory=list)
    index: list[set[int]] = field(default_factory=list)
    outputs: list[list[set[int]]] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.count += 1
        _note(self.source, _numbers(step.source.name))
        _note(self.index, step.index)
        if not self.outputs:
            self.outputs = [[] for _ in step.outputs]
        for seen, output in zip(self.outputs, step.outputs, strict=True):
            _note(seen, _numbers(output.name))

    def source_text(self) -> str:
        """`decoder.layers.mlp.linear_fc2.weight[0..27] [2048, 6144] BF16`."""
        source = self.first.source
        place = f"[{', '.join(map(_range, self.index))}]" if self.index else ""
        shape = list(source.shape[len(self.first.index) :])
        return f"{_filled(source.name, self.source)}{place} {shape} {source.dtype}"

    def output_texts(self) -> list[str]:
        """`model.layers.{0..27}.mlp.down_proj.weight [2048, 6144] BF16`, for each output."""
        return [
            f"{_filled(output.name, seen)} {list(output.shape)} {output.dtype}"
            for output, seen in zip(self.first.outputs, self.outputs, strict=True)
        ]


def fold(steps: Iterable[Step]) -> list[Group]:
    """Steps in groups, in the order of the first of each."""
    groups: dict[_Kind, Group] = {}
    for step in steps:
        source = step.source
        kind = _Kind(
            _NUMBER.sub("#", source.name),
            len(step.index),
            source.shape[len(step.index) :],
            source.dtype,
            tuple((_NUMBER.sub("#", o.name), o.shape, o.dtype) for o in step.outputs),
            step.runs,
            tuple((product.a.shape[0], product.scale) for product in step.added),
        )
        groups.setdefault(kind, Group(step)).add(step)
    return list(groups.values())


def split_text(step: Step) -> str:
    """How the rows of the source become those of the outputs, in words."""
    rows = (step.source.shape[len(step.index) :] or (1,))[0]
    by_output = [[run for run in step.runs if run.output == n] for n in range(len(step.outputs))]
    taken = sum(run.rows for run in step.runs)
    retyped = _retyped(step)
    left = f", {rows - taken} rows of padding left out" if taken < rows else ""
    if len(step.outputs) == 1 and len(step.runs) <= 1:
        how = f"rows 0 to {taken}" if left else ("" if retyped else "as it is")
    elif all(len(runs) <= 1 for runs in by_output):
        how = f"{' + '.join(str(sum(r.rows for r in runs)) for runs in by_output)} rows, one after the other"
    else:
        first = [runs[0].rows for runs in by_output if runs]
        regular = all(run.rows == runs[0].rows for runs in by_output for run in runs)
        counts = {len(runs) for runs in by_output}
        if regular and len(counts) == 1:
            how = f"{counts.pop()} groups of {' + '.join(map(str, first))} rows"
        else:
            how = f"{len(step.runs)} runs of rows"
    for product in step.added:
        how += f", with LoRA of rank {product.a.shape[0]} times {product.scale:g}"
    return (how + left + retyped).removeprefix(", ")


def _retyped(step: Step) -> str:
    """ ", rounded to F16" where outputs have another type than the source."""
    others = sorted({output.dtype for output in step.outputs} - {step.source.dtype})
    return "".join(
        f", {'widened' if (step.source.dtype, dtype) in _EXACT else 'rounded'} to {dtype}" for dtype in others
    )


def _numbers(name: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(name)]


def _note(seen: list[set[int]], numbers: Sequence[int]) -> None:
    for place, number in enumerate(numbers):
        if place == len(seen):
            seen.append(set())
        seen[place].add(number)


def _filled(name: str, seen: list[set[int]]) -> str:
    """The name with the numbers of all: one as it is, several in braces."""
    places = iter(seen)

    def text(match: re.Match[str]) -> str:
        numbers = next(places)
        return match[0] if len(numbers) == 1 else f"{{{_range(numbers)}}}"

    return _NUMBER.sub(text, name)


def _range(numbers: set[int]) -> str:
    """0..27, or 1..3,5 where one is missing."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}..{b}" for a, b in parts)
