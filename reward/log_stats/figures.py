"""What a series of rewards amounts to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reward.log_stats.reading import STATUSES
from reward.log_stats.series import NON_FINITE, Series

_MOST_REASONS = 5


@dataclass(frozen=True)
class Spread:
    """Of ``count`` numbers: ``std`` is that of the numbers themselves (divided by count), p5 to p95 quantiles."""

    count: int
    mean: float
    std: float
    min: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float
    max: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Spread | None:
        """None for no numbers; NaN stands for a value that was not told and is left out."""
        ordered = sorted(number for number in numbers if not math.isnan(number))
        if not ordered:
            return None
        count = len(ordered)
        # Scaled, so that numbers near the largest float do not overflow.
        scale = max(abs(ordered[0]), abs(ordered[-1])) or 1.0
        mean = math.fsum(number / scale for number in ordered) / count
        variance = math.fsum((number / scale - mean) ** 2 for number in ordered) / count
        return cls(
            count=count,
            mean=min(max(mean * scale, ordered[0]), ordered[-1]),
            std=math.sqrt(variance) * scale,
            min=ordered[0],
            p5=quantile(ordered, 0.05),
            p25=quantile(ordered, 0.25),
            median=quantile(ordered, 0.5),
            p75=quantile(ordered, 0.75),
            p95=quantile(ordered, 0.95),
            max=ordered[-1],
        )


@dataclass(frozen=True)
class Reason:
    """Why ``count`` rows have no score; ``text`` is that of the first one (others differ in digits alone)."""

    status: str
    count: int
    text: str


@dataclass(frozen=True)
class Figures:
    """One data source, or all.

    Attributes:
        rows: lines; of them ``scored``, ``penalties`` (stray think tags) and ``outage_penalties`` gave the trainer
            a number, ``non_finite`` (NaN or infinite), ``outages``, ``errors`` and ``cancelled`` none.
        clamped, truncated, retried: rows; ``retries``: requests beyond the first of each row.
        score: of every finite number that the trainer got, penalties included.
        response_len: of every row that tells it.
        latency_s: seconds of each call with its retries, also of those that ended without a score; not of
            penalties for think tags, which ask no server.
        penalty_share: of the numbers that the trainer got, those that no reward model gave.
        length_correlation: of response length and score (Pearson's r) where the reward model gave it; None where
            one of the two is constant.
        first, last: when the first call began and the last one ended, seconds since the epoch.
        reasons: the commonest ones for rows without a score.
    """

    rows: int
    scored: int
    penalties: int
    outage_penalties: int
    outages: int
    errors: int
    cancelled: int
    clamped: int
    truncated: int
    retried: int
    retries: int
    non_finite: int
    penalty_share: float
    score: Spread | None
    response_len: Spread | None
    latency_s: Spread | None
    length_correlation: float | None
    first: float | None
    last: float | None
    reasons: tuple[Reason, ...]

    @classmethod
    def of(cls, series: Series) -> Figures:
        """The figures of a series."""
        statuses = series.statuses
        numbers = statuses["ok"] + statuses["penalty"] + statuses["outage_penalty"]
        begins = [time for time in series.times if not math.isnan(time)]
        spans = zip(series.times, series.latencies, strict=True)
        ends = [time + (0.0 if math.isnan(took) else took) for time, took in spans if not math.isnan(time)]
        asked = series.of_kind(*(status for status in (*STATUSES, NON_FINITE) if status != "penalty"))
        return cls(
            rows=series.rows,
            scored=statuses["ok"],
            penalties=statuses["penalty"],
            outage_penalties=statuses["outage_penalty"],
            outages=statuses["outage"],
            errors=statuses["error"],
            cancelled=statuses["cancelled"],
            clamped=series.clamped,
            truncated=series.truncated,
            retried=series.retried,
            retries=series.retries,
            non_finite=statuses[NON_FINITE],
            penalty_share=(numbers - statuses["ok"]) / numbers if numbers else 0.0,
            score=Spread.of(series.scores),
            response_len=Spread.of(series.lengths),
            latency_s=Spread.of(series.latencies[index] for index in asked),
            length_correlation=correlation(*series.judged_pairs(range(series.rows))),
            first=min(begins, default=None),
            last=max(ends, default=None),
            reasons=tuple(
                Reason(status, count, text) for (status, text), count in series.reasons.most_common(_MOST_REASONS)
            ),
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of numbers in ascending order, with linear interpolation (type 7 of Hyndman and Fan, numpy's default)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    part = place - low
    return ordered[low] * (1 - part) + ordered[high] * part


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; None for fewer than 3 pairs, or where one side is constant."""
    if len(xs) < 3 or min(xs) == max(xs) or min(ys) == max(ys):
        return None
    x_scale, y_scale = max(map(abs, xs)), max(map(abs, ys))
    x_mean, y_mean = math.fsum(x / x_scale for x in xs) / len(xs), math.fsum(y / y_scale for y in ys) / len(ys)
    x_off, y_off = [x / x_scale - x_mean for x in xs], [y / y_scale - y_mean for y in ys]
    size = math.sqrt(math.fsum(x * x for x in x_off)) * math.sqrt(math.fsum(y * y for y in y_off))
    if size == 0:
        return None
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(x_off, y_off, strict=True)) / size))
