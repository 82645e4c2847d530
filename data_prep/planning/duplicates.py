"""Rows with the same prompt, found on disk: memory does not grow with the rows, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.options import Duplicates
from data_prep.planning.keys import KEY
from data_prep.spool import append_to

Mask = NDArray[np.bool_]
_Prompts = NDArray[np.uint64]
_Rows = NDArray[np.void]

_ROW = np.dtype([("id", "<u8"), ("key", KEY)])
# Rows with one prompt, exact or normalized, are in one partition.
_PARTITIONS = 128
_BUFFER_BYTES = 4 << 20
_ROWS_AT_ONCE = 1 << 18
_EXAMPLES = 5


@dataclass(frozen=True)
class Repeats:
    """Rows by what other rows have the same prompt.

    Attributes:
        train, test: rows whose prompt an earlier row of the same split has.
        leaked: training rows with the prompt of a test row.
        leaked_test: test rows with the prompt of a training row.
    """

    train: int
    test: int
    leaked: int
    leaked_test: int


@dataclass(frozen=True)
class RepeatFigures:
    """What is repeated in the two splits.

    Attributes:
        normalized: where white space and case do not count; includes the exact ones.
        conflicting: rows whose prompt (exact) occurs with another ground truth, too.
        examples: ids of some of them.
    """

    exact: Repeats
    normalized: Repeats
    conflicting: int
    examples: list[int]


class DuplicateIndex:
    """Keys of all rows.

    Args:
        folder: for this index alone; made if missing; who made its parent removes it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._pending: list[_Rows] = []
        self._pending_bytes = 0

    def add(self, first_id: int, keys: NDArray[np.void]) -> None:
        """Take in the keys (``KEY``) of the rows from ``first_id`` on; ids grow from call to call.

        Raises:
            DataError: the disk is full.
        """
        rows = np.empty(len(keys), _ROW)
        rows["id"] = np.arange(first_id, first_id + len(keys))
        rows["key"] = keys
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= _BUFFER_BYTES:
            self._flush()

    def repeats(self, kind: Duplicates, alive: Mask) -> Mask:
        """Rows of ``alive`` whose prompt an earlier row of ``alive`` has; both by row id."""
        found = np.zeros(len(alive), np.bool_)
        for partition in self._partitions():
            for ids, repeated in _repeats(partition, kind, alive):
                found[ids] = repeated
        return found

    def leaked(self, kind: Duplicates, train: Mask, test: Mask) -> Mask:
        """Rows of ``train`` with the prompt of a row of ``test``; all by row id."""
        found = np.zeros(len(train), np.bool_)
        for partition in self._partitions():
            for ids, shared in _shared(partition, kind, train, test):
                found[ids] = shared
        return found

    def figures(self, train: Mask, test: Mask) -> RepeatFigures:
        """What is repeated in the rows of two splits, both by row id."""
        exact, normalized = np.zeros(4, np.int64), np.zeros(4, np.int64)
        used = train | test
        conflicting = 0
        examples: list[int] = []
        for partition in self._partitions():
            exact += _counts(partition, "exact", train, test)
            normalized += _counts(partition, "normalized", train, test)
            for ids in _conflicts(partition, used):
                conflicting += len(ids)
                examples = sorted([*examples, *ids[:_EXAMPLES].tolist()])[:_EXAMPLES]
        return RepeatFigures(Repeats(*exact.tolist()), Repeats(*normalized.tolist()), conflicting, examples)

    def _flush(self) -> None:
        rows = np.concatenate([np.empty(0, _ROW), *self._pending])
        self._pending.clear()
        self._pending_bytes = 0
        numbers = rows["key"]["normal"][:, 0] % _PARTITIONS
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows[order], numbers[order]
        edges = np.searchsorted(numbers, np.arange(_PARTITIONS + 1, dtype=np.uint64)).tolist()
        for number in range(_PARTITIONS):
            if edges[number] < edges[number + 1]:
                append_to(self._path(number), rows[edges[number] : edges[number + 1]].tobytes())

    def _partitions(self) -> Iterator[_Partition]:
        if self._pending:
            self._flush()
        for number in range(_PARTITIONS):
            if self._path(number).exists():
                yield _Partition(self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"keys-{number:03d}"


class _Partition:
    """Rows of a partition, in the order of their ids."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._repeated: _Rows | None = None
        if path.stat().st_size <= _ROWS_AT_ONCE * _ROW.itemsize:
            # Nearly all rows are like no other: one cheap sort leaves the few that the rest is about.
            rows = np.fromfile(path, _ROW)
            hashes = rows["key"]["normal"][:, 0]
            order = np.argsort(hashes, kind="stable")
            same = np.diff(hashes[order]) == 0
            repeated = np.zeros(len(rows), np.bool_)
            repeated[order[1:][same]] = repeated[order[:-1][same]] = True
            self._repeated = rows[repeated]

    def chunks(self, chosen: Mask) -> Iterator[_Rows]:
        """Those of ``chosen``, some rows at a time; rows without their like may be missing."""
        if self._repeated is not None:
            yield self._repeated[chosen[self._repeated["id"]]]
            return
        with self._path.open("rb") as file:
            while len(rows := np.fromfile(file, _ROW, _ROWS_AT_ONCE)):
                yield rows[chosen[rows["id"]]]


class _Seen:
    """Different prompts; only they are kept."""

    def __init__(self) -> None:
        self._prompts: _Prompts = np.empty((0, 2), np.uint64)

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, prompts: _Prompts) -> Mask:
        """Take them in; which of them were there before, or came earlier in ``prompts``?"""
        both, order, first = self._sorted(prompts)
        repeated = np.empty(len(both), np.bool_)
        repeated[order] = ~first
        known = len(self)
        self._prompts = both[~repeated]
        return repeated[known:]

    def holds(self, prompts: _Prompts) -> Mask:
        """Which of them were taken in?"""
        both, order, first = self._sorted(prompts)
        held = np.empty(len(both), np.bool_)
        held[order] = (order[first] < len(self))[np.cumsum(first) - 1]
        return held[len(self) :]

    def _sorted(self, prompts: _Prompts) -> tuple[_Prompts, NDArray[np.int64], Mask]:
        """Those kept and ``prompts``, their order, and in that order: whether it is the first of its like."""
        both = np.concatenate([self._prompts, prompts])
        order, first = _grouped(both)
        return both, order, first


def _grouped(prompts: _Prompts) -> tuple[NDArray[np.int64], Mask]:
    order = np.lexsort((prompts[:, 1], prompts[:, 0]))
    first = np.ones(len(order), np.bool_)
    first[1:] = (prompts[order[1:]] != prompts[order[:-1]]).any(axis=1)
    return order, first


def _prompts(rows: _Rows, kind: Duplicates) -> _Prompts:
    return np.ascontiguousarray(rows["key"]["exact" if kind == "exact" else "normal"])


def _repeats(partition: _Partition, kind: Duplicates, chosen: Mask) -> Iterator[tuple[_Prompts, Mask]]:
    """(ids, whether an earlier row of ``chosen`` has the prompt) of rows of ``chosen``."""
    seen = _Seen()
    for rows in partition.chunks(chosen):
        yield rows["id"], seen.add(_prompts(rows, kind))


def _shared(partition: _Partition, kind: Duplicates, ours: Mask, others: Mask) -> Iterator[tuple[_Prompts, Mask]]:
    """(ids, whether a row of ``others`` has the prompt) of rows of ``ours``."""
    seen = _Seen()
    for rows in partition.chunks(others):
        seen.add(_prompts(rows, kind))
    for rows in partition.chunks(ours) if len(seen) else ():
        yield rows["id"], seen.holds(_prompts(rows, kind))


def _counts(partition: _Partition, kind: Duplicates, train: Mask, test: Mask) -> list[int]:
    found = (
        _repeats(partition, kind, train),
        _repeats(partition, kind, test),
        _shared(partition, kind, train, test),
        _shared(partition, kind, test, train),
    )
    return [sum(int(marks.sum()) for _, marks in each) for each in found]


def _conflicts(partition: _Partition, chosen: Mask) -> Iterator[_Prompts]:
    """Ids of rows whose prompt occurs with another ground truth, too."""
    prompts: _Prompts = np.empty((0, 2), np.uint64)
    lowest = highest = np.empty(0, np.uint64)
    for rows in partition.chunks(chosen):
        # Of the ground truths of a prompt, the lowest and the highest number are enough to know.
        prompts = np.concatenate([prompts, _prompts(rows, "exact")])
        lowest = np.concatenate([lowest, rows["key"]["truth"]])
        highest = np.concatenate([highest, rows["key"]["truth"]])
        if len(prompts):
            order, first = _grouped(prompts)
            starts = np.flatnonzero(first)
            prompts = prompts[order[starts]]
            lowest = np.minimum.reduceat(lowest[order], starts)
            highest = np.maximum.reduceat(highest[order], starts)
    conflicting = _Seen()
    conflicting.add(prompts[lowest != highest])
    for rows in partition.chunks(chosen) if len(conflicting) else ():
        yield rows["id"][conflicting.holds(_prompts(rows, "exact"))]
