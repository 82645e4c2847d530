"""Text and JSON of a row, checked: every FieldError names the path of the field."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from data_prep.errors import FieldError
from data_prep.printing import SHOWN_CHARS, short
from data_prep.reading.block import RawRow
from data_prep.reading.lines import Literal

_SHOWN_FIELDS = 20


def shown(value: object) -> str:
    """``value`` for an error message: its type and a short, printable form."""
    return f"{type(value).__name__} {short(value)}"


def shown_fields(row: RawRow) -> str:
    """The names of the fields of ``row``, for an error message."""
    names = [ascii(name)[:SHOWN_CHARS] for name in list(row)[:_SHOWN_FIELDS]]
    return ", ".join(names) + (", ..." if len(row) > _SHOWN_FIELDS else "") if names else "no field"


def check_text(value: object, path: str, *, blank: bool = False) -> str:
    """``value`` as a string that UTF-8, and so Parquet, can hold.

    Raises:
        FieldError: not a string, blank (unless ``blank``), or with a lone surrogate.
    """
    if not isinstance(value, str):
        raise FieldError(path, f"expected a string, got {shown(value)}")
    if not blank and not value.strip():
        raise FieldError(path, "expected text, got an empty or blank string")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise FieldError(
                path,
                f"lone surrogate U+{ord(value[error.start]):04X} at character {error.start}: not Unicode text",
            ) from error
    return value


def require(row: RawRow, field: str) -> Any:
    """``row[field]``.

    Raises:
        FieldError: missing.
    """
    if field not in row:
        raise FieldError(field, f"missing; the row has {shown_fields(row)}")
    return row[field]


def require_text(row: RawRow, field: str) -> str:
    """The string at ``row[field]``, not blank.

    Raises:
        FieldError: missing, or see :func:`check_text`.
    """
    return check_text(require(row, field), field)


def answer_text(value: object, path: str) -> str:
    """An answer: text that is not blank, or a number as it was written.

    Raises:
        FieldError: anything else.
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return truth_text(value, path)
    return check_text(value, path)


def own_truth(row: RawRow, *names: str) -> tuple[str | None, str]:
    """(text, field) of the first of the fields ``names`` that is there and not null; (None, "") without any.

    A ``ground_truth`` that is there and null is none: no other field takes its place.

    Raises:
        FieldError: see :func:`truth_text`.
    """
    for name in names:
        if row.get(name) is not None:
            return truth_text(row[name], name), name
        if name == "ground_truth" and name in row:
            return None, name
    return None, ""


def rest(row: RawRow, *fields: str) -> RawRow:
    """``row`` without ``fields``."""
    return {name: value for name, value in row.items() if name not in fields}


def json_text(value: Any, path: str = "") -> str:
    """``value`` as compact JSON, keys in their order, a :class:`Literal` as it was written; times as ISO text.

    Raises:
        FieldError: something that JSON or UTF-8 cannot hold, with its path below ``path``.
    """
    try:
        text = _written(value) if _has_literal(value) else _ENCODER.encode(value)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        _find_fault(value, path)
        raise
    return text


def truth_text(value: Any, path: str = "ground_truth") -> str:
    """A ground truth as text: a string as it is, a number as it was written, a time in ISO form, else JSON.

    Raises:
        FieldError: see :func:`json_text`.
    """
    if isinstance(value, str):
        return check_text(value, path, blank=True)
    if isinstance(value, Literal):
        return value.text
    if isinstance(value, _PLAIN):
        return _plain(value)
    return json_text(value, path)


# What parquet has and JSON has not.
_PLAIN = (datetime, date, time, timedelta, Decimal)


def _plain(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")  # str() writes 0.0000000 as 0E-7
    if isinstance(value, timedelta):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)


def _has_literal(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_literal(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(_has_literal(part) for part in value)
    return isinstance(value, Literal)


def _written(value: Any) -> str:
    """As the encoder does, which would write a Literal 1.50 by float.__repr__, as 1.5."""
    if isinstance(value, Literal):
        return value.text
    if isinstance(value, dict):
        keys = (_ENCODER.encode(str(key)) for key in value)
        return (
            "{" + ",".join(f"{key}:{_written(part)}" for key, part in zip(keys, value.values(), strict=True)) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return _ENCODER.encode(value)


def _find_fault(value: Any, path: str) -> None:
    """Raise FieldError for the innermost part of ``value`` that cannot be written."""
    inner = list(_inner(value, path))
    for part, name in inner:
        try:
            _ENCODER.encode(part).encode("utf-8")
        except (TypeError, ValueError, RecursionError):
            _find_fault(part, name)
    if isinstance(value, dict):
        for key in value:
            check_text(key, f"{path} (a key)" if path else "(a key)", blank=True)
    if isinstance(value, str):
        check_text(value, path, blank=True)
    if not inner:
        raise FieldError(path or None, f"cannot be written as JSON: {shown(value)}")
    raise FieldError(path or None, "nested too deeply to be written as JSON")


def _inner(value: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(value, dict):
        return [(part, f"{path}.{key}" if path else str(key)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(part, f"{path}[{place}]") for place, part in enumerate(value)]
    return []
