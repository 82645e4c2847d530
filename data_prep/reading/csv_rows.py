"""Rows of CSV and TSV files: every cell is a string."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from data_prep.errors import DataError, FieldError
from data_prep.reading.block import RawRow, Record
from data_prep.reading.lines import MOST_ROW_BYTES


@dataclass(frozen=True, slots=True)
class CellBlock:
    """Rows, each with the line that it begins on."""

    rows: list[Record]
    lines: ClassVar[bool] = True

    def records(self) -> Iterator[Record]:
        yield from self.rows


def csv_blocks(stream: BinaryIO, shown: str, block_bytes: int, delimiter: str) -> Iterator[CellBlock]:
    """Rows below a header line.

    Raises:
        DataError: no header, a name in it twice or empty; an open quote; a cell over 64 MiB; no rows.
    """
    csv.field_size_limit(MOST_ROW_BYTES)  # of the whole process; Python's own is 128 KiB
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    rows: list[Record] = []
    header: list[str] | None = None
    size = count = 0
    line = 1
    try:
        for cells in reader:
            number, line = line, reader.line_num + 1
            if not cells:
                continue
            if header is None:
                header = _header(cells, shown)
                continue
            row = _row(header, cells)
            rows.append(Record(number, row, _text(cells, delimiter) if isinstance(row, FieldError) else None))
            count += 1
            size += sum(map(len, cells))
            if size >= block_bytes:
                yield CellBlock(rows)
                rows, size = [], 0
    except csv.Error as error:
        raise DataError(f"{shown}:{line}: not CSV: {error}.") from error
    if rows:
        yield CellBlock(rows)
    if not count:
        raise DataError(f"{shown}: no rows" + (" below the header." if header else "."))


def _header(cells: list[str], shown: str) -> list[str]:
    for place, name in enumerate(cells):
        if not name.strip() or name in cells[:place]:
            raise DataError(
                f"{shown}:1: expected a header with a different name for each column, got {cells[:20]!a}."
            )
    return cells


def _row(header: list[str], cells: list[str]) -> RawRow | FieldError:
    if len(cells) != len(header):
        return FieldError(None, f"expected {len(header)} cells, as in the header, got {len(cells)}")
    for name, cell in zip(header, cells, strict=True):
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            byte = ord(cell[error.start]) - 0xDC00
            return FieldError(name, f"expected UTF-8, got byte 0x{byte:02X} at {error.start}")
    return dict(zip(header, cells, strict=True))


def _text(cells: list[str], delimiter: str) -> bytes:
    """A row that is none, to be set aside: as CSV again, for its cells have no names."""
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=delimiter, lineterminator="").writerow(cells)
    return line.getvalue().encode("utf-8", "surrogateescape")
