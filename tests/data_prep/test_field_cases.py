"""Rows that users had, and what became of their data sets: two rows each, as JSONL (FIELD_CASES C18, C19, E12)."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import convert, validate
from data_prep.schema import SCHEMA

MESSAGES = [{"role": "user", "content": "q"}]


def verl(**changes: Any) -> dict[str, Any]:
    row = {"data_source": "d", "prompt": MESSAGES, "reward_model": {"style": "rule", "ground_truth": "1"}}
    return {**row, "extra_info": {"index": 0}, **changes}


def truth(value: object) -> dict[str, Any]:
    return verl(reward_model={"ground_truth": value})


def written(folder: Path, *rows: object) -> list[dict[str, Any]]:
    source = folder / "rows.jsonl"
    source.write_text("\n\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    assert convert.main([str(source), "--out", str(folder / "out"), "--quiet"]) == 0
    table = pq.read_table(folder / "out" / "train.parquet")
    assert table.schema.equals(SCHEMA)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", ["1", "2"]], ["1", '["1","2"]']),
        ([1, 1.0], ["1", "1.0"]),
        ([1, 2.50], ["1", "2.5"]),
        ([{"target": ["a"]}, "a"], ['{"target":["a"]}', "a"]),
        ([10**30, "x"], [str(10**30), "x"]),
        ([True, "x"], ["true", "x"]),
    ],
)
def test_ground_truths_of_several_types_are_text(
    tmp_path: Path, values: list[object], expected: list[str]
) -> None:
    assert [row["reward_model"]["ground_truth"] for row in written(tmp_path, *map(truth, values))] == expected


def test_a_reward_model_needs_no_ground_truth(tmp_path: Path) -> None:
    (row,) = written(tmp_path, verl(reward_model={"style": "model", "ground_truth": ""}))
    assert row["reward_model"] == {"style": "model", "ground_truth": ""}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (verl(extra_info={}), verl(extra_info={})),
        (verl(extra_info={"index": 1}), verl(extra_info={"index": "one"})),
        (verl(prompt="q"), verl()),
        (verl(), verl(level=5)),
        (verl(extra_info={"a": {"b": 1}}), verl(extra_info={"a": {"c": [1]}})),
        (verl(extra_info={"id": 10**30}), verl(extra_info=None)),
    ],
)
def test_rows_of_different_shapes_have_one_schema_in_any_order(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    there = written(tmp_path / "a", first, second)
    back = written(tmp_path / "b", second, first)
    for row in (*there, *back):
        assert row["prompt"] == MESSAGES
        del row["extra_info"]["index"]
    assert there == back[::-1]


def test_only_the_keys_that_a_row_has_reach_its_verifier(tmp_path: Path) -> None:
    """IFEval's kwargs: a list of objects with different keys, as a list or as JSON text."""
    kwargs = [{"num_paragraphs": 4}, {"last_word": "contest"}, {}]
    rows = written(
        tmp_path,
        {"prompt": "p", "response": "r", "kwargs": kwargs},
        {"prompt": "p", "response": "r", "kwargs": json.dumps(kwargs)},
    )
    metadata = [json.loads(row["extra_info"]["metadata"]) for row in rows]
    assert metadata[0]["kwargs"] == kwargs
    assert json.loads(metadata[1]["kwargs"]) == kwargs


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (verl(prompt=[{"role": "user", "content": None}]), "rows.jsonl:3: field 'prompt[0].content'"),
        (verl(prompt=[{"role": "user"}]), "rows.jsonl:3: field 'prompt[0].content'"),
        (verl(prompt=[]), "rows.jsonl:3: field 'prompt'"),
        (verl(prompt=[{"role": "human", "content": "q"}]), "rows.jsonl:3: field 'prompt[0].role'"),
        (verl(prompt=[{"role": "user", "content": "\ud800"}]), "rows.jsonl:3: field 'prompt[0].content': lone"),
        (truth(None), "rows.jsonl:3: no answer"),
        (truth(""), "rows.jsonl:3: the ground truth is empty"),
        (truth(["\udc00"]), "rows.jsonl:3: field 'reward_model.ground_truth[0]': lone surrogate"),
        (verl(other={"a": "\ud800"}), "rows.jsonl:3: field 'other.a': lone surrogate"),
    ],
)
def test_what_verl_would_drop_or_fail_on_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], message: str
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n\n".join(map(json.dumps, (verl(), row))))
    assert convert.main([str(source), "--out", str(tmp_path / "out"), "--quiet"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"prompt": "p", "response": "the whole solution", "ground_truth": None}, []),
        (
            {"p": "p", "a": "the whole solution", "t": None},
            ["--map", "prompt=p", "--map", "answer=a", "--map", "ground_truth=t"],
        ),
    ],
)
def test_no_other_field_takes_the_place_of_a_null_ground_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], options: list[str]
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps(row))
    assert convert.main([str(source), "--out", str(tmp_path / "out"), "--quiet", *options]) == 1
    assert "rows.jsonl:1: no answer" in capsys.readouterr().err


def test_the_answer_of_a_gym_may_be_a_number(tmp_path: Path) -> None:
    request = {"input": [{"role": "user", "content": "q"}]}
    rows = written(tmp_path, *({"responses_create_params": request, "expected_answer": n} for n in ("2", 3, 4.50)))
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "3", "4.5"]
    assert [row["extra_info"]["answer"] for row in rows] == ["2", "3", "4.5"]


def test_a_packed_test_file_that_is_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, verl(), verl())
    packed = tmp_path / "a.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "out" / "train.parquet").read_bytes()))
    assert convert.main([str(packed), "--test-file", str(packed), "--out", str(tmp_path / "b")]) == 1
    assert "is also a source" in capsys.readouterr().err


def test_bad_rows_of_another_data_set_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, bad = tmp_path / "rows.jsonl", tmp_path / "bad.jsonl"
    source.write_text(json.dumps(verl()) + "\n{}\n")
    first = [str(source), "--format", "verl", "--skip-bad", str(bad), "--quiet"]
    assert convert.main([*first, "--out", str(tmp_path / "a")]) == 3
    kept = bad.read_bytes()
    assert convert.main([*first, "--out", str(tmp_path / "a"), "--force"]) == 3
    assert convert.main([*first, "--out", str(tmp_path / "b")]) == 1
    assert "name another file" in capsys.readouterr().err
    assert bad.read_bytes() == kept
    assert convert.main([*first[:-2], "/proc/bad.jsonl", "--quiet", "--out", str(tmp_path / "a")]) == 1
    assert (tmp_path / "a" / "dataset.json").exists()


def test_standard_input_may_be_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"prompt,response\np,r\n")))
    assert convert.main(["-", "--out", str(tmp_path), "--quiet"]) == 0
    assert pq.read_table(tmp_path / "train.parquet").num_rows == 1


def test_files_that_only_together_cannot_be_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, info in (("none", {"i": 1}), ("int", {"i": 1, "x": 1}), ("text", {"i": 1, "x": "1"})):
        files.append(str(tmp_path / f"{name}.parquet"))
        pq.write_table(pa.Table.from_pylist([verl(extra_info={**info, "index": 0})]), files[-1])
    assert validate.main(files) == 1
    assert "int.parquet" in capsys.readouterr().err
