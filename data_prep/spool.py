"""Converted rows on disk, until it is known which of them go where.

A part is a file of whole Arrow IPC streams, one after the other: a worker makes a stream of its block
(:func:`encoded`), the spool writes it through as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from data_prep.errors import DataError

# Halves what is written and costs less than writing it; not so for the many small pieces that sorting makes.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_PLAIN = pa.ipc.IpcWriteOptions()


def encoded(batch: pa.RecordBatch, *, compressed: bool = True) -> pa.Buffer:
    """``batch`` as an Arrow IPC stream of its own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED if compressed else _PLAIN) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def batches_in(path: Path) -> Iterator[pa.RecordBatch]:
    """What was written to ``path`` by :func:`append_to`, one batch in memory at a time.

    Read, not mapped: mapped pages count as memory of the process.
    """
    with pa.OSFile(str(path)) as file:
        size = file.size()
        while file.tell() < size:
            with pa.ipc.open_stream(file) as stream:
                yield from stream


def append_to(path: Path, data: bytes | pa.Buffer) -> None:
    """Append what :func:`encoded` gave.

    Raises:
        DataError: the disk is full, or the file cannot be written.
    """
    try:
        with path.open("ab", buffering=0) as file:
            written, view = 0, memoryview(data)
            while written < len(view):
                written += file.write(view[written:])
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}. Rows wait there until all are read; the file system needs room for "
            "as much as the input takes uncompressed, and for twice that with --shuffle or --weight."
        ) from error


class Spool:
    """Rows in the order in which they came; a row's id is its number, from 0, over all parts.

    Args:
        folder: for this spool alone; made if missing; who made its parent removes it.
        schema: of every batch.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.schema = schema
        self.rows = 0
        self.part_rows: list[int] = []
        self.part_bytes: list[int] = []

    def next_part(self) -> None:
        """Begin a part: a source, or a file with test rows. Called before the first row, too."""
        self._path(len(self.part_rows)).touch()
        self.part_rows.append(0)
        self.part_bytes.append(0)

    def append(self, batch: pa.RecordBatch) -> int:
        """Add rows to the part begun last; returns the id of the first one.

        Raises:
            DataError: the disk is full.
        """
        if batch.schema != self.schema:
            raise ValueError(f"a batch has the schema {batch.schema}, the spool {self.schema}")
        return self.append_encoded(encoded(batch), len(batch), batch.nbytes)

    def append_encoded(self, data: bytes | pa.Buffer, rows: int, nbytes: int) -> int:
        """As :meth:`append`, with the result of :func:`encoded` for a batch of ``rows`` rows and ``nbytes``."""
        first = self.rows
        if rows:
            append_to(self._path(len(self.part_rows) - 1), data)
            self.rows += rows
            self.part_rows[-1] += rows
            self.part_bytes[-1] += nbytes
        return first

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in memory."""
        return sum(self.part_bytes)

    def batches(self, part: int) -> Iterator[pa.RecordBatch]:
        """The rows of a part, as they were appended."""
        return batches_in(self._path(part))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for part in range(len(self.part_rows)):
            yield from self.batches(part)

    def _path(self, part: int) -> Path:
        return self.folder / f"part-{part:05d}.arrows"
