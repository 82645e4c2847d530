"""The numbers of each data source, in arrays: memory grows by some 40 bytes a row, not with the texts."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable

from reward.log_stats.reading import Row

_MOST_SOURCES = 500
OTHERS = "(other data sources)"


class Series:
    """Rows in the order in which they were read.

    Attributes:
        statuses: rows for each status.
        scores, times, lengths, latencies: one value for each number that the trainer got; NaN where the row does
            not tell it. ``judged`` is 1 where the reward model gave the score, 0 for a penalty.
    """

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.clamped = self.truncated = self.retried = self.retries = self.non_finite = 0
        self.scores, self.times = array("d"), array("d")
        self.lengths, self.latencies = array("d"), array("d")
        self.judged = array("b")

    def add(self, row: Row) -> None:
        """Take the numbers of a row."""
        self.statuses[row.status] += 1
        self.clamped += row.clamped
        self.truncated += row.truncated
        self.non_finite += row.non_finite
        self.retried += row.attempts > 1
        self.retries += max(0, row.attempts - 1)
        if row.score is not None:
            self.scores.append(row.score)
            self.times.append(_or_nan(row.time))
            self.lengths.append(_or_nan(row.response_len))
            self.latencies.append(_or_nan(row.latency_s))
            self.judged.append(row.status == "ok")

    def extend(self, other: Series) -> None:
        """Take all rows of another series."""
        self.statuses.update(other.statuses)
        self.clamped += other.clamped
        self.truncated += other.truncated
        self.non_finite += other.non_finite
        self.retried += other.retried
        self.retries += other.retries
        self.scores.extend(other.scores)
        self.times.extend(other.times)
        self.lengths.extend(other.lengths)
        self.latencies.extend(other.latencies)
        self.judged.extend(other.judged)

    @property
    def rows(self) -> int:
        """Lines, also those without a score."""
        return self.statuses.total()

    def in_time(self) -> list[int]:
        """Indices of the numbers by time; as they were read where a row does not tell its time."""
        if any(math.isnan(time) for time in self.times):
            return list(range(len(self.times)))
        return sorted(range(len(self.times)), key=self.times.__getitem__)

    def judged_pairs(self, order: Iterable[int]) -> tuple[list[float], list[float]]:
        """(scores, response lengths) that the reward model gave, where the length is known."""
        kept = [index for index in order if self.judged[index] and not math.isnan(self.lengths[index])]
        return [self.scores[index] for index in kept], [self.lengths[index] for index in kept]


class SourceTable:
    """A series for each data source, in the order in which they came; those beyond a bound share one."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}

    def add(self, row: Row) -> None:
        """Take the numbers of a row."""
        name = row.data_source
        if name not in self.series and len(self.series) >= _MOST_SOURCES:
            name = OTHERS
        self.series.setdefault(name, Series()).add(row)

    def together(self) -> Series:
        """All data sources as one."""
        whole = Series()
        for one in self.series.values():
            whole.extend(one)
        return whole


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
