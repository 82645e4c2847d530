"""The figures as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reward.log_stats.figures import Figures, Spread
from reward.log_stats.findings import Warned
from reward.log_stats.reading import BadLine

ALL = "all"
SHOWN_BAD_LINES = 20
_SHOWN_REASON = 240


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        sources: by data source; ``whole`` is all of them together.
        bad_lines: the first ones; ``bad_count`` of all.
    """

    files: Sequence[str]
    sources: Mapping[str, Figures]
    whole: Figures
    warnings: Sequence[Warned]
    bad_lines: Sequence[BadLine]
    bad_count: int

    def as_json(self) -> dict[str, Any]:
        """JSON values, no NaN among them."""
        return {
            "files": list(self.files),
            "rows": self.whole.rows,
            "all": asdict(self.whole),
            "data_sources": {name: asdict(figures) for name, figures in self.sources.items()},
            "warnings": [asdict(warned) for warned in self.warnings],
            "bad_lines": {"count": self.bad_count, "first": [asdict(line) for line in self.bad_lines]},
        }

    def lines(self) -> list[str]:
        """For a person: tables with a line for each data source, then the warnings and the reasons of errors."""
        whole = self.whole
        known = whole.first is not None and whole.last is not None
        span = f", {_clock(whole.first or 0.0)} to {_clock(whole.last or 0.0)}" if known else ""
        told = [f"{_counted(len(self.files), 'file')}, {_counted(whole.rows, 'row')}{span}"]
        rows = dict(self.sources) if len(self.sources) == 1 else {**self.sources, ALL: whole}
        spread = ["mean", "std", "min", "5 %", "25 %", "median", "75 %", "95 %", "max"]
        told += _table("score", ["count", *spread], {name: _spread(of.score) for name, of in rows.items()})
        told += _table("response length", ["mean", "median", "95 %", "max", "r with score"], _lengths(rows))
        columns = ["scored", "penalties", "share", "NaN", "clamped", "truncated", "retried", "outages", "errors"]
        told += _table("calls", columns, {name: _calls(of) for name, of in rows.items()})
        told += _table("seconds of a call*", ["calls", "median", "95 %", "max"], _latencies(rows))
        told.append("* with its retries; also of calls that ended without a score")
        if self.warnings or self.bad_count:
            told.append("")
        told += [f"warning: {plain(str(warned))}" for warned in self.warnings]
        for name, figures in self.sources.items():
            for reason in figures.reasons:
                told.append(plain(f"{name}: {reason.count} x {reason.status}: {_cut(reason.text)}"))
        told += [f"warning: {plain(str(line))}" for line in self.bad_lines]
        if self.bad_count > len(self.bad_lines):
            told.append(f"warning: {self.bad_count - len(self.bad_lines)} more bad lines")
        return told


def plain(text: str) -> str:
    """``text`` from a log, without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _clock(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _spread(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["0", *["-"] * 9]
    low = [spread.mean, spread.std, spread.min, spread.p5, spread.p25]
    return [str(spread.count), *map(_number, [*low, spread.median, spread.p75, spread.p95, spread.max])]


def _lengths(rows: Mapping[str, Figures]) -> dict[str, list[str]]:
    told = {}
    for name, figures in rows.items():
        length = figures.response_len
        values = [None] * 4 if length is None else [length.mean, length.median, length.p95, length.max]
        told[name] = [*map(_number, values), _number(figures.length_correlation)]
    return told


def _calls(figures: Figures) -> list[str]:
    return [
        str(figures.scored),
        str(figures.penalties + figures.outage_penalties),
        f"{figures.penalty_share:.1%}",
        str(figures.non_finite),
        str(figures.clamped),
        str(figures.truncated),
        str(figures.retried),
        str(figures.outages + figures.outage_penalties),
        str(figures.errors + figures.cancelled),
    ]


def _latencies(rows: Mapping[str, Figures]) -> dict[str, list[str]]:
    told = {}
    for name, figures in rows.items():
        took = figures.latency_s
        values = [None] * 3 if took is None else [took.median, took.p95, took.max]
        told[name] = [str(took.count if took else 0), *map(_number, values)]
    return told


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_REASON else f"{text[:_SHOWN_REASON]}..."


def _table(title: str, columns: list[str], rows: Mapping[str, list[str]]) -> list[str]:
    """An empty line, a head and a line for each row; numbers to the right."""
    head = [title, *columns]
    lines = [[plain(name), *cells] for name, cells in rows.items()]
    widths = [max(len(line[at]) for line in [head, *lines]) for at in range(len(head))]
    told = [""]
    for line in [head, *lines]:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        told.append("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
    return told
