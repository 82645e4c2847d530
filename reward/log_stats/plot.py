"""Distribution and course over time of the rewards of each data source, as one PNG."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reward.log_stats.courses import Span, medians, time_axis
from reward.log_stats.figures import quantile
from reward.log_stats.report import plain
from reward.log_stats.series import NON_FINITE, Series

MOST_SOURCES = 8
_MOST_DOTS = 3000
_LARGEST = 1e100
_SCORED, _CLAMPED, _PENALTY, _LENGTH = "#2a6f97", "#e09f3e", "#d1495b", "#52796f"
# What lies further than this many times the width of the middle 90 % outside of them is told, not drawn.
_BEYOND = 1.5
_EVENTS = {
    "clamped": (),
    "think-tag penalty": ("penalty",),
    "outage": ("outage", "outage_penalty"),
    "error, cancelled": ("error", "cancelled"),
    "NaN": (NON_FINITE,),
}


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
    if not file.parent.is_dir():
        raise PlotError(f"{file}: no such folder {file.parent}; make it first")
    drawn = dict(sorted(sources.items(), key=lambda item: -item[1].rows)[:MOST_SOURCES])
    axis = time_axis(list(drawn.values()))
    figure = Figure(figsize=(19, 1.1 + 2.8 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(drawn), 4, squeeze=False)
    for (name, series), (first, second, third, fourth) in zip(drawn.items(), panels, strict=True):
        first.set_title(f"{plain(name)} ({series.rows} rows)", parse_math=False, loc="left", fontsize="medium")
        _distribution(first, series)
        at = axis.places(series)
        scores = [_drawable(series.scores[index]) for index in range(series.rows)]
        judged = series.judged()
        _course(second, [(at[index], scores[index]) for index in judged], axis, _SCORED, "score")
        cut = [(at[index], scores[index]) for index in judged if series.cut[index]]
        if cut:
            second.plot(*zip(*_thinned(cut), strict=True), "^", ms=3, color=_CLAMPED, label="clamped")
        if judged:
            second.legend(frameon=False, fontsize="small", loc="lower right")  # notes are at the upper edge
        lengths = [
            (at[index], _drawable(length)) for index, length in enumerate(series.lengths) if not math.isnan(length)
        ]
        _course(third, lengths, axis, _LENGTH, "response length (characters)")
        _events(fourth, series, at)
        for panel in (second, third, fourth):
            panel.set_xlabel(axis.label)
            panel.set_xlim(axis.low, axis.high)
    omitted = len(sources) - len(drawn)
    title = "Rewards: distribution; scores of the reward model and lengths in time; calls that went otherwise"
    figure.suptitle(title + (f"; {omitted} smaller data sources are left out" if omitted else ""))
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph ")  # a name that the font cannot write
            figure.savefig(part, format="png", dpi=100)
        part.replace(file)
    except OSError as error:
        raise PlotError(f"{file}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _drawable(number: float) -> float:
    """Axes cannot span all floats."""
    return max(-_LARGEST, min(_LARGEST, number))


def _say(panel: Any, text: str) -> None:
    panel.text(0.5, 0.5, text, ha="center", va="center", transform=panel.transAxes, color="#666666")
    panel.set_yticks([])


def _note(panel: Any, lines: Sequence[str]) -> None:
    """What is not drawn, at the upper edge, with room for the words above what is."""
    for number, text in enumerate(reversed(lines)):
        place = (4, -4 - 11 * number)
        panel.annotate(text, (0, 1), place, "axes fraction", "offset points", va="top", fontsize=8, color=_PENALTY)
    bottom, top = panel.get_ylim()
    panel.set_ylim(bottom, top + (top - bottom) * 0.1 * len(lines))


def _beyond(values: Sequence[float], low: float, high: float, what: str) -> list[str]:
    below, above = sum(value < low for value in values), sum(value > high for value in values)
    told = [f"{what} below: {below} (lowest {min(values):.6g}), not drawn"] if below else []
    return told + ([f"{what} above: {above} (highest {max(values):.6g}), not drawn"] if above else [])


def middle_range(values: Sequence[float]) -> tuple[float, float]:
    """Where most of the (one or more) values are: a few that lie far off do not squeeze the others."""
    ordered = sorted(values)
    low, high = quantile(ordered, 0.05), quantile(ordered, 0.95)
    reach = _BEYOND * (high - low)
    # Of few values, or of nearly constant ones, all are shown.
    if len(ordered) < 20 or reach == 0:
        low, high = ordered[0], ordered[-1]
    else:
        low, high = max(ordered[0], low - reach), min(ordered[-1], high + reach)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    return low, high


def _distribution(panel: Any, series: Series) -> None:
    """Of the scores that the reward model gave; penalties, all at one place, are told in words."""
    panel.set_xlabel("score of the reward model")
    judged = series.judged()
    told = []
    for what, statuses in (("think-tag penalties", ("penalty",)), ("outage penalties", ("outage_penalty",))):
        given = series.of_kind(*statuses)
        if given:
            values = sorted({round(series.scores[index], 6) for index in given})
            place = f"{values[0]:g}" + (f" to {values[-1]:g}" if len(values) > 1 else "")
            told.append(f"{what} of {place}: {len(given)}, not drawn")
    if not judged:
        lost = [
            f"{len(series.of_kind(*kinds))} {what}" for what, kinds in _EVENTS.items() if series.of_kind(*kinds)
        ]
        _say(panel, "\n".join(["no score of the reward model", *lost]))
        panel.set_xticks([])
        return
    scores = [_drawable(series.scores[index]) for index in judged]
    low, high = middle_range(scores)
    told += _beyond(scores, low, high, "scores")
    whole = [score for score, index in zip(scores, judged, strict=True) if not series.cut[index]]
    cut = [score for score, index in zip(scores, judged, strict=True) if series.cut[index]]
    panel.set_ylabel("rows")
    panel.hist(
        [whole, cut],
        bins=40,
        range=(low, high),
        stacked=True,
        color=[_SCORED, _CLAMPED],
        label=["within the limits", f"clamped ({len(cut)})"],
    )
    if cut:
        panel.legend(frameon=False, fontsize="small", loc="best")
    _note(panel, told)


def _thinned(dots: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Up to _MOST_DOTS of them, evenly."""
    return dots[:: max(1, -(-len(dots) // _MOST_DOTS))]


def _course(panel: Any, dots: Sequence[tuple[float, float]], axis: Span, color: str, what: str) -> None:
    """The rows as dots; their median and middle 80 % in equal parts of the time."""
    panel.set_ylabel(what)
    if not dots:
        _say(panel, f"no {what}")
        return
    values = [value for _, value in dots]
    low, high = middle_range(values)
    near = [dot for dot in dots if low <= dot[1] <= high]
    panel.grid(alpha=0.3)
    panel.plot(*zip(*_thinned(near), strict=True), ".", ms=5, alpha=0.3, color=color, mew=0)
    course = medians(dots, axis)
    panel.fill_between(course.at, course.low, course.high, color=color, alpha=0.2, linewidth=0)
    panel.plot(course.at, course.median, "o-", ms=3, lw=1.5, color=color, label="median; band: 10 to 90 %")
    room = 0.05 * (high - low)
    panel.set_ylim(low - room, high + room)
    _note(panel, _beyond(values, low, high, "rows"))


def _events(panel: Any, series: Series, at: Sequence[float]) -> None:
    """A mark for each call that did not end in a plain score, at its time."""
    names = []
    for line, (what, kinds) in enumerate(_EVENTS.items()):
        rows = series.of_kind(*kinds) if kinds else [index for index, cut in enumerate(series.cut) if cut]
        color = _PENALTY if kinds else _CLAMPED
        dots = _thinned([(at[index], -line) for index in rows])
        if dots:
            panel.plot(*zip(*dots, strict=True), "|", ms=11, color=color)
        names.append(f"{what}: {len(rows)}")
    panel.set_yticks([-line for line in range(len(names))], names, fontsize=8)
    panel.set_ylim(0.6 - len(names), 0.6)
    panel.grid(alpha=0.3, axis="x")
