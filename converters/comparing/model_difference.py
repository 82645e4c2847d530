"""Two Hugging Face models tensor by tensor: which names, shapes, types and bits differ, and by how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any

import numpy as np

from converters.comparing.shard_ranges import OpenTensor, place_in
from converters.comparing.values import Numbers, numbers
from converters.hf.names import EMBED, HEAD
from converters.storage.tensors import GlobalTensor, Words

_BLOCK = 1 << 20  # elements; with their float64 values of both sides about 60 MB


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same.

    Attributes:
        atol, rtol: |a - b| <= atol + rtol * |b| for every element, and NaN only where the other has it; None:
            bit for bit.
        ignore_dtype: compare values across types.
    """

    atol: float | None = None
    rtol: float | None = None
    ignore_dtype: bool = False

    @property
    def by_value(self) -> bool:
        return self.atol is not None or self.rtol is not None

    def beyond(self, a: Numbers, b: Numbers) -> Any:
        """Mask of the elements that differ by more."""
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= (self.atol or 0.0) + (self.rtol or 0.0) * np.abs(b)
        return ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))


@dataclass
class Difference:
    """A tensor whose elements are not the same on both sides.

    Attributes:
        differing: elements whose bits differ (across types: whose values differ).
        beyond: those of them outside the tolerance; without one, all.
        max_abs: the largest |a - b| where both are numbers.
        max_rel: the largest |a - b| / |b| where b is not 0 either.
        nan_a, nan_b: NaNs of each side in the blocks that differ.
        first: index of the first element that differs.
    """

    name: str
    shape: tuple[int, ...]
    dtype_a: str
    dtype_b: str
    elements: int
    differing: int = 0
    beyond: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    nan_a: int = 0
    nan_b: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, a: Numbers, b: Numbers, differ: Any, tolerance: Tolerance) -> None:
        """Take one block that is not the same into account."""
        self.differing += int(np.count_nonzero(differ))
        self.beyond += int(np.count_nonzero(tolerance.beyond(a, b) if tolerance.by_value else differ))
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        self.nan_a += int(np.count_nonzero(nan_a))
        self.nan_b += int(np.count_nonzero(nan_b))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            gap = np.where(a == b, 0.0, np.abs(a - b))
            relative = np.where(b == 0, 0.0, gap / np.abs(b))
        self.max_abs = max(self.max_abs, _largest(gap))
        self.max_rel = max(self.max_rel, _largest(relative))

    @property
    def worst(self) -> tuple[float, float, int]:
        """The larger, the worse: NaN on one side only, then the largest difference."""
        return (inf if self.nan_a != self.nan_b else self.max_abs, self.max_rel, self.differing)


@dataclass
class ModelDifference:
    """What was found; `same` when nothing counts.

    Attributes:
        only_a, only_b: names that the other side lacks.
        shapes, dtypes: a line each.
        different: tensors outside the tolerance, the worst first.
        near: tensors whose bits differ within it.
        same: tensors with the same bits (across types: values).
    """

    tensors_a: int
    tensors_b: int
    bytes_a: int
    bytes_b: int
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)
    near: list[Difference] = field(default_factory=list)
    same: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        return not (self.only_a or self.only_b or self.shapes or self.dtypes or self.different)


def compare_models(
    a: Mapping[str, GlobalTensor],
    b: Mapping[str, GlobalTensor],
    tolerance: Tolerance,
    tied: tuple[bool | None, bool | None] = (None, None),
) -> ModelDifference:
    """Compare by name; how the tensors are spread over files does not matter.

    Args:
        a, b: `hf_model.read_index` of each side.
        tied: tie_word_embeddings of each side's config.json, None where it is silent.

    Raises:
        ConvertError, OSError: a file cannot be read.
    """
    bytes_a, bytes_b = (sum(tensor.nbytes for tensor in side.values()) for side in (a, b))
    result = ModelDifference(len(a), len(b), bytes_a, bytes_b)
    result.only_a = [name for name in a if name not in b]
    result.only_b = [name for name in b if name not in a]
    _untie(result, a, b, tied)
    type_pairs: Counter[tuple[str, str]] = Counter()
    for name, tensor in a.items():
        other = b.get(name)
        if other is None:
            continue
        if tensor.shape != other.shape:
            result.shapes.append(f"{name}: {list(tensor.shape)} in A, {list(other.shape)} in B")
        elif tensor.dtype != other.dtype and not tolerance.ignore_dtype:
            type_pairs[tensor.dtype, other.dtype] += 1
            result.dtypes.append(f"{name}: {tensor.dtype} in A, {other.dtype} in B")
        else:
            difference = compare_tensors(tensor, other, tolerance)
            if difference is None:
                result.same += 1
            elif difference.beyond:
                result.different.append(difference)
            else:
                result.near.append(difference)
    for (one, two), count in type_pairs.items():
        result.notes.append(f"{count} tensors are {one} in A and {two} in B: --ignore-dtype compares their values")
    result.different.sort(key=lambda difference: difference.worst, reverse=True)
    result.near.sort(key=lambda difference: difference.worst, reverse=True)
    return result


def compare_tensors(a: GlobalTensor, b: GlobalTensor, tolerance: Tolerance) -> Difference | None:
    """None if every element is the same; both have one shape. Memory: a block of each side."""
    found = Difference(a.name, a.shape, a.dtype, b.dtype, 0)
    with OpenTensor(a) as one, OpenTensor(b) as other:
        found.elements = one.elements
        for begin in range(0, one.elements, _BLOCK):
            count = min(_BLOCK, one.elements - begin)
            words_a, words_b = one.read(begin, count), other.read(begin, count)
            if a.dtype == b.dtype and np.array_equal(words_a, words_b):
                continue
            values_a, values_b = numbers(words_a, a.dtype), numbers(words_b, b.dtype)
            differ = _differ(words_a, words_b, values_a, values_b, a.dtype == b.dtype)
            if not differ.any():
                continue
            if not found.differing:
                found.first = place_in(a, begin + int(np.flatnonzero(differ)[0]))
            found.add(values_a, values_b, differ, tolerance)
    return found if found.differing else None


def _differ(words_a: Words, words_b: Words, a: Numbers, b: Numbers, same_type: bool) -> Any:
    if same_type:
        return words_a != words_b
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))


def _largest(values: Numbers) -> float:
    """The largest number; NaN (from a NaN, or 0 / 0) does not count."""
    largest = float(np.fmax.reduce(values, initial=0.0))
    return 0.0 if isnan(largest) else largest


def _untie(
    result: ModelDifference,
    a: Mapping[str, GlobalTensor],
    b: Mapping[str, GlobalTensor],
    tied: tuple[bool | None, bool | None],
) -> None:
    """A head that equals the embedding says no more than its absence in a tied model."""
    for side, holder, lacks, only, other_tied in (
        ("A", a, "B", result.only_a, tied[1]),
        ("B", b, "A", result.only_b, tied[0]),
    ):
        if HEAD not in only or EMBED not in holder:
            continue
        head, embedding = holder[HEAD], holder[EMBED]
        if (head.shape, head.dtype) != (embedding.shape, embedding.dtype):
            continue
        if compare_tensors(head, embedding, Tolerance()) is not None:
            result.notes.append(f"{HEAD} of {side} is not its embedding: it is untied, and {lacks} has no head")
        elif other_tied is False:
            result.notes.append(f"{lacks} has no {HEAD}, and its config.json says tie_word_embeddings false")
        else:
            only.remove(HEAD)
            result.notes.append(f"{HEAD} of {side} is its embedding, bit for bit; {lacks} is tied: the same model")
