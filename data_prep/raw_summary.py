"""What a raw file (JSONL, JSON, CSV, compressed or not) holds before it is converted: fields, types, lengths."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import FieldError, RowError
from data_prep.histogram import Histogram
from data_prep.printing import printable
from data_prep.reading.files import open_input

_MOST_FIELDS = 50
_MOST_MEASURED = 12
_SHOWN_PROBLEMS = 3
_NAMES: dict[type, str] = {
    str: "text", bool: "true/false", int: "int", float: "float", dict: "object", list: "list", type(None): "null"
}  # fmt: skip


@dataclass
class RawSummary:
    """One file.

    Attributes:
        kind: ``jsonl``, ``json``, ``csv`` or ``tsv``.
        rows: all of them; ``bad`` of them are none, the first of which are told in ``problems``.
        fields: by top-level field, how many rows have it with which type; of the first 50 fields.
        lengths: in characters, of the texts in the fields ``measured``.
        shown: (number, row) of the rows that were asked for.
    """

    path: str
    bytes: int
    kind: str
    rows: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    fields: dict[str, Counter[str]] = field(default_factory=dict)
    lengths: dict[str, Histogram] = field(default_factory=dict)
    shown: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    measured: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """The figures, for ``--json``."""
        return {
            "path": self.path,
            "bytes": self.bytes,
            "kind": self.kind,
            "rows": self.rows,
            "bad": self.bad,
            "problems": self.problems,
            "fields": self.fields,
            "lengths": {name: {**found.figures(), "bins": found.bins()} for name, found in self.lengths.items()},
        }


def summarize_raw(path: Path, numbers: set[int]) -> RawSummary:
    """Read every row; ``numbers`` (from 0) are those to keep.

    Raises:
        DataError: the file cannot be read to its end, or has no rows.
    """
    with tempfile.TemporaryDirectory(prefix="data_prep-") as work:
        file = open_input(str(path), Path(work))
        found = RawSummary(printable(file.shown, 4096), file.size, file.kind)
        for block in file.blocks():
            sizes: dict[str, list[int]] = {}
            for record in block.records():
                if isinstance(record.row, FieldError):
                    found.bad += 1
                    if len(found.problems) < _SHOWN_PROBLEMS:
                        error = record.row
                        told = RowError(file.shown, record.number, error.field, error.expected, lines=block.lines)
                        found.problems.append(printable(str(told), 500))
                else:
                    _add(found, record.row, sizes)
                    if found.rows in numbers:
                        found.shown.append((found.rows, record.row))
                found.rows += 1
            for name, lengths in sizes.items():
                found.lengths.setdefault(f"{name}, characters", Histogram()).add(np.array(lengths, dtype=np.int64))
    return found


def _add(found: RawSummary, row: dict[str, Any], sizes: dict[str, list[int]]) -> None:
    for key, value in row.items():
        name = printable(key)
        if name not in found.fields:
            if len(found.fields) >= _MOST_FIELDS:
                continue
            found.fields[name] = Counter()
        found.fields[name][_type_name(value)] += 1
        if isinstance(value, str):
            if name in found.measured:
                sizes.setdefault(name, []).append(len(value))
            elif len(found.measured) < _MOST_MEASURED:
                found.measured.add(name)
                sizes[name] = [len(value)]


def _type_name(value: Any) -> str:
    return _NAMES.get(type(value)) or next(
        (name for kind, name in _NAMES.items() if isinstance(value, kind)), "other"
    )
