"""Token numbers in a tokenizer's files, as far as they can be told without its library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.json_file import read_json


@dataclass(frozen=True)
class Tokens:
    """`largest` number of a token; text and number of the end token, None where not told."""

    largest: int
    eos: str | None
    eos_id: int | None


def token_ids(value: Any) -> list[int]:
    """`eos_token_id` and its like: a number, a list of numbers, or nothing."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]


def read_tokens(files: Mapping[str, Path]) -> Tokens | None:
    """What tokenizer.json and tokenizer_config.json say; None without the former.

    Raises:
        ConvertError: one of them is no JSON object.
    """
    if "tokenizer.json" not in files:
        return None
    tokenizer = read_json(files["tokenizer.json"])
    numbers = _numbers(tokenizer)
    if not numbers:
        return None
    config = read_json(files["tokenizer_config.json"]) if "tokenizer_config.json" in files else {}
    eos = config.get("eos_token")
    if isinstance(eos, dict):  # an AddedToken
        eos = eos.get("content")
    eos = eos if isinstance(eos, str) else None
    return Tokens(max(numbers.values()), eos, numbers.get(eos) if eos is not None else None)


def _numbers(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Text of a token -> its number: BPE and WordPiece have a mapping, Unigram a list of pairs."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    found: dict[str, int] = {}
    if isinstance(vocabulary, dict):
        found = {token: number for token, number in vocabulary.items() if isinstance(number, int)}
    elif isinstance(vocabulary, list):
        found = {str(entry[0]): i for i, entry in enumerate(vocabulary) if isinstance(entry, list) and entry}
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            found[str(token.get("content"))] = token["id"]
    return found
