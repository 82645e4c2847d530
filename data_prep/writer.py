"""Parquet files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.errors import DataError
from data_prep.schema import with_places

ROWS_PER_GROUP = 8192
# A row group is held in memory and, by verl's readers, too.
_GROUP_BYTES = 32 << 20
# Columns with few values; a dictionary of prompts would only be thrown away again.
_FEW_VALUES = [
    "data_source",
    "ability",
    "prompt.list.element.role",
    "reward_model.style",
    "extra_info.split",
]


class ParquetSink:
    """Rows in, one row group of memory held, ``path`` in place only after :meth:`publish`.

    Used as a context manager; leaving it without ``publish`` leaves an older ``path`` as it was.

    Args:
        scratch: folder on the same file system, for the unfinished file; who made it removes it.
        schema: ``data_prep.schema.output_schema``; batches come without their place in the split.
        split: ``train`` or ``test``.
    """

    def __init__(self, path: Path, scratch: Path, schema: pa.Schema, split: str) -> None:
        self.path = path
        self.rows = 0
        self._schema = schema
        self._split = split
        self.part = scratch / path.name
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(
            self.part, schema, compression="zstd", use_dictionary=_FEW_VALUES
        )

    def __enter__(self) -> ParquetSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows of ``data_prep.schema.spool_schema``."""
        for start in range(0, len(batch), ROWS_PER_GROUP):
            part = batch.slice(start, ROWS_PER_GROUP)
            placed = with_places(part, self._schema, self._split, self.rows)
            self.rows += len(part)
            self._pending.append(placed)
            self._pending_rows += len(part)
            self._pending_bytes += placed.nbytes
            if self._pending_rows >= ROWS_PER_GROUP or self._pending_bytes >= _GROUP_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write what is pending and the footer, and reach the disk; ``path`` is not touched yet.

        Raises:
            DataError: there is not one row.
        """
        if self._writer is None:
            raise RuntimeError(f"{self.path}: already finished")
        if not self.rows:
            raise DataError(f"{self.path}: no row is left for the {self._split} split; nothing is written.")
        self._flush()
        self._writer.close()
        self._writer = None
        with self.part.open("rb") as file:
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Put the finished file at ``path`` in one step."""
        self.part.replace(self.path)

    def _flush(self) -> None:
        if self._pending and self._writer is not None:
            self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=self._pending_rows)
            self._pending.clear()
            self._pending_rows = self._pending_bytes = 0
