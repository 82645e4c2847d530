from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import convert, validate

GOOD: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "q"}],
    "data_source": "d",
    "reward_model": {"style": "rule", "ground_truth": "1"},
}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def test_what_convert_writes_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(["sample:gsm8k", "--out", str(tmp_path)]) == 0
    assert validate.main([str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]) == 0
    assert "100 rows, fit for verl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "text"}, "column 'prompt' is string; expected a list of {role, content}"),
        ({"prompt": ["text"]}, "column 'prompt' is a list of string"),
        ({"prompt": [{"role": "user"}]}, "column 'prompt' is a list of struct<role: string>"),
        ({"data_source": 1}, "column 'data_source' is int64"),
        ({"reward_model": {"style": "rule"}}, "expected a struct with ground_truth"),
        ({"reward_model": "1"}, "expected a struct with ground_truth"),
    ],
)
def test_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str) -> None:
    assert validate.main([str(written(tmp_path / "a.parquet", {**GOOD, **changes}))]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("column", ["prompt", "data_source", "reward_model"])
def test_missing_column(tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str) -> None:
    row = {name: value for name, value in GOOD.items() if name != column}
    assert validate.main([str(written(tmp_path / "a.parquet", row))]) == 1
    assert f"no column '{column}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "row 1: prompt is empty"),
        ({"prompt": None}, "row 1: prompt is empty"),
        ({"prompt": [{"role": "user", "content": None}]}, "row 1: prompt[0].content is empty"),
        ({"prompt": [{"role": "human", "content": "q"}]}, "row 1: prompt[0].role is 'human'"),
        ({"prompt": [None]}, "row 1: prompt[0].role is None"),
        ({"data_source": ""}, "row 1: data_source is empty"),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "row 1: reward_model.ground_truth is missing"),
        ({"reward_model": None}, "row 1: reward_model.ground_truth is missing"),
    ],
)
def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str) -> None:
    assert validate.main([str(written(tmp_path / "a.parquet", GOOD, {**GOOD, **changes}))]) == 1
    assert message in capsys.readouterr().err


def test_many_bad_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.parquet", GOOD, *[{**GOOD, "data_source": ""}] * 5000)
    assert validate.main([str(path)]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 11
    assert "and 4990 more rows" in error


def test_files_that_are_no_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = written(tmp_path / "whole.parquet", GOOD)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-20])
    empty = tmp_path / "empty.parquet"
    empty.touch()
    none = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([GOOD]).slice(0, 0), none)
    assert validate.main([str(whole), str(cut), str(empty), str(tmp_path / "absent"), str(none)]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("fit for verl") == 1
    assert captured.err.count("not readable as parquet") == 3
    assert f"{none}: no rows" in captured.err
