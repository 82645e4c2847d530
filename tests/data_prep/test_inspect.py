from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_tokenizer import AROUND, CHATML, NO_SYSTEM, save_tokenizer

from data_prep import convert, inspect
from data_prep.pretty import columns_of, fit, row_lines, table_lines, text_lines

ROOT = Path(__file__).resolve().parents[2]


def row(text: str = "q", **changes: Any) -> dict[str, Any]:
    return {
        "data_source": "d",
        "prompt": [{"role": "user", "content": text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "12"},
        "extra_info": {"split": "train", "index": 0, "answer": "twelve"},
        **changes,
    }


def written(path: Path, *rows: dict[str, Any], **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return str(path)


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert inspect.main([*argv, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_what_convert_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(["sample:gsm8k", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert inspect.main([str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["openai/gsm8k", "math", "rule", "train", "400", "100.0%"] for line in lines)
    assert any(line.split() == ["openai/gsm8k", "math", "rule", "test", "100", "100.0%"] for line in lines)
    assert any(line.startswith("prompt, characters") for line in lines)
    assert sum(line == "row 0" for line in lines) == 2


def test_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "漢字"}]
    other: dict[str, Any] = {
        "reward_model": {"style": "model", "ground_truth": None},
        "extra_info": None,
        "data_source": "e",
    }
    path = written(tmp_path / "a.parquet", row(), row("qq"), row(prompt=chat), row(**other), row_group_size=3)
    found = report(capsys, path)
    assert found["rows"] == 4
    assert found["columns"]["extra_info.index"] == "int64"
    assert found["composition"] == [
        {"data_source": "d", "ability": "math", "style": "rule", "split": "train", "rows": 3},
        {"data_source": "e", "ability": "math", "style": "model", "split": "-", "rows": 1},
    ]
    assert found["messages"] == {"1": 3, "2": 1}
    assert found["roles"] == {"user": 3, "system user": 1}
    prompt = found["lengths"]["prompt, characters"]
    assert (prompt["count"], prompt["low"], prompt["high"], prompt["mean"]) == (4, 1, 3, 1.8)
    assert found["lengths"]["ground truth, characters"]["count"] == 3
    assert found["lengths"]["answer, characters"]["high"] == 6
    assert [one["row"] for one in found["shown"]] == [0, 1]
    assert found["refused"] is None


def test_tokens_and_refused_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tokenizer(tmp_path / "model", template=NO_SYSTEM + CHATML)
    system = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    path = written(tmp_path / "a.parquet", row("abc"), row(prompt=system))
    found = report(capsys, path, "--tokenizer", str(model))
    assert found["lengths"]["prompt, tokens"]["high"] == AROUND + 3
    assert found["refused"] == 1
    assert inspect.main([path, "--tokenizer", str(model)]) == 0
    assert "1 prompts are refused by the chat template" in capsys.readouterr().out


@pytest.mark.parametrize("size", [1, 3, 100])
def test_rows_by_number(tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int) -> None:
    path = written(tmp_path / "a.parquet", *[row(str(number)) for number in range(50)], row_group_size=size)
    found = report(capsys, path, "--rows", "1", "--row", "49", "--row", "17", "--row", "17")
    assert [(one["row"], one["value"]["prompt"][0]["content"]) for one in found["shown"]] == [
        (0, "0"), (17, "17"), (49, "49")
    ]  # fmt: skip
    assert inspect.main([path, "--rows", "0", "--row", "50"]) == 1
    captured = capsys.readouterr()
    assert "no row 50: its rows are 0 to 49" in captured.err
    assert "row 0" not in captured.out


def test_nothing_of_the_data_reaches_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x07\r\u202e\u0085\ufeff"
    bad = row(evil + "\n" + evil, data_source=evil, ability=evil, **{evil: evil})
    bad["prompt"][0]["role"] = evil
    bad["extra_info"] = {evil: evil, "split": evil, "answer": evil}
    path = written(tmp_path / "a.parquet", bad)
    assert inspect.main([path]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert "\\x1b[2J" in out


def test_many_values_stay_a_short_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(data_source=f"name-{number}" * 20, prompt=[{"role": f"r{number}", "content": "q"}] * 9)
            for number in range(900)]  # fmt: skip
    path = written(tmp_path / "a.parquet", *rows)
    found = report(capsys, path)
    assert sum(group["rows"] for group in found["composition"]) == 900
    assert len(found["composition"]) == len(found["roles"]) == 201
    assert inspect.main([path]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) < 150
    assert max(map(columns_of, out[1:])) <= 80  # the first one is the path


def test_any_parquet_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.parquet", {"text": "abc", "n": 1, "prompt": "p", "blob": b"\x00"})
    found = report(capsys, path)
    assert found["columns"] == {"text": "string", "n": "int64", "prompt": "string", "blob": "binary"}
    assert found["lengths"]["text, characters"]["high"] == 3
    assert found["composition"] == []
    numbers = written(tmp_path / "b.parquet", {"n": 1})
    assert inspect.main([numbers]) == 0
    assert "n: 1" in capsys.readouterr().out
    pq.write_table(pa.Table.from_pylist([row()]).slice(0, 0), tmp_path / "none.parquet")
    assert inspect.main([str(tmp_path / "none.parquet")]) == 0
    assert "0 rows" in capsys.readouterr().out


def test_raw_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = [
        '{"q": "abc", "n": 1}',
        '{"q": 2.5, "n": true, "more": null}',
        "{",
        '{"q": "\x7f\\u001b[2J", "n": []}',
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = report(capsys, str(path), "--row", "3", "--rows", "0")
    assert (found["kind"], found["rows"], found["bad"]) == ("jsonl", 4, 1)
    assert found["fields"] == {
        "q": {"text": 2, "float": 1}, "n": {"int": 1, "true/false": 1, "list": 1}, "more": {"null": 1}
    }  # fmt: skip
    assert found["lengths"]["q, characters"]["high"] == 5
    assert f"{path}:3: " in found["problems"][0]
    assert inspect.main([str(path), "--rows", "4"]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert "\\x7f\\x1b[2J" in out
    assert "1 rows cannot be used" in out
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    assert report(capsys, str(tmp_path / "b.csv"))["shown"] == [{"row": 0, "value": {"a": "1", "b": "2"}}]


def test_many_fields_take_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({f"f{number}": "x"}) + "\n" for number in range(900)))
    found = report(capsys, str(path))
    assert (found["rows"], len(found["fields"]), len(found["lengths"])) == (900, 50, 12)


def test_files_that_cannot_be_read_are_told_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = written(tmp_path / "whole.parquet", row())
    (tmp_path / "cut.parquet").write_bytes(Path(whole).read_bytes()[:-20])
    assert inspect.main([str(tmp_path / "cut.parquet"), str(tmp_path / "absent"), whole]) == 1
    captured = capsys.readouterr()
    assert "absent: No such file or directory\n" in captured.err
    assert captured.err.count("not readable as parquet") == 1
    assert "1 rows" in captured.out


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["a", "--rows", "-1"], ["a", "--row", "-1"]):
        with pytest.raises(SystemExit) as end:
            inspect.main(argv)
        assert end.value.code == 2
    assert inspect.main(["a", "--tokenizer", "/nowhere"]) == 1
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_of_another_encoding(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path / "a.parquet", row("漢字"))
    command = [sys.executable, "-m", "data_prep.inspect", path]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, check=True, env=environment, cwd=ROOT)
    lines = done.stdout.decode(encoding).splitlines()
    assert any(len(line) > 80 for line in lines)
    assert any(("漢字" if encoding == "utf-8" else "\\u6f22\\u5b57") in line for line in lines)


def test_lines_fit_and_lose_nothing() -> None:
    text = "one two three four five six seven eight nine ten " * 3 + "x" * 50 + "漢字" * 20
    lines = text_lines(text, 30, most=99)
    assert "".join(lines) == text
    assert max(map(columns_of, lines)) <= 30
    assert text_lines("a\n\n" + "b" * 100, 30, 3) == ["a", "", "b" * 30, "... (103 characters in all)"]
    assert fit("漢字漢字", 6) == "漢..."
    assert columns_of("e\u0301漢") == 3


def test_rows_of_any_shape() -> None:
    deep: Any = "end"
    for _ in range(200):
        deep = {"k": [deep]}
    lines = row_lines({"deep": deep, "many": list(range(99)), "long": "y" * 10**7, "none": None, "e": {}}, 40)
    assert max(map(len, lines)) <= 40
    assert len(lines) < 120
    assert "none: None" in lines
    assert lines[-1] == "e: {}"


def test_the_widest_column_of_a_table_gives_way() -> None:
    assert table_lines(["name", "rows"], [["n" * 50, "1"], ["m", "22"]], 20, 1) == [
        "name            rows",
        "nnnnnnnnnnn...     1",
        "m                 22",
    ]
