"""Rows of a JSONL file, strictly: what json.loads lets pass in silence is refused with its line number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from data_prep.errors import FieldError, RowError

_BOM = b"\xef\xbb\xbf"
_SHOWN_CHARS = 60


def shown(value: object) -> str:
    """``value`` for an error message: its type and a short, printable form."""
    text = ascii(value)
    return f"{type(value).__name__} {text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '...'}"


def require_text(row: dict[str, Any], field: str) -> str:
    """The non-blank string at ``row[field]``.

    Raises:
        FieldError: missing, not a string, blank, or with a lone surrogate (which UTF-8, and so Parquet,
            cannot hold).
    """
    if field not in row:
        raise FieldError(field, f"missing; the row has {', '.join(map(repr, row)) or 'no field'}")
    value = row[field]
    if not isinstance(value, str):
        raise FieldError(field, f"expected a string, got {shown(value)}")
    if not value.strip():
        raise FieldError(field, "expected text, got an empty or blank string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FieldError(
            field,
            f"lone surrogate U+{ord(value[error.start]):04X} at character {error.start}: not Unicode text",
        ) from error
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise FieldError(key, "the key occurs twice in one object")
        row[key] = value
    return row


def _no_constant(name: str) -> NoReturn:
    raise FieldError(None, f"{name} is not JSON")


def parse_object(line: bytes) -> dict[str, Any]:
    """One JSON object from one line of UTF-8.

    Raises:
        FieldError: not UTF-8, not JSON (NaN and Infinity are not), a doubled key, nested too deeply, or
            another JSON type than an object.
    """
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise FieldError(None, f"expected UTF-8, got byte 0x{line[error.start]:02X} at {error.start}") from error
    except json.JSONDecodeError as error:
        raise FieldError(
            None, f"expected a JSON object on one line: {error.msg} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise FieldError(None, "nested too deeply") from error
    if not isinstance(value, dict):
        raise FieldError(None, f"expected a JSON object, got {shown(value)}")
    return value


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, stripped line) of each line that is not blank; a leading BOM is dropped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(_BOM)
            line = line.strip()
            if line:
                yield number, line


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, row) of a JSONL file.

    Raises:
        RowError: at the first line that is not a JSON object (see :func:`parse_object`).
    """
    for number, line in read_lines(path):
        try:
            yield number, parse_object(line)
        except FieldError as error:
            raise RowError(str(path), number, error.field, error.expected) from error


def count_rows(path: Path) -> int:
    """How many rows :func:`read_rows` would yield, without parsing them."""
    return sum(1 for _ in read_lines(path))
