"""Names that cannot be opened: what is wrong is told once, and is not taken for what the file holds."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

from data_prep import convert

FOREIGN = os.fsdecode(b"r\xe9l")


def told(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a command, the same with and without --json."""
    main = importlib.import_module(f"data_prep.{command}").main
    assert main(words) == 1
    error = capsys.readouterr().err
    assert main([*words, "--json"]) == 1
    out, again = capsys.readouterr()
    assert again == error
    assert error.removeprefix("error: ").strip().rpartition(": ")[2] in json.dumps(json.loads(out))
    return error


def test_a_folder_that_pyarrow_cannot_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    error = told("convert", ["sample:gsm8k", "--out", FOREIGN], capsys)
    assert error == "error: --out r\\udce9l: its name is not UTF-8, as pyarrow needs it; rename it\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["inspect", "sample", "validate", "convert"])
def test_a_file_that_pyarrow_cannot_open(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert convert.main(["sample:gsm8k", "--out", "data", "--quiet"]) == 0
    Path("data/train.parquet").rename(f"{FOREIGN}.parquet")
    capsys.readouterr()
    more = ["--out", "new"] if command == "convert" else []
    error = told(command, [f"{FOREIGN}.parquet", *more], capsys)
    assert error == "error: r\\udce9l.parquet: its name is not UTF-8, as pyarrow needs it; rename it\n"


def test_rows_of_text_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{FOREIGN}.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    assert convert.main([f"{FOREIGN}.jsonl", "--out", "data"]) == 0
    assert json.loads(Path("data/dataset.json").read_text())["outputs"][0]["rows"] == 1


@pytest.mark.parametrize("command", ["inspect", "sample", "validate"])
def test_a_file_that_is_missing(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = told(command, [f"{tmp_path}/no.parquet"], capsys)
    assert error == f"error: {tmp_path}/no.parquet: No such file or directory\n"
