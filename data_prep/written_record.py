"""Whether a parquet file is still what the dataset.json beside it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data_prep.digest import file_sha256
from data_prep.printing import quoted
from data_prep.record import RECORD_NAME as RECORD

_MOST_BYTES = 16 << 20


def record_note(path: Path, rows: int) -> str | None:
    """In what ``path`` differs from its entry in the record; None where it does not, or has no entry.

    Raises:
        OSError: a file cannot be read.
    """
    record = path.with_name(RECORD)
    if not record.is_file():
        return None
    try:
        if record.stat().st_size > _MOST_BYTES:
            raise ValueError("too large")
        outputs: Any = json.loads(record.read_bytes()).get("outputs")
        entries = [entry for entry in outputs if Path(str(entry.get("file"))).name == path.name]
    except (ValueError, RecursionError, AttributeError, TypeError):
        return f"{RECORD} beside it is not what data_prep.convert writes: not compared with it"
    for entry in entries:
        if entry.get("rows") != rows:
            return f"it has {rows} rows, and {RECORD} beside it says {quoted(entry.get('rows'))}: it was changed"
        if entry.get("sha256") != file_sha256(path):
            return f"its bytes are not those that {RECORD} beside it records: it was changed after the conversion"
    return None
