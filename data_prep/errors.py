"""The two ways in which data preparation stops."""

from __future__ import annotations


class DataError(Exception):
    """The data or the request cannot be used; the message names the place and the remedy."""


class RowError(DataError):
    """One row cannot be used.

    ``str()`` reads ``FILE:LINE: field 'answer': expected a string, got int 5``.
    """

    def __init__(self, file: str, line: int, field: str | None, expected: str) -> None:
        self.file = file
        self.line = line
        self.field = field
        self.expected = expected
        where = f"{file}:{line}: " + (f"field {field!r}: " if field else "")
        super().__init__(where + expected)


class FieldError(ValueError):
    """A field of a row breaks its format; the reader adds file and line (:class:`RowError`)."""

    def __init__(self, field: str | None, expected: str) -> None:
        self.field = field
        self.expected = expected
        super().__init__(f"field {field!r}: {expected}" if field else expected)
