"""verl's own rows: ``data_source``, ``prompt``, ``reward_model``, ``extra_info``; to split or tag them anew."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from data_prep.errors import FieldError
from data_prep.formats.chat import prompt_of
from data_prep.formats.example import Example, Format
from data_prep.formats.text import check_text, require, shown, truth_text
from data_prep.reading.block import RawRow
from data_prep.reading.lines import parse_object
from data_prep.schema import GROUND_TRUTH, carried_fields

_COLUMNS = frozenset(("data_source", "prompt", "ability", "reward_model", "extra_info"))
# The place of a row is written anew; the others are fields of the Example.
_INFO = frozenset(("split", "index", "question", "answer", "metadata"))
_REWARD = frozenset(("style", "ground_truth"))


def verl_format(schema: pa.Schema | None) -> Format:
    """verl's rows.

    Args:
        schema: of a parquet file: its further columns are carried with their types. None (JSONL, JSON, CSV): these
            have no types that hold for all rows, so they become metadata.
    """
    paths = tuple(carried_fields(schema)) if schema is not None else None

    def to_example(row: RawRow) -> Example:
        return _to_example(row, paths)

    return Format(
        name="verl",
        fields="'prompt', 'reward_model' with 'ground_truth' ('data_source', 'ability', 'extra_info')",
        matches=lambda row: "prompt" in row and isinstance(row.get("reward_model"), dict),
        to_example=to_example,
    )


def _to_example(row: RawRow, paths: tuple[str, ...] | None) -> Example:
    prompt = prompt_of(require(row, "prompt"), "prompt")
    reward = _object(row, "reward_model")
    info = _object(row, "extra_info")
    truth = reward.get("ground_truth")
    typed = paths is not None and "extra_info.metadata" in paths
    metadata = {} if typed else _metadata(info.get("metadata"))
    if not isinstance(info.get("index"), int | None):
        if typed:
            raise FieldError(
                "extra_info.index", "is no number, and extra_info.metadata is no text that could keep it"
            )
        metadata["index"] = info["index"]  # an id (DAPO has UUIDs); a number is the row's place, written anew
    carried: dict[str, Any] = {}
    if paths is None:
        metadata.update((name, value) for name, value in row.items() if name not in _COLUMNS)
        metadata.update((name, value) for name, value in info.items() if name not in _INFO)
        metadata.update((name, value) for name, value in reward.items() if name not in _REWARD)
    else:
        carried = {path: _at(row, path, reward, info) for path in paths}
    return Example(
        prompt,
        None if truth is None else truth_text(truth, GROUND_TRUTH),
        _text(info, "answer"),
        _text(info, "question"),
        metadata,
        _name(row.get("data_source"), "data_source"),
        _name(row.get("ability"), "ability"),
        _name(reward.get("style"), "reward_model.style"),
        carried,
    )


def _object(row: RawRow, field: str) -> RawRow:
    value = row.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FieldError(field, f"expected an object, got {shown(value)}")
    return value


def _at(row: RawRow, path: str, reward: RawRow, info: RawRow) -> Any:
    top, _, key = path.partition(".")
    if top == "extra_info" and key:
        return info.get(key)
    return reward.get(key) if top == "reward_model" and key else row.get(path)


def _metadata(value: object) -> dict[str, Any]:
    """``extra_info.metadata`` as it was before it was written as JSON text."""
    if value is None or value == "":
        return {}
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, str) and value.startswith("{"):
        try:
            return parse_object(value.encode("utf-8", "surrogatepass"))
        except FieldError:  # somebody else's text
            return {"metadata": value}
    return {"metadata": value}


def _text(info: RawRow, key: str) -> str | None:
    value = info.get(key)
    return None if value is None or value == "" else truth_text(value, f"extra_info.{key}")


def _name(value: object, path: str) -> str | None:
    return None if value is None else check_text(value, path)
