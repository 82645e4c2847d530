"""Rows of parquet files, in batches of bounded size however large a row group is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep import written
from data_prep.errors import DataError, FieldError
from data_prep.printing import escaped
from data_prep.reading.block import RawRow, Record

_MOST_ROWS = 8192


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """Rows with the position of the first one, from 0."""

    batch: pa.RecordBatch
    first: int
    lines: ClassVar[bool] = False

    def records(self) -> Iterator[Record]:
        try:
            rows = self.batch.to_pylist()
        except (ValueError, OverflowError):  # text that is not UTF-8, a time beyond Python's: in which row?
            rows = [_row_alone(self.batch.slice(place, 1)) for place in range(len(self.batch))]
        for number, row in enumerate(rows, self.first):
            yield Record(number, row if isinstance(row, FieldError) else _as_written(row))


def _row_alone(batch: pa.RecordBatch) -> RawRow | FieldError:
    row: RawRow = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            row[name] = column[0].as_py()
        except (ValueError, OverflowError) as error:
            return FieldError(name, _line(error))
    return row


def _as_written(row: RawRow) -> RawRow:
    """Without the nulls that Arrow gives the objects of a list so that all have the same keys."""
    return {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def open_parquet(path: Path, shown: str) -> pq.ParquetFile:
    """The file, its footer read.

    Raises:
        DataError: not a whole parquet file; two columns of one name; a type that Python cuts short.
    """
    try:
        file = written.open_parquet(path)
        _check_columns(file.schema_arrow, shown)
        return file
    except written.UNREADABLE as error:
        reason = written.outside(error) or f"not a whole parquet file: {_line(error)}"
        raise DataError(f"{shown}: {reason}") from error


def _check_columns(schema: pa.Schema, shown: str) -> None:
    for column in schema:
        if len(schema.get_all_field_indices(column.name)) > 1:
            raise DataError(f"{shown}: two columns are named {column.name!a}; rename or drop one.")
        if "time64[ns]" in str(column.type):
            raise DataError(
                f"{shown}: column {column.name!a} holds times of day in nanoseconds ({column.type}), which "
                "would be cut to microseconds; cast it to time64[us], or to text."
            )


def parquet_blocks(path: Path, shown: str, block_bytes: int) -> Iterator[ArrowBlock]:
    """All rows.

    Raises:
        DataError: the file is damaged; it has no rows.
    """
    with open_parquet(path, shown) as file:
        metadata = file.metadata
        if not metadata.num_rows:
            raise DataError(f"{shown}: no rows.")
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        # A little below what a block may have: rows differ.
        rows = max(1, min(_MOST_ROWS, block_bytes * metadata.num_rows // (2 * max(size, 1))))
        first = 0
        try:
            for batch in file.iter_batches(batch_size=rows):
                yield ArrowBlock(batch, first)
                first += len(batch)
        except written.UNREADABLE as error:
            raise DataError(f"{shown}: damaged, after row {first} (from 0): {_line(error)}") from error


def _line(error: Exception) -> str:
    """Its text on one line; Arrow quotes bytes of the file in it."""
    text = " ".join(str(error).split())[:300]
    return escaped(text)
