"""Parquet files that are there already: opened, and their rows in batches of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.printing import printable

_MAGIC = b"PAR1"
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 4096
_SHOWN_REASON_CHARS = 300

# Arrow raises ValueError for text that is not UTF-8 and for types that it does not know.
UNREADABLE = (OSError, pa.ArrowException, ValueError)


class BadNameError(ValueError):
    """A name that Arrow cannot open."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open ``path`` for :func:`batches`; a context manager.

    Raises:
        OSError, pyarrow.ArrowException, ValueError (:data:`UNREADABLE`): not a whole parquet file; a pipe among
            others, whose end cannot be read first.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    problem = name_problem(path)
    if problem is not None:
        raise BadNameError(problem)
    path.open("rb").close()  # what the system has against it is told in its own words
    # Whole column chunks are not read ahead: a row group may be larger than the memory.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


def is_parquet(path: Path) -> bool:
    """Whether the file begins as parquet does; nothing is read of what is no regular file (a pipe may wait)."""
    if path.exists() and not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def batches(
    file: pq.ParquetFile, columns: Sequence[str], *, row_groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of ``columns`` (``extra_info.split`` is one key) in order, some megabytes at a time.

    Raises:
        OSError, pyarrow.ArrowException, ValueError (:data:`UNREADABLE`): a part that cannot be decoded.
    """
    meta = file.metadata
    for group in range(meta.num_row_groups) if row_groups is None else row_groups:
        part = meta.row_group(group)
        each = part.total_byte_size // max(part.num_rows, 1) + 1
        rows = min(max(_BATCH_BYTES // each, 1), _BATCH_ROWS)
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=list(columns), use_threads=False)


def name_problem(path: Path) -> str | None:
    """Why Arrow, which takes names as UTF-8, cannot open or write `path`; None: it can."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8, as pyarrow needs it; rename it"
    return None


def outside(error: BaseException) -> str | None:
    """Why a file is not read, where that is not for what it holds."""
    if isinstance(error, BadNameError):
        return str(error)
    # Arrow's own errors name no file.
    return error.strerror if isinstance(error, OSError) and error.filename is not None else None


def unreadable(error: BaseException) -> str:
    """Why a file is not read, for a message."""
    reason = outside(error)
    if reason is not None:
        return reason
    return f"not readable as parquet: {printable(' '.join(str(error).split()), _SHOWN_REASON_CHARS)}"
