"""JSON out of a checkpoint: of bounded size, and whatever is wrong with it is an error that names the file."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

from converters.errors import ConvertError

MOST_BYTES = 100_000_000  # ten times the largest tokenizer.json there is; safetensors' own limit of a header

_MOST_DIGITS = 40  # int() of thousands takes time by their square


def check_regular(path: Path) -> None:
    """Opening a pipe would wait for ever.

    Raises:
        ConvertError: there is something, and it is not a file (links count for what they lead to).
    """
    if path.exists() and not path.is_file():
        raise ConvertError(f"{path}: not a regular file. Put the file itself there.")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConvertError: the file is missing, is larger than `MOST_BYTES`, or is no JSON object.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ConvertError(f"{path}: missing") from error
    return parse(data, str(path))


def parse(data: bytes, where: str, *, once: bool = False) -> dict[str, Any]:
    """The object in JSON text.

    Args:
        where: its place, for messages.
        once: a name that stands twice in one object is an error; else the last one counts.

    Raises:
        ConvertError: it is larger than `MOST_BYTES`, nested too deeply, or no JSON object.
    """
    if len(data) > MOST_BYTES:
        raise ConvertError(f"{where}: more than {MOST_BYTES} bytes, too large for a file of settings")
    try:
        value = json.loads(data, parse_int=_whole_number, object_pairs_hook=_without_repeats if once else None)
    except RecursionError as error:
        raise ConvertError(f"{where}: no JSON (nested too deeply)") from error
    except ValueError as error:
        raise ConvertError(f"{where}: no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConvertError(f"{where}: {type(value).__name__} where an object is expected")
    return value


def _whole_number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(text)} characters")
    return int(text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{reprlib.repr(name)} is there twice")
        found[name] = value
    return found
