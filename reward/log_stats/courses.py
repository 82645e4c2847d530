"""Where rows stand on the time axis that all data sources share, and their medians along it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reward.log_stats.figures import quantile
from reward.log_stats.series import Series

_MOST_PARTS, _ROWS_IN_A_PART = 40, 8


@dataclass(frozen=True)
class Span:
    """One axis for all data sources: times since the first call, or places in the order of reading.

    Attributes:
        zero, unit: seconds; None where a row does not tell its time.
        low, high: where the axis begins and ends, a little beyond the rows.
    """

    label: str
    zero: float | None
    unit: float
    low: float
    high: float

    def places(self, series: Series) -> list[float]:
        """One for each row of the series."""
        if self.zero is None:
            return [float(place) for place in range(series.rows)]
        return [(time - self.zero) / self.unit for time in series.times]


def time_axis(drawn: Sequence[Series]) -> Span:
    """That of these series, of one or more rows each; with times only where every row tells its time."""
    if any(math.isnan(time) for series in drawn for time in series.times):
        return _span(
            "row of this data source (not every row tells its time)", None, 1.0, max(s.rows for s in drawn) - 1
        )
    first = min(min(series.times) for series in drawn)
    length = max(max(series.times) for series in drawn) - first
    unit, name = (3600.0, "hours") if length > 7200 else (60.0, "minutes") if length > 120 else (1.0, "seconds")
    return _span(f"{name} from the first call to the start of each", first, unit, length / unit)


def _span(label: str, zero: float | None, unit: float, length: float) -> Span:
    room = 0.02 * length or 0.5
    return Span(label, zero, unit, -room, length + room)


class Course(NamedTuple):
    """Parts of the time that have rows: the mean place of their rows, median and the 10 and 90 % quantiles."""

    at: list[float]
    median: list[float]
    low: list[float]
    high: list[float]


def medians(dots: Sequence[tuple[float, float]], axis: Span) -> Course:
    """Of (place, value) in equal parts of the axis, fewer for few rows; a part without rows has no point."""
    bins = min(_MOST_PARTS, max(1, len(dots) // _ROWS_IN_A_PART))
    parts: dict[int, list[tuple[float, float]]] = {}
    for place, value in dots:
        share = (place - axis.low) / (axis.high - axis.low)
        parts.setdefault(min(bins - 1, int(share * bins)), []).append((place, value))
    course = Course([], [], [], [])
    for number in sorted(parts):
        ordered = sorted(value for _, value in parts[number])
        course.at.append(math.fsum(place for place, _ in parts[number]) / len(ordered))
        course.median.append(quantile(ordered, 0.5))
        course.low.append(quantile(ordered, 0.1))
        course.high.append(quantile(ordered, 0.9))
    return course
