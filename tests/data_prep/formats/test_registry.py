"""Which format a file is in, by its first rows; and rows whose fields the user maps."""

from __future__ import annotations

from typing import Any

import pytest

from data_prep.errors import DataError, FieldError
from data_prep.formats.example import Example
from data_prep.formats.mapped import mapped, parse_path
from data_prep.formats.registry import FORMATS, detect
from data_prep.formats.text import json_text, shown
from data_prep.reading.block import Record
from data_prep.reading.lines import Literal


def records(*rows: dict[str, Any] | FieldError) -> list[Record]:
    return [Record(number, row) for number, row in enumerate(rows)]


MARKED = {"question": "2+2?", "answer": "#### 4"}
PLAIN = {"question": "2+2?", "answer": "4"}
VERL = {"data_source": "x", "prompt": "2+2?", "reward_model": {"ground_truth": "4"}, "answer": "4"}


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([PLAIN, MARKED], "gsm8k"),
        ([PLAIN], "prompt_response"),
        ([{"problem": "x", "solution": "y", "answer": "z"}], "math"),
        ([{"messages": [], "prompt": "x", "response": "y"}], "messages"),
        ([{"instruction": "x", "input": "", "output": "y"}], "alpaca"),
        ([{"input": "x", "output": "y"}], "prompt_response"),
        ([{"conversations": []}], "sharegpt"),
        ([{"prompt": "x", "chosen": "y", "rejected": "z"}], "preference"),
        ([{"prompt": "x", "responses_create_params": {}}], "nemo_gym"),
        ([VERL], "verl"),
        ([FieldError(None, "not JSON"), {"odd": 1}, MARKED], "gsm8k"),
        ([{"messages": []}, MARKED, MARKED], "gsm8k"),
    ],
)
def test_detect(rows: list[dict[str, Any] | FieldError], name: str) -> None:
    assert detect(records(*rows), "a.jsonl") is FORMATS[name]


def test_unknown_fields_are_told_with_every_format() -> None:
    with pytest.raises(DataError) as caught:
        detect(records({"Problem": "x", "solution_text": "\x1b[2J", "a\x1bb": 1}), "a.jsonl")
    text = str(caught.value)
    assert text.startswith("a.jsonl: ")
    assert r"'Problem', 'solution_text', 'a\x1bb'" in text
    assert "Nearest: math." in text
    assert all(f"  {format.name}: {format.fields}" in text for format in FORMATS.values())
    assert "--map prompt=PATH" in text


def test_no_readable_row() -> None:
    with pytest.raises(DataError, match=r"none of the first 1 rows can be read \(row 0: not JSON\).*--format"):
        detect(records(FieldError(None, "not JSON")), "a.jsonl")


ROW = {"a": {"b": [{"c": "2+2?"}], "x.y": "4", "": "e"}, "n": Literal("1.50"), "tag": "sums", "id": 7}


@pytest.mark.parametrize("path", ["a.b[0].c", "/a/b/0/c", '"a".b[0]."c"', '"a"."b"[0].c'])
def test_paths(path: str) -> None:
    assert mapped({"prompt": path}).to_example(ROW).prompt == [{"role": "user", "content": "2+2?"}]


def test_mapped_row() -> None:
    mapping = {"prompt": "/a/b/0/c", "ground_truth": "n", "answer": 'a."x.y"', "data_source": "tag", "level": "id"}
    assert mapped(mapping).to_example(ROW) == Example(
        [{"role": "user", "content": "2+2?"}],
        "1.50",
        "4",
        None,
        {"a": ROW["a"], "level": 7},
        data_source="sums",
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.c", "nothing at 'a.c'; 'a' has 'b', 'x.y', ''"),
        ("a.b[3].c", "nothing at 'a.b[3]'; 'a.b' is a list of 1"),
        ("id.b", "nothing at 'id.b'; 'id' is int 7"),
        ("zz", "nothing at 'zz'; the row has 'a', 'n', 'tag', 'id'"),
        ("n", "expected a list of messages"),
    ],
)
def test_path_that_leads_nowhere(path: str, expected: str) -> None:
    with pytest.raises(FieldError) as caught:
        mapped({"prompt": path}).to_example(ROW)
    assert caught.value.field == path
    assert expected in caught.value.expected


@pytest.mark.parametrize("path", ["", ".a", "a[", "a[x]", 'a"b', "a..b", '"a', "a[-1]"])
def test_path_that_is_none(path: str) -> None:
    with pytest.raises(DataError, match="--map"):
        parse_path(path)


def test_mapping_without_prompt() -> None:
    with pytest.raises(DataError, match="--map prompt=PATH is missing"):
        mapped({"answer": "a"})


def test_json_text() -> None:
    assert json_text({"b": [Literal("1.50"), 2, None], "a": "é\n"}) == '{"b":[1.50,2,null],"a":"é\\n"}'
    for value, path in [({"a": [{"b": "\ud800"}]}, "a[0].b"), ({"a": float("nan")}, "a"), ([b"x"], "[0]")]:
        with pytest.raises(FieldError) as caught:
            json_text(value)
        assert caught.value.field == path
    with pytest.raises(FieldError, match="lone surrogate"):
        json_text({"a": {"\ud800": 1}}, "metadata")


def test_shown_is_short_and_printable() -> None:
    assert shown("\x1b[2J") == r"str '\x1b[2J'"
    assert len(shown("x" * 10_000_000)) < 80
