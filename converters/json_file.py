"""JSON out of a checkpoint: of bounded size, and whatever is wrong with it is an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from converters.errors import ConvertError

MOST_BYTES = 100_000_000  # ten times the largest tokenizer.json there is; safetensors' own limit of a header


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConvertError: the file is missing, is larger than `MOST_BYTES`, or is no JSON object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ConvertError(f"{path}: missing") from error
    return parse(data, str(path))


def parse(data: bytes, where: str) -> dict[str, Any]:
    """The object in JSON text; `where` is its place, for messages.

    Raises:
        ConvertError: it is larger than `MOST_BYTES`, nested too deeply, or no JSON object.
    """
    if len(data) > MOST_BYTES:
        raise ConvertError(f"{where}: more than {MOST_BYTES} bytes, too large for a file of settings")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ConvertError(f"{where}: no JSON (nested too deeply)") from error
    except ValueError as error:
        raise ConvertError(f"{where}: no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConvertError(f"{where}: {type(value).__name__} where an object is expected")
    return value
