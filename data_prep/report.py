"""What a conversion did, as tables for a terminal of 80 columns: from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_prep.printing import shortened
from data_prep.record import DatasetRecord

_NAME = 34
_MOST_LINES = 20
_REASON = 62


def table(header: Sequence[str], rows: Sequence[Sequence[str | int]]) -> list[str]:
    """Lines with the first column to the left and the others, right-aligned, as wide as they need."""
    cells = [
        list(header),
        *([shortened(value, _NAME) if isinstance(value, str) else f"{value:,}" for value in row] for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for first, *others in cells:
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *right]).rstrip())
    return lines


def report_lines(record: DatasetRecord, reasons: Counter[str], skip_bad: str | None) -> list[str]:
    """The whole report; sections without content are left out."""
    sections = [
        _sources(record),
        _left_out(record),
        _bad(reasons, skip_bad),
        _composition(record.composition),
        _parts(record),
        _repeats(record),
        [f"not read, as the test rows come from elsewhere: {shortened(path, 32)}" for path in record.not_used],
    ]
    lines: list[str] = []
    for section in sections:
        if section:
            lines += [*section, ""]
    return lines


def _sources(record: DatasetRecord) -> list[str]:
    rows = [(entry.path, entry.format, entry.split, entry.read) for entry in record.sources[:_MOST_LINES]]
    more = len(record.sources) - _MOST_LINES
    lines = table(("file", "format", "for", "rows"), rows)
    return [*lines, f"and {more} more files"] if more > 0 else lines


def _left_out(record: DatasetRecord) -> list[str]:
    """Why rows that were read were not written."""
    counts = [
        ("bad, set aside", sum(entry.bad for entry in record.sources)),
        ("longer than --max-prompt-tokens", sum(entry.too_long for entry in record.sources)),
        ("duplicates", sum(part.duplicates for part in record.parts)),
        ("with the prompt of a test row", sum(part.leaked for part in record.parts)),
        ("left over by the blend", sum(part.unused for part in record.parts)),
    ]
    told = [(why, count) for why, count in counts if count]
    lines = table(("left out", "rows"), told) if told else []
    replaced = sum(entry.systems_replaced for entry in record.sources)
    if replaced:
        lines.append(f"--system-prompt took the place of {replaced:,} system messages of the rows' own")
    return lines


def _bad(reasons: Counter[str], skip_bad: str | None) -> list[str]:
    lines = [f"{count:>8,}  {shortened(reason, _REASON)}" for reason, count in reasons.most_common(5)]
    return [f"bad rows, all in {shortened(skip_bad or '', 50)}; most often:", *lines] if lines else []


def _composition(composition: list[dict[str, Any]]) -> list[str]:
    if not composition:
        return []
    totals: Counter[str] = Counter()
    for entry in composition:
        totals[entry["split"]] += entry["rows"]
    rows = [
        (
            shortened(entry["data_source"], 28),
            shortened(entry["ability"], 16),
            entry["split"],
            entry["rows"],
            f"{100 * entry['rows'] / totals[entry['split']]:.1f} %",
        )
        for entry in composition[:_MOST_LINES]
    ]
    more = len(composition) - _MOST_LINES
    lines = table(("data_source", "ability", "split", "rows", "share"), rows)
    return [*lines, f"and {more} more"] if more > 0 else lines


def _parts(record: DatasetRecord) -> list[str]:
    """How much each source of several gave; the data_source of two of them may be the same."""
    if len(record.parts) < 2:
        return []
    totals = record.rows("train"), record.rows("test")
    rows = [
        (part.source, part.train, _share(part.train, totals[0]), part.test, _share(part.test, totals[1]))
        for part in record.parts[:_MOST_LINES]
    ]
    more = len(record.parts) - _MOST_LINES
    lines = table(("from", "train", "share", "test", "share"), rows)
    return [*lines, f"and {more} more"] if more > 0 else lines


def _share(rows: int, total: int) -> str:
    return f"{100 * rows / total:.1f} %" if total else "-"


def _repeats(record: DatasetRecord) -> list[str]:
    lines = []
    exact, normalized = record.repeats["exact"], record.repeats["normalized"]
    for split in ("train", "test"):
        if normalized[split]:
            lines += [
                f"{normalized[split]:,} {split} rows have an earlier one's prompt ({exact[split]:,} exactly):",
                f"  --remove-duplicates {_kind(exact[split], normalized[split])}",
            ]
    if normalized["leaked"]:
        lines += [
            f"{normalized['leaked']:,} train rows have a test row's prompt ({exact['leaked']:,} exactly):",
            f"  --remove-leakage {_kind(exact['leaked'], normalized['leaked'])}",
        ]
    if record.repeats["conflicting"]:
        lines.append(f"{record.repeats['conflicting']:,} rows have the prompt of a row with another ground truth")
    return lines


def _kind(exact: int, normalized: int) -> str:
    return "exact" if exact == normalized else "normalized"
