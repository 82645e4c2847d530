"""The two ways in which data preparation stops."""

from __future__ import annotations

from data_prep.printing import escaped

_MOST_FIELD_CHARS = 200


def _name(field: str | None) -> str | None:
    if field is None or (len(field) <= _MOST_FIELD_CHARS and field.isprintable()):
        return field
    cut = field if len(field) <= _MOST_FIELD_CHARS else field[:_MOST_FIELD_CHARS] + "..."
    return escaped(cut)


class DataError(Exception):
    """The data or the request cannot be used; the message names the place and the remedy."""


class RowError(DataError):
    """One row cannot be used.

    ``str()`` reads ``FILE:LINE: field 'answer': expected a string, got int 5``; where rows have no lines (parquet,
    a JSON array), ``FILE: row 3 (from 0): ...``.
    """

    def __init__(self, file: str, number: int, field: str | None, expected: str, *, lines: bool = True) -> None:
        self.file = file
        self.number = number
        self.field = field
        self.expected = expected
        place = f"{file}:{number}: " if lines else f"{file}: row {number} (from 0): "
        super().__init__(place + (f"field '{field}': " if field else "") + expected)
        self._lines = lines

    def __reduce__(self) -> tuple[object, ...]:  # errors of worker processes are pickled
        return _row_error, (self.file, self.number, self.field, self.expected, self._lines)


def _row_error(file: str, number: int, field: str | None, expected: str, lines: bool) -> RowError:
    return RowError(file, number, field, expected, lines=lines)


class FieldError(ValueError):
    """A field of a row breaks its format; the reader adds file and row (:class:`RowError`).

    ``field`` is printable and of bounded length, whatever the data calls it.
    """

    def __init__(self, field: str | None, expected: str) -> None:
        self.field = _name(field)
        self.expected = expected
        super().__init__(f"field '{self.field}': {expected}" if field else expected)

    def __reduce__(self) -> tuple[object, ...]:
        return FieldError, (self.field, self.expected)
