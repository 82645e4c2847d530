"""Every input format by name, and which of them a file is in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from data_prep.errors import DataError, FieldError
from data_prep.formats.alpaca import ALPACA
from data_prep.formats.chat import MESSAGES
from data_prep.formats.example import Format
from data_prep.formats.gsm8k import GSM8K, MARK
from data_prep.formats.mapped import mapped
from data_prep.formats.math import MATH
from data_prep.formats.nemo_gym import NEMO_GYM
from data_prep.formats.preference import PREFERENCE
from data_prep.formats.prompt_response import PROMPT_RESPONSE
from data_prep.formats.sharegpt import SHAREGPT
from data_prep.formats.text import shown_fields
from data_prep.formats.verl_rows import verl_format
from data_prep.reading.block import RawRow, Record

__all__ = ["FORMATS", "detect", "mapped"]

# In the order in which they are tried: a format whose fields another one's rows may have too comes after that.
FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        NEMO_GYM,
        verl_format(None),
        PREFERENCE,
        MESSAGES,
        SHAREGPT,
        ALPACA,
        MATH,
        GSM8K,
        PROMPT_RESPONSE,
    )
}
_NAMES = re.compile(r"'(\w+)'")


def detect(records: Sequence[Record], shown: str) -> Format:
    """The format of a file with these first rows: the one that most of them match, the first of such.

    Args:
        shown: the file, as told in messages.

    Raises:
        DataError: no row is in a known format, or none can be read at all.
    """
    rows = [record.row for record in records if not isinstance(record.row, FieldError)]
    if not rows:
        faults = [f"row {record.number}: {record.row}" for record in records]
        raise DataError(
            f"{shown}: no format recognised, for none of the first {len(records)} rows can be read"
            + (f" ({faults[0]})" if faults else "")
            + ". Name it: --format."
        )
    matches = {format.name: sum(map(format.matches, rows)) for format in FORMATS.values()}
    best = FORMATS[max(matches, key=lambda name: matches[name])]
    if not matches[best.name]:
        raise DataError(_unknown(rows, shown))
    # The same two fields hold a solution with its final number in GSM8K, and any answer elsewhere.
    if best is GSM8K and not any(isinstance(row.get("answer"), str) and MARK in row["answer"] for row in rows):
        return PROMPT_RESPONSE
    return best


def _unknown(rows: Sequence[RawRow], shown: str) -> str:
    fields = {str(name): None for row in rows for name in row}
    lowered = [name.lower() for name in fields]
    nearest = [
        format.name
        for format in FORMATS.values()
        if any(get_close_matches(name, lowered, n=1, cutoff=0.8) for name in _NAMES.findall(format.fields))
    ]
    wanted = "\n".join(f"  {format.name}: {format.fields}" for format in FORMATS.values())
    return (
        f"{shown}: the format of its rows is not known; they have {shown_fields(dict(fields))}.\n"
        f"A row of each format has:\n{wanted}\n"
        + (f"Nearest: {', '.join(nearest)}. " if nearest else "")
        + "Say where things are: --format map --map prompt=PATH --map ground_truth=PATH."
    )
