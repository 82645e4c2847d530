"""Distribution and course over time of the rewards of each data source, as one PNG."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reward.log_stats.figures import quantile
from reward.log_stats.report import plain
from reward.log_stats.series import Series

MOST_SOURCES = 8
_MOST_POINTS, _FEWEST_IN_A_POINT = 60, 8
_LARGEST = 1e100
_SCORED, _PENALTY, _LENGTH = "#2a6f97", "#d1495b", "#52796f"


class PlotError(Exception):
    """There is no picture; the message says what is missing."""


def draw(sources: Mapping[str, Series], file: Path) -> None:
    """Write the PNG, whole or not at all; of more than MOST_SOURCES data sources those with most rows.

    Raises:
        PlotError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise PlotError(f"--png needs matplotlib ({missing}): pip install matplotlib") from missing
    drawn = sorted(sources.items(), key=lambda item: -item[1].rows)[:MOST_SOURCES]
    figure = Figure(figsize=(14, 1 + 2.7 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(drawn), 3, squeeze=False)
    for (name, series), (left, middle, right) in zip(drawn, panels, strict=True):
        order = series.in_time()
        at, label = _clock(series, order)
        judged = [series.judged[index] == 1 for index in order]
        scores = [_drawable(series.scores[index]) for index in order]
        lengths = [series.lengths[index] for index in order]
        _distribution(left, scores, judged, f"{plain(name)} ({series.rows} rows)")
        _course(middle, _points(at, scores, judged), _SCORED, "score", label)
        if not all(judged):
            penalties = [0.0 if model else 1.0 for model in judged]
            _share(middle.twinx(), _points(at, penalties, [True] * len(at)))
        known = [not math.isnan(length) for length in lengths]
        _course(right, _points(at, lengths, known), _LENGTH, "response length (characters)", label)
    omitted = len(sources) - len(drawn)
    title = "Rewards: distribution, and course of score and response length (mean; band: 10 to 90 %)"
    figure.suptitle(title + (f"; {omitted} smaller data sources are left out" if omitted else ""))
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph ")  # a name that the font cannot write
            figure.savefig(part, format="png", dpi=110)
        part.replace(file)
    except OSError as error:
        raise PlotError(f"{file}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _drawable(number: float) -> float:
    """Axes cannot span all floats."""
    return max(-_LARGEST, min(_LARGEST, number))


def _distribution(panel: Any, scores: Sequence[float], judged: Sequence[bool], title: str) -> None:
    scored = [score for score, model in zip(scores, judged, strict=True) if model]
    penalties = [score for score, model in zip(scores, judged, strict=True) if not model]
    panel.set_title(title, parse_math=False, loc="left", fontsize="medium")
    panel.set_xlabel("reward")
    panel.set_ylabel("rows")
    if not scores:
        panel.text(0.5, 0.5, "no reward", ha="center", va="center", transform=panel.transAxes)
        return
    low, high = min(scores), max(scores)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    panel.hist(
        [scored, penalties],
        bins=40,
        range=(low, high),
        stacked=True,
        color=[_SCORED, _PENALTY],
        label=["scored", "penalty"],
    )
    if penalties:
        panel.legend(frameon=False, fontsize="small")


def _clock(series: Series, order: Sequence[int]) -> tuple[list[float], str]:
    """Where the rows stand on the time axis, and its name."""
    times = [series.times[index] for index in order]
    if not times or any(math.isnan(time) for time in times):
        return [float(place) for place in range(len(order))], "row"
    span = times[-1] - times[0]
    unit, name = (3600.0, "hours") if span > 7200 else (60.0, "minutes") if span > 120 else (1.0, "seconds")
    return [(time - times[0]) / unit for time in times], f"{name} since the first row"


class _Point(NamedTuple):
    """Consecutive rows of a course."""

    at: float
    mean: float
    low: float
    high: float


def _points(at: Sequence[float], values: Sequence[float], kept: Sequence[bool]) -> list[_Point]:
    """Up to _MOST_POINTS of as many rows each, in time."""
    rows = [(place, value) for place, value, keep in zip(at, values, kept, strict=True) if keep]
    count = min(_MOST_POINTS, max(1, len(rows) // _FEWEST_IN_A_POINT)) if rows else 0
    points = []
    for number in range(count):
        part = rows[number * len(rows) // count : (number + 1) * len(rows) // count]
        ordered = sorted(value for _, value in part)
        mean = math.fsum(value / len(part) for value in ordered)
        middle = part[0][0] / 2 + part[-1][0] / 2
        points.append(_Point(middle, mean, quantile(ordered, 0.1), quantile(ordered, 0.9)))
    return points


def _course(panel: Any, points: Sequence[_Point], color: str, what: str, label: str) -> None:
    """Mean and band."""
    panel.set_xlabel(label)
    panel.set_ylabel(what)
    panel.grid(alpha=0.3)
    at = [point.at for point in points]
    panel.fill_between(
        at, [point.low for point in points], [point.high for point in points], color=color, alpha=0.2, linewidth=0
    )
    panel.plot(at, [point.mean for point in points], color=color, marker="." if len(points) < 20 else None)


def _share(panel: Any, points: Sequence[_Point]) -> None:
    """Share of penalties, on an axis of its own."""
    panel.set_ylabel("share of penalties", color=_PENALTY)
    panel.set_ylim(-0.02, 1.02)
    panel.plot([point.at for point in points], [point.mean for point in points], color=_PENALTY, linewidth=1)
