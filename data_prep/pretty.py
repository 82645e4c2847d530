"""Rows and tables as lines for a terminal: they fit its width, and nothing in a row reaches it raw."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

_MOST_LINES = 12
_MOST_ITEMS = 50
# Characters of a text that are looked at: enough for _MOST_LINES lines of any terminal.
_MOST_CHARS = 8000
_DEEPEST = 8
# Characters before the end of a line in which a space is looked for.
_WORD = 24


def escape(text: str) -> str:
    """``text`` with an escape for each character that is not printable, line breaks too."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def columns_of(text: str) -> int:
    """Columns that a printable text takes in a terminal: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if character < "\u0300":
        return 1
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, width: int) -> str:
    """``text``, printable, cut to ``width`` columns with ``...``."""
    if columns_of(text) <= width:
        return text
    end, room = 0, width - 3
    while _columns(text[end]) <= room:
        room -= _columns(text[end])
        end += 1
    return text[:end] + "..."


def pad(text: str, width: int) -> str:
    """``text`` with spaces up to ``width`` columns."""
    return text + " " * (width - columns_of(text))


def _pieces(text: str, width: int) -> Iterator[str]:
    """A printable line in pieces of ``width`` columns at most, which end with a space where one is near."""
    start = 0
    while start < len(text):
        end, room = start, width
        while end < len(text) and _columns(text[end]) <= room:
            room -= _columns(text[end])
            end += 1
        end = max(end, start + 1)
        space = text.rfind(" ", max(start, end - _WORD), end) + 1
        if space and end < len(text):
            end = space
        yield text[start:end]
        start = end


def text_lines(text: str, width: int, most: int = _MOST_LINES) -> list[str]:
    """The lines of ``text``, folded to ``width`` and escaped; after ``most`` of them it says how much is left."""
    lines: list[str] = []
    for line in text[:_MOST_CHARS].split("\n"):
        for piece in _pieces(escape(line), width) if line else [""]:
            if len(lines) == most:
                return [*lines, fit(f"... ({len(text):,} characters in all)", width)]
            lines.append(piece)
    return lines if len(text) <= _MOST_CHARS else [*lines, fit(f"... ({len(text):,} characters in all)", width)]


def row_lines(row: dict[str, Any], width: int, most: int = _MOST_LINES) -> list[str]:
    """A row, one value after another by its path: ``prompt[0].role: user``; long texts stand below their path."""
    lines = []
    for path, value in _values(row, "", 0):
        told = value if isinstance(value, str) else ascii(value)[:_MOST_CHARS]
        if "\n" not in told and columns_of(path) + 2 + columns_of(escape(told[:_MOST_CHARS])) <= width:
            lines.append(f"{path}: {escape(told)}".rstrip())
        else:
            lines.append(fit(f"{path}:", width))
            lines += [f"  {line}".rstrip() for line in text_lines(told, width - 2, most)]
    return lines


def _values(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """(path, value) of what is no struct or list, and of those that are empty or too deep."""
    if depth < _DEEPEST and isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _values(inner, f"{path}.{escape(str(key))}" if path else escape(str(key)), depth + 1)
    elif depth < _DEEPEST and isinstance(value, list) and value:
        for place, inner in enumerate(value[:_MOST_ITEMS]):
            yield from _values(inner, f"{path}[{place}]", depth + 1)
        if len(value) > _MOST_ITEMS:
            yield f"{path}[{_MOST_ITEMS}]", f"... ({len(value):,} items in all)"
    else:
        yield path, value


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, numbers: int) -> list[str]:
    """A table of printable cells; the last ``numbers`` columns are set to the right, the widest others are cut."""
    widths = [max(map(columns_of, column)) for column in zip(head, *rows, strict=True)]
    texts = len(head) - numbers
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(range(texts), key=widths.__getitem__)
        if widths[widest] <= 4:
            break
        widths[widest] -= 1
    lines = []
    for row in (head, *rows):
        cells = [pad(fit(cell, room), room) for cell, room in zip(row[:texts], widths[:texts], strict=True)]
        cells += [f"{cell:>{room}}" for cell, room in zip(row[texts:], widths[texts:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
