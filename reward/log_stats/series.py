"""The numbers of each data source, in arrays: memory grows by some 40 bytes a row, not with the texts."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable

from reward.log_stats.reading import STATUSES, Row

_MOST_SOURCES = 500
OTHERS = "(other data sources)"
_MOST_REASONS = 50
OTHER_REASONS = "(other reasons)"
# Beside those of the lines: the reward model's score was no finite number.
NON_FINITE = "non_finite"
_KINDS = (*STATUSES, NON_FINITE)
OK = _KINDS.index("ok")
# Attempts, seconds, ports and addresses differ in what is the same reason.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")


class Series:
    """Rows in the order in which they were read.

    Attributes:
        statuses: rows for each status, those with a score that is not finite under NON_FINITE.
        scores, times, lengths, latencies: one value for each row; NaN where there is none. Times are those at
            which the calls began.
        kinds: the status of each row (see :meth:`of_kind`); ``cut`` is 1 where the score was clamped.
        reasons: rows for each reason why there is no score, as (status, the first text of its kind).
    """

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.clamped = self.truncated = self.retried = self.retries = 0
        self.scores, self.times = array("d"), array("d")
        self.lengths, self.latencies = array("d"), array("d")
        self.kinds, self.cut = array("b"), array("b")
        self.reasons: Counter[tuple[str, str]] = Counter()
        self._first_texts: dict[tuple[str, str], str] = {}

    def add(self, row: Row) -> None:
        """Take the numbers of a row."""
        status = NON_FINITE if row.non_finite else row.status
        cut = row.clamped and row.score is not None
        self.statuses[status] += 1
        self.clamped += cut
        self.truncated += row.truncated
        self.retried += row.attempts > 1
        self.retries += max(0, row.attempts - 1)
        self.scores.append(_or_nan(row.score))
        self.times.append(_or_nan(row.time))
        self.lengths.append(_or_nan(row.response_len))
        self.latencies.append(_or_nan(row.latency_s))
        self.kinds.append(_KINDS.index(status))
        self.cut.append(cut)
        if row.error:
            self._tell(status, row.error, 1)

    def extend(self, other: Series) -> None:
        """Take all rows of another series."""
        self.statuses.update(other.statuses)
        self.clamped += other.clamped
        self.truncated += other.truncated
        self.retried += other.retried
        self.retries += other.retries
        self.scores.extend(other.scores)
        self.times.extend(other.times)
        self.lengths.extend(other.lengths)
        self.latencies.extend(other.latencies)
        self.kinds.extend(other.kinds)
        self.cut.extend(other.cut)
        for (status, text), count in other.reasons.items():
            self._tell(status, text, count)

    def _tell(self, status: str, text: str, count: int) -> None:
        key = (status, _VARYING.sub("#", text))
        if key not in self._first_texts and len(self._first_texts) >= _MOST_REASONS:
            text = OTHER_REASONS
        else:
            text = self._first_texts.setdefault(key, text)
        self.reasons[status, text] += count

    @property
    def rows(self) -> int:
        """Lines, also those without a score."""
        return self.statuses.total()

    def of_kind(self, *statuses: str) -> list[int]:
        """Indices of the rows with one of these statuses, or NON_FINITE."""
        wanted = {_KINDS.index(status) for status in statuses}
        return [index for index, kind in enumerate(self.kinds) if kind in wanted]

    def judged(self) -> list[int]:
        """Indices of the rows whose score the reward model gave."""
        return self.of_kind("ok")

    def in_time(self) -> list[int]:
        """Indices of the rows by time; as they were read where a row does not tell its time."""
        if any(math.isnan(time) for time in self.times):
            return list(range(len(self.times)))
        return sorted(range(len(self.times)), key=self.times.__getitem__)

    def judged_pairs(self, order: Iterable[int]) -> tuple[list[float], list[float]]:
        """(scores, response lengths) that the reward model gave, where the length is known."""
        kept = [index for index in order if self.kinds[index] == OK and not math.isnan(self.lengths[index])]
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
