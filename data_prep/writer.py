"""Parquet files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.schema import SCHEMA

ROWS_PER_GROUP = 2048


class ParquetSink:
    """Rows in, one row group of memory held, ``path`` in place only after :meth:`publish`.

    Used as a context manager; leaving it without ``publish`` removes the unfinished file and leaves an older
    ``path`` as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._pending: list[Mapping[str, Any]] = []
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(self._part, SCHEMA)

    def __enter__(self) -> ParquetSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._part.unlink(missing_ok=True)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row of :data:`data_prep.schema.SCHEMA`."""
        self._pending.append(row)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_GROUP:
            self._flush()

    def finish(self) -> None:
        """Write what is pending and the footer, and reach the disk; ``path`` is not touched yet."""
        if self._writer is None:
            raise RuntimeError(f"{self.path}: already finished")
        self._flush()
        self._writer.close()
        self._writer = None
        with self._part.open("rb") as file:
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Put the finished file at ``path`` in one step."""
        self._part.replace(self.path)

    def _flush(self) -> None:
        if self._pending and self._writer is not None:
            self._writer.write_table(pa.Table.from_pylist(self._pending, schema=SCHEMA))
            self._pending.clear()
