"""The files beside the weights of two Hugging Face models: config.json by meaning, the others by content."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converters.errors import ConvertError
from converters.hf import rope
from converters.hf.hf_files import kept_files
from converters.json_file import read_json

_NOT_OF_THE_MODEL = ("transformers_version", "_name_or_path")
# Where transformers and its tokenizers found the files.
_NOT_OF_THE_TOKENIZER = ("is_local", "local_files_only", "name_or_path")
# Names of one number: transformers 4 and 5 read one of them each, so that both may be written.
_SECOND_NAMES = (("num_experts", "num_local_experts"),)
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
_TEMPLATE = "chat template"
_MISSING = object()
_SHOWN = 160


@dataclass
class FileDifference:
    """`config` and `files` are a line for each difference; `same` names files of equal content."""

    config: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        return not (self.config or self.files)


def compare_files(
    a: Path, b: Path, ignore_dtype: bool = False, tied: bool = False, same_weights: bool = False
) -> FileDifference:
    """Compare everything but the weights.

    Args:
        ignore_dtype: a config.json of another type is no difference.
        tied: the weights are known to be tied on both sides, so that the flag alone is no difference.
        same_weights: they are known to be the same, types and all, so that a config.json need not tell the type.

    Raises:
        ConvertError: a config.json is missing or damaged.
        OSError: a file cannot be read.
    """
    result = FileDifference()
    one, other = (normal(read_json(folder / "config.json")) for folder in (a, b))
    if ignore_dtype:
        for config in (one, other):
            config.pop("dtype", None)
    result.notes += _only_told_once(one, other, same_weights)
    if tied and bool(one.get("tie_word_embeddings")) != bool(other.get("tie_word_embeddings")):
        result.notes.append("tie_word_embeddings differs; the weights are tied on both sides")
        one.pop("tie_word_embeddings", None)
        other.pop("tie_word_embeddings", None)
    result.config = value_differences(one, other)
    contents_a, contents_b = _contents(a), _contents(b)
    for name in sorted({*contents_a, *contents_b}):
        here, there = contents_a.get(name, _MISSING), contents_b.get(name, _MISSING)
        if here is _MISSING or there is _MISSING:
            result.files.append(f"{name}: only in {'B' if here is _MISSING else 'A'}")
        elif here == there or (not isinstance(here, bytes) and _same(here, there)):
            result.same.append(name)
        elif isinstance(here, dict) and isinstance(there, dict):
            result.files += [f"{name}: {line}" for line in _key_differences(here, there)]
        else:
            result.files.append(f"{name}: differs")
    return result


def _only_told_once(a: dict[str, Any], b: dict[str, Any], same_weights: bool, at: str = "") -> list[str]:
    """Take out of two configs what one tells and the other need not, with a note for each."""
    notes = []
    if same_weights and (a.get("dtype") is None) != (b.get("dtype") is None):
        lacks = "A" if a.get("dtype") is None else "B"
        notes.append(f"{at}dtype is not set in {lacks}; the types of the weights are the same")
        a.pop("dtype", None)
        b.pop("dtype", None)
    for names in _SECOND_NAMES:
        for side, both, other in (("A", a, b), ("B", b, a)):
            values = [both.get(name) for name in names]
            extra = [name for name in names if other.get(name) is None]
            if None not in values and values[0] == values[1] and len(extra) == 1:
                both.pop(extra[0])
                notes.append(f"{at}{names[0]} and {names[1]} are both set in {side}, to the same")
    if isinstance(a.get("text_config"), dict) and isinstance(b.get("text_config"), dict):
        notes += _only_told_once(a["text_config"], b["text_config"], same_weights, f"{at}text_config.")
    return notes


def _same(a: Any, b: Any) -> bool:
    """Whether two values of JSON are; NaN, which Python writes into it, is itself."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b) or _as_text(a) == _as_text(b)


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def normal(config: dict[str, Any]) -> dict[str, Any]:
    """config.json without what says nothing about the model; `dtype` and RoPE in one form, also in text_config."""
    found = {k: v for k, v in config.items() if k not in (*_NOT_OF_THE_MODEL, *_ROPE_KEYS, "torch_dtype")}
    dtype = config.get("dtype", config.get("torch_dtype"))
    if dtype is not None:
        found["dtype"] = dtype
    rotary = rope.as_read_by_5(config)
    if rotary:
        found["rope"] = rotary
    if isinstance(config.get("text_config"), dict):
        found["text_config"] = normal(config["text_config"])
    return found


def value_differences(
    a: dict[str, Any], b: dict[str, Any], sides: tuple[str, str] = ("in A", "in B"), at: str = ""
) -> list[str]:
    """A line for each key that differs; absent and null are the same."""
    lines = []
    for key in (*a, *(key for key in b if key not in a)):
        here, there = a.get(key), b.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            lines += value_differences(here, there, sides, f"{at}{key}.")
        elif not _same(here, there):
            lines.append(f"{at}{key}: {_shown(here)} {sides[0]}, {_shown(there)} {sides[1]}")
    return lines


def _key_differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """A line for each key at the top: a vocabulary that differs would have one for every token."""
    lines = []
    for key in (*a, *(key for key in b if key not in a)):
        here, there = a.get(key), b.get(key)
        if _same(here, there):
            continue
        if type(here) is type(there) and isinstance(here, dict | list):
            assert isinstance(there, dict | list)
            lines.append(f"{key}: differs ({len(here)} entries in A, {len(there)} in B)")
        else:
            lines.append(f"{key}: {_shown(here)} in A, {_shown(there)} in B")
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _contents(folder: Path) -> dict[str, Any]:
    """Name -> content: JSON as values, else bytes; a chat template wherever it is kept."""
    found: dict[str, Any] = {}
    for name, path in kept_files(folder).items():
        data = path.read_bytes()
        if path.suffix != ".json":
            found[name] = data
            continue
        try:
            found[name] = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConvertError(f"{path}: {len(data)} bytes, no JSON ({error}). Copy the file again.") from error
    _move_template(found)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if isinstance(found.get(name), dict):
            found[name] = {key: _token(value) for key, value in found[name].items()}
    for name in ("generation_config.json", "tokenizer_config.json"):
        if isinstance(found.get(name), dict):
            left_out = (*_NOT_OF_THE_MODEL, *_NOT_OF_THE_TOKENIZER)
            found[name] = {k: v for k, v in found[name].items() if k not in left_out}
    return found


def _token(value: Any) -> Any:
    """A special token as its text: versions write it with or without its flags, which tokenizer.json has."""
    if isinstance(value, list):
        return [_token(entry) for entry in value]
    return value["content"] if isinstance(value, dict) and isinstance(value.get("content"), str) else value


def _move_template(found: dict[str, Any]) -> None:
    """chat_template.jinja, chat_template.json or a key of tokenizer_config.json: one entry, the first wins.

    transformers 4.43 and before know only the key; 5 writes the file.
    """
    config = found.get("tokenizer_config.json")
    key = config.pop("chat_template", None) if isinstance(config, dict) else None
    old = found.pop("chat_template.json", None)
    file = found.pop("chat_template.jinja", None)
    template = file.decode(errors="replace") if isinstance(file, bytes) else None
    if template is None:
        template = old.get("chat_template") if isinstance(old, dict) else None
    if template is None:
        template = key
    if template is not None:
        found[_TEMPLATE] = template
