"""Which rows go where: duplicates out, sources blended, shuffled, split, leakage out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.options import Options
from data_prep.planning.blend import blend
from data_prep.planning.duplicates import DuplicateIndex, RepeatFigures
from data_prep.planning.order import Mask, Ranks, drawn, emit, nowhere, shuffled, unranked
from data_prep.planning.split import last_places, spaced_places, test_rows
from data_prep.spool import Spool

# The hash that draws rows of a source must not be the one that orders them: those drawn would come first.
_DRAW = 0x5851F42D4C957F2D


@dataclass
class PartFigures:
    """What became of the rows of a part: a source, or a file with test rows.

    Attributes:
        rows: in the spool; the sum of all others.
        dropped: by the caller.
        duplicates: with the prompt of an earlier row, removed.
        leaked: with the prompt of a test row, removed.
        unused: left over when the blend ended.
        train, test: written.
    """

    rows: int
    dropped: int = 0
    duplicates: int = 0
    leaked: int = 0
    unused: int = 0
    train: int = 0
    test: int = 0


@dataclass(frozen=True)
class Plan:
    """Where each row goes.

    Attributes:
        train, test: the rows of each split, by row id.
        ranks: place in the order by row id; None: as the rows came.
        parts: what became of the rows of each part.
        repeats: what is repeated in the rows that are written.
    """

    train: Mask
    test: Mask
    ranks: Ranks | None
    parts: list[PartFigures]
    repeats: RepeatFigures

    def emit(self, spool: Spool) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
        """The rows for the training file and for the test file, each in their order, in bounded memory."""
        for batch, ids in emit(spool, self.train | self.test, self.ranks):
            yield _chosen(batch, self.train[ids]), _chosen(batch, self.test[ids])


def _chosen(batch: pa.RecordBatch, mask: NDArray[np.bool_]) -> pa.RecordBatch | None:
    if mask.all():
        return batch
    return batch.filter(pa.array(mask)) if mask.any() else None


def make_plan(
    part_rows: Sequence[int],
    train_parts: int,
    weights: Sequence[Fraction | None],
    options: Options,
    dropped: Mask | None,
    index: DuplicateIndex,
) -> Plan:
    """Decide about every row of the spool.

    Args:
        part_rows: rows of each part: the sources, then the files with test rows, which keep their order.
        train_parts: how many parts are sources.
        weights: of each source; all None: all rows of one source after the other.
        options: ``remove_duplicates``, ``remove_leakage``, ``test_size``, ``test_last`` and ``shuffle``.
        dropped: rows that are left out anyway, by row id.
        index: keys of all rows.

    Raises:
        DataError: a split gets no row, or a source with a weight has none.
    """
    return _Planner(part_rows, train_parts, dropped, index).plan(weights, options)


class _Planner:
    def __init__(
        self, part_rows: Sequence[int], train_parts: int, dropped: Mask | None, index: DuplicateIndex
    ) -> None:
        ends = np.cumsum([0, *part_rows]).tolist()
        self._spans = [slice(start, end) for start, end in pairwise(ends)]
        self._sources = self._spans[:train_parts]
        self._has_test_parts = train_parts < len(part_rows)
        self._end_of_sources = ends[train_parts]
        self._index = index
        self._figures = [PartFigures(rows) for rows in part_rows]
        self._alive = np.ones(ends[-1], np.bool_)
        if dropped is not None:
            self._remove(dropped, "dropped")

    def plan(self, weights: Sequence[Fraction | None], options: Options) -> Plan:
        if options.remove_duplicates is not None:
            # Each split by itself: what they share is leakage.
            self._remove(self._index.repeats(options.remove_duplicates, self._of_sources()), "duplicates")
            self._remove(self._index.repeats(options.remove_duplicates, self._of_test_parts()), "duplicates")
        if options.remove_leakage is not None and self._has_test_parts:
            # Before the blend, which then has the shares that were asked for.
            leaked = self._index.leaked(options.remove_leakage, self._of_sources(), self._of_test_parts())
            self._remove(leaked, "leaked")
        ranks = self._ranks(weights, options)
        test = self._test(options, ranks)
        if options.remove_leakage is not None and not self._has_test_parts:
            self._remove(self._index.leaked(options.remove_leakage, self._alive & ~test, test), "leaked")
        train = self._alive & ~test
        self._check(train, test, options)
        for span, figures in zip(self._spans, self._figures, strict=True):
            figures.train, figures.test = int(train[span].sum()), int(test[span].sum())
        return Plan(train, test, ranks, self._figures, self._index.figures(train, test))

    def _remove(self, rows: Mask, why: str) -> None:
        """Take out ``rows``, all of which are there still, and count them."""
        for span, figures in zip(self._spans, self._figures, strict=True):
            setattr(figures, why, getattr(figures, why) + int(rows[span].sum()))
        self._alive &= ~rows

    def _of_sources(self) -> Mask:
        rows: Mask = self._alive.copy()
        rows[self._end_of_sources :] = False
        return rows

    def _of_test_parts(self) -> Mask:
        rows: Mask = self._alive.copy()
        rows[: self._end_of_sources] = False
        return rows

    def _ranks(self, weights: Sequence[Fraction | None], options: Options) -> Ranks | None:
        given = [weight for weight in weights if weight is not None]
        if given and len(given) != len(weights):
            raise DataError(
                "--weight: some sources have a weight and some have none: give it for all or for none."
            )
        # A single source has nothing to be mixed with.
        blended = self._blend(given, options.shuffle) if len(given) > 1 else None
        if options.shuffle is None:
            return blended
        ranks = shuffled(self._of_sources(), options.shuffle)
        self._rank_test_parts(ranks)
        return ranks

    def _blend(self, weights: list[Fraction], seed: int | None) -> Ranks:
        rows = [int(self._alive[span].sum()) for span in self._sources]
        for number, count in enumerate(rows):
            if not count:
                raise DataError(
                    f"--weight {weights[number]} for source {number + 1} of {len(rows)}, of which no row is left: "
                    "a blend has rows of each source. Leave the source out."
                )
        used, turns = blend(rows, weights)
        ranks = unranked(len(self._alive))
        unused = np.zeros(len(self._alive), np.bool_)
        for number, span in enumerate(self._sources):
            ids = np.flatnonzero(self._alive[span]) + span.start
            # Without a shuffle the first ones, in their order; with one, a sample of all.
            chosen = (
                np.arange(len(ids)) < used[number]
                if seed is None
                else drawn(len(ids), used[number], seed ^ _DRAW ^ number)
            )
            unused[ids[~chosen]] = True
            ranks[ids[chosen]] = np.flatnonzero(turns == number)
        self._remove(unused, "unused")
        self._rank_test_parts(ranks)
        return ranks

    def _rank_test_parts(self, ranks: Ranks) -> None:
        tests = np.flatnonzero(self._of_test_parts())
        ranks[tests] = np.arange(len(self._alive) - len(tests), len(self._alive), dtype=ranks.dtype)

    def _test(self, options: Options, ranks: Ranks | None) -> Mask:
        if self._has_test_parts:
            return self._of_test_parts()
        test = np.zeros(len(self._alive), np.bool_)
        total = int(self._alive.sum())
        try:
            if options.test_size is not None:
                places = spaced_places(total, test_rows(total, options.test_size))
            elif options.test_last is not None:
                places = last_places(total, options.test_last)
            else:
                return test
        except DataError as error:
            raise DataError(f"{error} Of these sources: {self._story()}.") from error
        if ranks is None:
            test[np.flatnonzero(self._alive)[places]] = True
        else:
            chosen = np.zeros(total, np.bool_)
            chosen[places] = True
            placed = ranks != nowhere(ranks)
            test[placed] = chosen[ranks[placed]]
        return test

    def _check(self, train: Mask, test: Mask, options: Options) -> None:
        if not train.any():
            raise DataError(f"no row is left for training: {self._story()}.")
        wanted = self._has_test_parts or options.test_size is not None or options.test_last is not None
        if wanted and not test.any():
            raise DataError(f"no row is left for the test split: {self._story()}.")

    def _story(self) -> str:
        told = [f"{len(self._alive)} rows that can be used"]
        for name, option in (
            ("dropped", "dropped"),
            ("duplicates", "removed by --remove-duplicates"),
            ("leaked", "removed by --remove-leakage"),
            ("unused", "left over by the blend"),
        ):
            if count := sum(getattr(part, name) for part in self._figures):
                told.append(f"{count} {option}")
        return ", ".join(told)
