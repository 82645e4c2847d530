"""Files of other people, converted by the command: types, names and rows that are not as usual."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import convert as command

N = 3


def run(*arguments: object) -> int:
    return command.main([str(argument) for argument in (*arguments, "--quiet")])


def verl(path: Path, truth: Any = None, info: dict[str, Any] | None = None, **columns: Any) -> Path:
    """A file as verl's examples write them."""
    keys = {"style": pa.array(["rule"] * N), "ground_truth": pa.array(truth or ["1"] * N)}
    found: dict[str, Any] = {
        "data_source": ["d"] * N,
        "prompt": [[{"role": "user", "content": f"u{row}"}] for row in range(N)],
        "reward_model": pa.StructArray.from_arrays(list(keys.values()), list(keys)),
    }
    if info is not None:
        arrays = [pa.array(values) for values in info.values()]
        found["extra_info"] = pa.StructArray.from_arrays(arrays, list(info))
    pq.write_table(pa.table(found | columns), path)
    return path


def train(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(out / "train.parquet").to_pylist()
    return found


def test_own_keys_of_verl_rows_keep_their_types(tmp_path: Path) -> None:
    info = {"metadata": [{"a": 1}] * N, "question": [["x", "y"]] * N, "answer": [5] * N}
    source = verl(tmp_path / "a.parquet", info=info)
    assert run(source, "--out", tmp_path / "out") == 0
    assert [{key: row["extra_info"][key] for key in info} for row in train(tmp_path / "out")] == [
        {"metadata": {"a": 1}, "question": ["x", "y"], "answer": 5}
    ] * N
    assert run(tmp_path / "out" / "train.parquet", "--out", tmp_path / "again") == 0
    again, first = (pq.read_table(tmp_path / name / "train.parquet") for name in ("again", "out"))
    assert again.equals(first)


def test_an_index_that_is_an_id_is_kept(tmp_path: Path) -> None:
    source = verl(tmp_path / "a.parquet", info={"index": ["9a9b", "b6eb", "4c3d"]})
    assert run(source, "--out", tmp_path / "out") == 0
    kept = [(row["extra_info"]["index"], row["extra_info"]["metadata"]) for row in train(tmp_path / "out")]
    assert kept == [(0, '{"index":"9a9b"}'), (1, '{"index":"b6eb"}'), (2, '{"index":"4c3d"}')]


def test_typed_truth_and_text_go_together_where_the_truth_is_the_question(tmp_path: Path) -> None:
    typed = verl(tmp_path / "a.parquet", truth=[{"target": ["a"]}] * N)
    text = tmp_path / "b.jsonl"
    text.write_text('{"prompt": "p", "response": "r"}\n')
    assert run(typed, text, "--out", tmp_path / "out") == 1
    assert run(typed, text, "--out", tmp_path / "out", "--style", "model") == 0
    truths = [row["reward_model"]["ground_truth"] for row in train(tmp_path / "out")]
    assert truths == ["u0", "u1", "u2", "p"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.Table.from_arrays([pa.array(["p"])] * 2, ["prompt", "prompt"]), "two columns are named 'prompt'"),
        (
            pa.table({"prompt": ["p"], "at": pa.array([123456789], pa.time64("ns"))}),
            "'at' holds times of day in nanoseconds",
        ),
    ],
)
def test_columns_that_would_lose_something(
    tmp_path: Path, table: pa.Table, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    assert run(tmp_path / "a.parquet", "--out", tmp_path / "out") == 1
    assert message in capsys.readouterr().err


def test_a_column_named_like_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = verl(tmp_path / "a.parquet", None, None, **{"extra_info.x": [1] * N})
    assert run(source, "--out", tmp_path / "out") == 1
    assert "column 'extra_info.x' is named like a key of a struct" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["response", "ground_truth"])
def test_decimals_and_times_are_written_without_quotes(tmp_path: Path, field: str) -> None:
    pq.write_table(pa.table({"prompt": ["p"], field: [Decimal("1.50")]}), tmp_path / "a.parquet")
    assert run(tmp_path / "a.parquet", "--out", tmp_path / "out") == 0
    assert train(tmp_path / "out")[0]["reward_model"]["ground_truth"] == "1.50"
    pq.write_table(pa.table({"prompt": ["p"], "ground_truth": [datetime(2024, 1, 2)]}), tmp_path / "b.parquet")
    assert run(tmp_path / "b.parquet", "--out", tmp_path / "out2") == 0
    assert train(tmp_path / "out2")[0]["reward_model"]["ground_truth"] == "2024-01-02T00:00:00"


def test_bad_rows_of_csv_are_set_aside_with_their_cells(tmp_path: Path) -> None:
    source, aside = tmp_path / "a.csv", tmp_path / "bad.jsonl"
    source.write_bytes(b'prompt,response\na,b\nc\nd,"e,\nf",g\n\xff,h\n')
    assert run(source, "--out", tmp_path / "out", "--skip-bad", aside) == 3
    entries = [json.loads(line) for line in aside.read_text().splitlines()]
    assert [(entry["row"], entry.get("raw")) for entry in entries] == [(3, "c"), (4, 'd,"e,\nf",g'), (6, None)]
    assert entries[2]["raw_base64"] == "/yxo"


def test_a_bad_element_of_an_array_is_a_bad_row(tmp_path: Path) -> None:
    source, aside = tmp_path / "a.json", tmp_path / "bad.jsonl"
    row = b'{"prompt": "p%s", "response": "r"}'
    source.write_bytes(b"[" + b",".join(row % text for text in (b"", b"\xff", b"\x1b", b"")) + b"]")
    assert run(source, "--out", tmp_path / "out", "--skip-bad", aside) == 3
    expected = [(entry["row"], entry["expected"]) for entry in map(json.loads, aside.read_text().splitlines())]
    assert expected == [
        (1, "expected UTF-8, got byte 0xFF at 13"),
        (2, "expected a JSON object on one line: Invalid control character at column 14"),
    ]
    assert len(train(tmp_path / "out")) == 2


def test_names_of_fields_reach_a_terminal_printable_and_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    name = "\x1b[31m\u202e" + "k" * 5000
    source.write_text(json.dumps({"prompt": "p", "response": "r", name: "\ud800"}) + "\n")
    for more in ((), ("--skip-bad", tmp_path / "bad.jsonl")):
        assert run(source, "--out", tmp_path / "out", *more) == 1
        told = capsys.readouterr().err
        assert "\\x1b[31m\\u202ekkk" in told
        assert "\x1b" not in told
        assert "\u202e" not in told
        assert len(told) < 1000
