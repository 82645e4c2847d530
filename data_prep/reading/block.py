"""What a reader hands on: rows of one file, a few megabytes at a time, cheap to send to another process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from data_prep.errors import FieldError

RawRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One row as it stands in the file.

    Attributes:
        number: line on which it begins, from 1 (JSONL, CSV), or position from 0 (JSON array, parquet).
        row: the fields; a FieldError where the text is no row at all.
        raw: the bytes of the line, where there is one; None where the row was no text of its own (CSV, parquet).
    """

    number: int
    row: RawRow | FieldError
    raw: bytes | None = None


class Block(Protocol):
    """Consecutive rows of one file. Picklable; parsing happens in :meth:`records`, wherever that is called."""

    lines: ClassVar[bool]
    """Whether numbers are lines (:class:`data_prep.errors.RowError`)."""

    def records(self) -> Iterator[Record]:
        """The rows in order; a bad one is yielded too, nothing is raised for it."""
