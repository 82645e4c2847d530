"""Rows that cannot be used: the first one stops the conversion, or all are set aside in a file, with reasons."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from data_prep.errors import DataError, RowError
from data_prep.reading.block import RawRow

_KEYS = {"file", "row", "field", "expected"}
_MOST_REASONS = 1000


class BadRows:
    """Takes bad rows; a context manager.

    The file is JSONL of ``{"file", "row", "field", "expected"}`` and the row itself: ``raw``, its text;
    ``raw_base64``, where that is not UTF-8; ``value``, where it was no text of its own (CSV, parquet). It appears
    with :meth:`publish`, and only where there are bad rows: an older one of ours is then replaced, or removed.

    Args:
        path: the file; None: the first bad row is raised.
        inputs: files that are read or written; ``path`` must be none of them.
        scratch: folder for the unfinished file, which who made the folder removes; None: beside ``path``.

    Raises:
        DataError: ``path`` is one of ``inputs``, or holds something that is not such a file.
    """

    def __init__(
        self, path: Path | None, inputs: list[Path], scratch: Path | None = None, *, replace: bool = True
    ) -> None:
        self.path = path
        self.count = 0
        self.reasons: Counter[str] = Counter()
        self._part: Path | None = None
        self._file: TextIO | None = None
        if path is None:
            return
        if path.exists():
            if any(path.samefile(entry) for entry in inputs if entry.exists()):
                raise DataError(f"--skip-bad {path}: is a source, and would be overwritten.")
            if not path.is_file() or not _is_ours(path) or (path.stat().st_size and not replace):
                raise DataError(
                    f"--skip-bad {path}: is there already and holds no bad rows of this data set; "
                    "name another file."
                )
        elif any(path.resolve() == entry.resolve() for entry in inputs):
            raise DataError(f"--skip-bad {path}: is a file that the conversion writes; name another one.")
        elif not path.parent.is_dir():
            raise DataError(f"--skip-bad {path}: the folder {path.parent} is not there.")
        self._beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            self._beside.touch()
            self._beside.unlink()
        except OSError as error:
            raise DataError(f"--skip-bad {path}: cannot be written: {error.strerror}.") from error
        self._part = self._beside if scratch is None else scratch / "bad-rows.part"

    def __enter__(self) -> BadRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._part is not None:
            self._part.unlink(missing_ok=True)
            self._beside.unlink(missing_ok=True)

    def add(self, error: RowError, raw: bytes | None, row: RawRow | None) -> None:
        """Set a row aside.

        Raises:
            RowError: ``error``, where there is no file for it.
        """
        if self._part is None:
            raise error
        self.count += 1
        reason = f"{error.field}: {error.expected}" if error.field else error.expected
        if reason in self.reasons or len(self.reasons) < _MOST_REASONS:
            self.reasons[reason] += 1
        if self._file is None:
            self._file = self._part.open("w", encoding="utf-8")
        entry = {"file": error.file, "row": error.number, "field": error.field, "expected": error.expected}
        self._file.write(json.dumps(entry | _content(raw, row), default=str) + "\n")

    def publish(self) -> None:
        """Put the file in place; without bad rows, remove one of an earlier run."""
        if self.path is None or self._part is None:
            return
        if self._file is None:
            self.path.unlink(missing_ok=True)
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        try:
            self._part.replace(self.path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copyfile(self._part, self._beside)  # from another file system
            self._beside.replace(self.path)


def _content(raw: bytes | None, row: RawRow | None) -> dict[str, Any]:
    if raw is None:
        return {"value": row}
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    if not first:
        return True
    try:
        found = json.loads(first)
    except ValueError:
        # A long first row is cut above.
        return first.startswith(b'{"file": "')
    return isinstance(found, dict) and found.keys() >= _KEYS
