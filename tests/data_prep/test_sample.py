from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import convert, sample

GOOD: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "how many?"}],
    "data_source": "d",
    "reward_model": {"style": "rule", "ground_truth": "1"},
    "extra_info": {"split": "train"},
}


def written(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def reports(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[dict[str, Any]]]:
    code = sample.main(["--json", *argv])
    return code, json.loads(capsys.readouterr().out)


def test_what_convert_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert.main(["sample:gsm8k", "--out", str(tmp_path)])
    capsys.readouterr()
    assert sample.main([str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/train.parquet: 400 rows, 400 sampled, split: train 400",
        f"{tmp_path}/test.parquet: 100 rows, 100 sampled, split: test 100",
    ]


def test_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = {**GOOD, "prompt": [{"role": "user", "content": "x" * 99}]}
    path = written(tmp_path / "a.parquet", [GOOD, long, {**GOOD, "data_source": ""}])
    code, (report,) = reports(capsys, str(path), "--max-prompt-length", "20")
    assert code == 0
    assert (report["rows"], report["sampled"], report["bad"], report["too_long"]) == (3, 3, 1, 1)
    assert report["bad_rows"] == ["row 2: data_source is empty"]
    assert report["counted"] == "characters"
    assert report["types"]["prompt[].content"] == "string"
    assert report["splits"] == {"train": 3}


@pytest.mark.parametrize(("groups", "rows"), [(1, 512), (3, 512), (40, 512), (7, 5), (1, 1)])
def test_rows_are_taken_from_the_whole_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], groups: int, rows: int
) -> None:
    path = written(tmp_path / "a.parquet", [GOOD] * 4000, row_group_size=4000 // groups)
    _, (report,) = reports(capsys, str(path), "--rows", str(rows))
    assert max(rows // 2, 1) <= report["sampled"] <= max(rows, 8)


def test_files_that_cannot_be_read_are_reported_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = written(tmp_path / "whole.parquet", [GOOD])
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-20])
    code, found = reports(capsys, str(whole), str(cut), str(tmp_path / "absent"))
    assert code == 1
    assert found[0]["problem"] is None
    assert "not readable as parquet" in found[1]["problem"]
    assert found[2]["problem"] == "No such file or directory"


def test_a_schema_that_verl_does_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.parquet", [{**GOOD, "prompt": "text"}])
    assert sample.main([str(path)]) == 1
    assert "column 'prompt' is string" in capsys.readouterr().out


def test_a_broken_tokenizer_is_said_and_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.parquet", [{**GOOD, "prompt": [{"role": "user", "content": "x" * 99}]}])
    (tmp_path / "tokenizer.json").write_text("{")
    sample.main([str(path), "--max-prompt-length", "20", "--tokenizer", str(tmp_path / "tokenizer.json")])
    captured = capsys.readouterr()
    assert "1 of 1 sampled prompts are too long (by characters)" in captured.out
    assert "tokenizer.json: not used" in captured.err


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        sample.main(["a.parquet", "--rows", "0"])
    assert end.value.code == 2


def test_content_in_parts_is_no_text_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"type": "text", "text": "x" * 99}]
    path = written(tmp_path / "a.parquet", [{**GOOD, "prompt": [{"role": "user", "content": parts}]}])
    code, (report,) = reports(capsys, str(path), "--max-prompt-length", "20")
    assert (code, report["problem"], report["bad"], report["too_long"]) == (0, None, 0, 0)
