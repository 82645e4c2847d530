from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from data_prep.options import Options
from data_prep.record import (
    RECORD_NAME,
    DatasetRecord,
    FileRecord,
    OutputRecord,
    PartRecord,
    options_json,
    read_record,
    versions,
    why_again,
    write_atomic,
)

CONTENT = b"what was written"


def record_of(path: str = "in.jsonl", options: Options | None = None) -> DatasetRecord:
    return DatasetRecord(
        sources=[FileRecord(path, "aa", 5, "gsm8k", "train", read=3)],
        parts=[PartRecord(path, 3, 0, 0, 0, 2, 1)],
        outputs=[OutputRecord("train.parquet", 2, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())],
        composition=[],
        repeats={},
        columns={"data_source": "string"},
        options=options_json(options or Options(), sources=["in.jsonl"]),
        versions=versions(),
    )


def written(folder: Path, record: DatasetRecord) -> dict[str, Any]:
    (folder / "train.parquet").write_bytes(CONTENT)
    write_atomic(folder / RECORD_NAME, record.to_json(), folder)
    found = read_record(folder / RECORD_NAME)
    assert found is not None
    return found


def source(path: str = "in.jsonl", size: int = 5, sha256: str = "aa") -> tuple[str, int, Callable[[], str]]:
    return path, size, lambda: sha256


def test_nothing_to_do_after_the_same_run(tmp_path: Path) -> None:
    record = record_of()
    found = written(tmp_path, record)
    assert why_again(found, [source()], record.options, tmp_path) is None
    assert record.to_json() == record_of().to_json()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_options_survive_the_file(tmp_path: Path) -> None:
    options = Options(
        mapping={"prompt": "a.b"},
        test_files=("t.jsonl",),
        test_size=Fraction(1, 20),
        tokenizer=Path("model"),
        max_prompt_tokens=7,
        shuffle=3,
    )
    record = record_of(options=options)
    found = written(tmp_path, record)
    assert found["options"]["test_size"] == "1/20"
    assert why_again(found, [source()], options_json(options, sources=["in.jsonl"]), tmp_path) is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (Options(shuffle=1), "shuffle"),
        (Options(test_size=Fraction(1, 2)), "test_size"),
        (Options(mapping={"prompt": "p"}), "mapping"),
        # 1 row is not all rows.
        (Options(test_size=1), "test_size"),
    ],
)
def test_another_option_is_named(tmp_path: Path, changed: Options, told: str) -> None:
    found = written(tmp_path, record_of())
    why = why_again(found, [source()], options_json(changed, sources=["in.jsonl"]), tmp_path)
    assert why is not None
    assert told in why


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ([source("other.jsonl")], "source files"),
        ([source(), source("second.jsonl")], "source files"),
        ([], "source files"),
        ([source(size=6)], "in.jsonl has changed"),
        ([source(sha256="bb")], "in.jsonl has changed"),
    ],
)
def test_another_source_is_named(
    tmp_path: Path, sources: list[tuple[str, int, Callable[[], str]]], told: str
) -> None:
    record = record_of()
    why = why_again(written(tmp_path, record), sources, record.options, tmp_path)
    assert why is not None
    assert told in why


def test_sources_of_another_size_are_not_hashed(tmp_path: Path) -> None:
    def hashed() -> str:
        raise AssertionError("hashed")

    record = record_of()
    assert why_again(written(tmp_path, record), [("in.jsonl", 6, hashed)], record.options, tmp_path) is not None


def test_another_version_is_named(tmp_path: Path) -> None:
    record = replace(record_of(), versions={**versions(), "pyarrow": "1.0"})
    why = why_again(written(tmp_path, record), [source()], record.options, tmp_path)
    assert why is not None
    assert "pyarrow" in why


@pytest.mark.parametrize("content", [None, b"", b"what was changed", CONTENT + b"x"])
def test_an_output_that_is_not_what_was_written(tmp_path: Path, content: bytes | None) -> None:
    record = record_of()
    found = written(tmp_path, record)
    (tmp_path / "train.parquet").unlink()
    if content is not None:
        (tmp_path / "train.parquet").write_bytes(content)
    why = why_again(found, [source()], record.options, tmp_path)
    assert why is not None
    assert "train.parquet" in why


def test_outputs_are_looked_for_in_the_folder_alone(tmp_path: Path) -> None:
    record = record_of()
    record.outputs[0].file = "../../etc/train.parquet"
    assert why_again(written(tmp_path, record), [source()], record.options, tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"record_version": 99}',
        b'{"sources": []}',
        b"9" * 5000,
    ],
)
def test_a_file_that_is_no_record(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / RECORD_NAME
    path.write_bytes(content)
    assert read_record(path) is None
    assert why_again(None, [], {}, tmp_path) is not None


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    assert read_record(tmp_path / "missing") is None
    assert read_record(tmp_path) is None


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"sources": 1},
        {"sources": [1]},
        {"sources": [{}]},
        {"sources": [], "outputs": "x"},
        {"sources": [], "outputs": [], "options": None, "versions": None},
        {"sources": [], "outputs": [], "options": {}, "versions": 5},
    ],
)
def test_a_record_with_parts_missing(tmp_path: Path, broken: dict[str, Any]) -> None:
    assert why_again({"record_version": 1, **broken}, [], options_json(Options()), tmp_path) is not None


def test_names_reach_the_file_whatever_they_hold(tmp_path: Path) -> None:
    # A file name that is not UTF-8 and has an escape sequence in 8 bits; one that a person should be able to read.
    path = b"\xff\x1b[2J".decode(errors="surrogateescape") + "\x9b2J\u202e 数学"
    record = record_of(path)
    text = record.to_json()
    assert "数学" in text
    assert all(character.isprintable() or character == "\n" for character in text)
    found = written(tmp_path, record)
    assert found["sources"][0]["path"] == path
    assert why_again(found, [source(path)], record.options, tmp_path) is None


def test_rows_of_a_split() -> None:
    record = record_of()
    record.parts.append(PartRecord("t.jsonl", 4, 0, 0, 0, 0, 4))
    assert (record.rows("train"), record.rows("test")) == (2, 5)
    assert json.loads(record.to_json())["parts"][1]["test"] == 4


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset\.json: No such file"):
        write_atomic(tmp_path / "gone" / RECORD_NAME, "{}", tmp_path / "gone")
