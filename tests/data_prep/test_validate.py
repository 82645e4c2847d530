from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_tokenizer import AROUND, CHATML, NO_SYSTEM, save_tokenizer

from data_prep import convert, validate

GOOD: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "q"}],
    "data_source": "d",
    "reward_model": {"style": "rule", "ground_truth": "1"},
    "extra_info": {"index": 0},
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
        ({"prompt": [{"role": 1, "content": "q"}]}, "prompt[].role is int64; expected string"),
        ({"prompt": [{"role": "user", "content": 1}]}, "prompt[].content is int64; expected string"),
        ({"extra_info": "{}"}, "column 'extra_info' is string; expected a struct"),
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
        ({"prompt": [*GOOD["prompt"], {"role": "user", "content": ""}]}, "row 1: prompt[1].content is empty"),
        ({"prompt": [{"role": "\x1b[2J" + "x" * 999, "content": "q"}]}, r"prompt[0].role is '\\x1b[2Jxxx"),
        ({"data_source": None}, "row 1: data_source is empty"),
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


def test_a_text_as_prompt_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C18: the data set becomes empty without an error."""
    assert validate.main([str(written(tmp_path / "a.parquet", {**GOOD, "prompt": "text"}))]) == 1
    assert "counts every row as too long and leaves an empty data set" in capsys.readouterr().err


def test_text_that_is_not_utf8_is_told_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parquet holds any bytes as text, and verl fails when it comes to the row."""
    table = pa.Table.from_pylist([GOOD] * 3)
    name = pa.array([b"d", b"\xff", b"d"]).view(pa.string())
    pq.write_table(
        table.set_column(table.schema.get_field_index("data_source"), "data_source", name), tmp_path / "a"
    )
    assert validate.main([str(tmp_path / "a")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "row 1: data_source holds text that is not UTF-8: byte 0xFF at 0" in line


@pytest.mark.parametrize("batch", [1, 7, 100_000])
def test_rows_are_counted_over_row_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int) -> None:
    rows = [GOOD if number % 10 else {**GOOD, "prompt": []} for number in range(101)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=batch)
    assert validate.main([str(tmp_path / "a.parquet"), "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["bad"]) == (101, 11)
    assert report["problems"][9:] == ["row 90: prompt is empty", "and 1 more rows"]


def test_types_of_pandas_and_polars(tmp_path: Path) -> None:
    """Both write large_string, and pandas writes a category as a dictionary."""
    columns = {
        "prompt": pa.array(
            [[{"role": "user", "content": "q"}]] * 2,
            pa.large_list(
                pa.struct([("role", pa.dictionary(pa.int32(), pa.string())), ("content", pa.large_string())])
            ),
        ),
        "data_source": pa.array(["d", "d"]).dictionary_encode(),
        "reward_model": pa.array([{"ground_truth": [1]}] * 2),
        "extra_info": pa.array([{"index": 0}] * 2),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert validate.check_file(tmp_path / "a.parquet")[0].problems == []
    columns["data_source"] = pa.array(["d", ""]).dictionary_encode()
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert validate.check_file(tmp_path / "a.parquet")[0].problems == ["row 1: data_source is empty"]


def test_content_in_parts_is_left_to_the_template(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "q"}]
    rows = [{**GOOD, "prompt": [{"role": "user", "content": content}]} for content in (parts, [])]
    report, _ = validate.check_file(written(tmp_path / "a.parquet", *rows))
    assert report.problems == ["row 1: prompt[0].content is empty"]


@pytest.mark.parametrize(
    ("info", "note"),
    [
        ({"split": "train"}, "extra_info has no index"),
        (None, "extra_info has no index"),
        ({"index": "0"}, "extra_info.index is string"),
        ({"index": 0}, None),
    ],
)
def test_notes_fail_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], info: dict[str, Any] | None, note: str | None
) -> None:
    assert validate.main([str(written(tmp_path / "a.parquet", {**GOOD, "extra_info": info}))]) == 0
    captured = capsys.readouterr()
    assert "1 rows, fit for verl" in captured.out
    assert captured.err == "" if note is None else note in captured.err


def test_files_that_verl_cannot_join(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C19: concatenate_datasets finds it hours later."""
    one = written(tmp_path / "1.parquet", GOOD)
    same = written(tmp_path / "2.parquet", {**GOOD, "level": 3, "extra_info": {"split": "x", "index": 1}})
    other = written(tmp_path / "3.parquet", {**GOOD, "extra_info": {"index": "1"}})
    assert validate.main([str(one), str(same)]) == 0
    capsys.readouterr()
    assert validate.main([str(one), str(same), str(other)]) == 1
    (problem,) = [line for line in capsys.readouterr().err.splitlines() if "note" not in line]
    told = f"error: {other}: verl cannot join it with {one}: extra_info.index is int64 and string;"
    assert problem.startswith(told)


def test_prompts_too_long_and_prompts_refused_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tokenizer(tmp_path / "model", template=NO_SYSTEM + CHATML)
    system = [{"role": "system", "content": "s"}, *GOOD["prompt"]]
    long = [{"role": "user", "content": "q" * 3}]
    rows = [GOOD, {**GOOD, "prompt": long}, {**GOOD, "prompt": system}, {**GOOD, "prompt": []}]
    path = str(written(tmp_path / "a.parquet", *rows))
    assert validate.main([path, "--tokenizer", str(model), "--max-prompt-tokens", str(AROUND + 2), "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["tokens"] == {"longest": AROUND + 3, "mean": AROUND + 2, "too_long": 1, "refused": 1}
    assert report["bad"] == 1
    refused, longer = report["problems"][1:]
    assert refused.startswith("row 2: prompt: the chat template of ")
    assert longer == f"row 1: prompt of {AROUND + 3} tokens, more than {AROUND + 2}: verl leaves it out"
    good = str(written(tmp_path / "b.parquet", GOOD))
    assert validate.main([good, "--tokenizer", str(model), "--max-prompt-tokens", str(AROUND + 1)]) == 0
    assert f"prompts of {AROUND + 1} tokens, {AROUND + 1} at most" in capsys.readouterr().out


def test_a_file_that_is_not_what_its_record_says(tmp_path: Path) -> None:
    path = written(tmp_path / "train.parquet", GOOD)
    record = tmp_path / "dataset.json"

    def notes(rows: int, sha256: str) -> list[str]:
        record.write_text(json.dumps({"outputs": [{"file": "train.parquet", "rows": rows, "sha256": sha256}]}))
        return validate.check_file(path)[0].notes

    whole = hashlib.sha256(path.read_bytes()).hexdigest()
    assert notes(1, whole) == []
    assert "it has 1 rows, and dataset.json beside it says 2" in notes(2, whole)[0]
    assert "its bytes are not those" in notes(1, "0")[0]
    for broken in ("{", "[]", '{"outputs": 3}', '{"outputs": [3]}', "[" * 100_000):
        record.write_text(broken)
        assert "not what data_prep.convert writes" in validate.check_file(path)[0].notes[0]


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["a.parquet", "--max-prompt-tokens", "9"], []):
        with pytest.raises(SystemExit) as end:
            validate.main(argv)
        assert end.value.code == 2
    assert validate.main(["a.parquet", "--tokenizer", str(tmp_path / "absent")]) == 1
    assert "no such folder" in capsys.readouterr().err


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
    assert "absent: No such file or directory\n" in captured.err
    assert captured.err.count("not readable as parquet") == 2
    assert f"{none}: no rows" in captured.err
