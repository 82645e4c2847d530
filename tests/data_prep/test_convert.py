"""The command as users run it, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_prep import convert as command
from data_prep.arguments import parser
from data_prep.schema import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"question": "What is 6 * 200?", "answer": "6 * 200 = <<6*200=1200>>1,200.\n#### 1,200"}


def jsonl(path: Path, *rows: object) -> Path:
    """A JSONL file; a str is a line as it stands."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    return path


def run(*arguments: object) -> int:
    return command.main([str(argument) for argument in arguments])


def rows(path: Path) -> list[dict[str, object]]:
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    found: list[dict[str, object]] = table.to_pylist()
    return found


def test_one_row_is_what_verl_documents(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", GOOD, GOOD)
    assert run(source, "--out", tmp_path / "out", "--test-size", "1") == 0
    assert rows(tmp_path / "out" / "train.parquet") == [
        {
            "data_source": "openai/gsm8k",
            "prompt": [
                {
                    "role": "user",
                    "content": "What is 6 * 200? Let's think step by step and output the final answer "
                    'after "####".',
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "1200"},
            "extra_info": {"split": "train", "index": 0, **GOOD, "metadata": "{}"},
        }
    ]


def test_shipped_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample:gsm8k", "--out", tmp_path, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "dataset.json").read_text())
    assert [(source["format"], source["split"], source["read"]) for source in record["sources"]] == [
        ("gsm8k", "train", 400),
        ("gsm8k", "test", 100),
    ]
    for split, count in (("train", 400), ("test", 100)):
        found = rows(tmp_path / f"{split}.parquet")
        assert [row["extra_info"]["index"] for row in found] == list(range(count))  # type: ignore[index]
        raw = (ROOT / "data_prep" / "samples" / "gsm8k" / f"{split}.jsonl").read_text().splitlines()
        questions = [json.loads(line)["question"] for line in raw]
        assert [row["extra_info"]["question"] for row in found] == questions  # type: ignore[index]


def test_example_of_the_help_works_from_another_folder(tmp_path: Path) -> None:
    help_text = parser().format_help()
    (example,) = [
        line for line in help_text.splitlines() if line.startswith("  python -m data_prep.convert sample:")
    ]
    arguments = example.split()[1:]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert done.returncode == 0
    assert len(rows(tmp_path / "data" / "test.parquet")) == 100


def test_ground_truth_for_a_reward_model_is_the_question(tmp_path: Path) -> None:
    assert run("sample:gsm8k", "--out", tmp_path, "--ground-truth", "question", "--data-source", "mine") == 0
    for row in rows(tmp_path / "train.parquet"):
        assert row["reward_model"] == {"style": "model", "ground_truth": row["extra_info"]["question"]}  # type: ignore[index]
        assert row["data_source"] == "mine"


@pytest.mark.parametrize(("size", "count"), [("1", 1), ("7", 7), ("0.05", 2), ("0.5", 20), ("39", 39)])
def test_split_is_exact_ordered_and_disjoint(tmp_path: Path, size: str, count: int) -> None:
    source = jsonl(tmp_path / "a.jsonl", *({**GOOD, "question": f"q{n}"} for n in range(40)))
    assert run(source, "--out", tmp_path, "--test-size", size) == 0
    splits = [
        [int(row["extra_info"]["question"][1:]) for row in rows(tmp_path / f"{name}.parquet")]  # type: ignore[index]
        for name in ("train", "test")
    ]
    assert len(splits[1]) == count
    assert sorted(splits[0] + splits[1]) == list(range(40))
    assert splits == [sorted(splits[0]), sorted(splits[1])]


def test_same_input_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("sample:gsm8k", "--out", tmp_path / name) == 0
    for split in ("train.parquet", "test.parquet"):
        assert (tmp_path / "a" / split).read_bytes() == (tmp_path / "b" / split).read_bytes()


def test_several_sources_and_a_test_file(tmp_path: Path) -> None:
    first = jsonl(tmp_path / "1.jsonl", {**GOOD, "question": "first"})
    second = jsonl(tmp_path / "2.jsonl", {**GOOD, "question": "second"})
    test = jsonl(tmp_path / "t.jsonl", {**GOOD, "question": "third"})
    assert run(second, first, "--out", tmp_path, "--test-file", test) == 0
    found = [row["extra_info"] for row in rows(tmp_path / "train.parquet")]
    assert [(info["question"], info["index"]) for info in found] == [("second", 0), ("first", 1)]  # type: ignore[index]
    (info,) = [row["extra_info"] for row in rows(tmp_path / "test.parquet")]
    assert (info["question"], info["split"]) == ("third", "test")  # type: ignore[index]


def test_blank_lines_bom_crlf_and_separators_inside_text(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    line = json.dumps({**GOOD, "question": "a\u2028b\x85c"}, ensure_ascii=False)
    source.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n  \n{line}\r\n{line}".encode())
    assert run(source, "--out", tmp_path, "--test-size", "1") == 0
    assert len(rows(tmp_path / "train.parquet")) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"question": "q"}, "field 'answer': missing; the row has 'question'"),
        ({"question": 5, "answer": "#### 1"}, "field 'question': expected a string, got int 5"),
        ({"question": None, "answer": "#### 1"}, "field 'question': expected a string, got NoneType None"),
        ({"question": ["q"], "answer": "#### 1"}, "field 'question': expected a string, got list"),
        ({"question": " \n", "answer": "#### 1"}, "field 'question': expected text, got an empty or blank"),
        ({"question": "q", "answer": "no mark"}, "field 'answer': expected '#### NUMBER'"),
        ({"question": "q", "answer": "#### none"}, "field 'answer': expected '#### NUMBER'"),
        ({"question": "q", "answer": "#### ,."}, "field 'answer': expected a number after '####'"),
        ({"question": "q \ud800", "answer": "#### 1"}, "field 'question': lone surrogate U+D800 at character 2"),
        ('{"question": "q", "answer": "#### 1"', "expected a JSON object on one line"),
        ('{"question": "q", "question": "r", "answer": "#### 1"}', "field 'question': the key occurs twice"),
        ('{"question": "q", "answer": "#### 1", "x": NaN}', "NaN is not JSON"),
        ("[1]", "expected a JSON object, got list [1]"),
        ('"text"', "expected a JSON object, got str"),
        ("[" * 100_000, "nested too deeply"),
        ('{"question": "\udcff", "answer": "#### 1"}', "expected UTF-8, got byte 0xED"),
    ],
)
def test_bad_row_stops_with_file_line_and_field_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: object, message: str
) -> None:
    source = jsonl(tmp_path / "a.jsonl", GOOD, "", GOOD, bad, GOOD)
    out = tmp_path / "out"
    assert run(source, "--out", out, "--test-size", "1") == 1
    captured = capsys.readouterr()
    assert f"error: {source}:4: {message}" in captured.err
    assert captured.out == ""
    assert not out.exists()


def test_failure_keeps_the_files_of_an_earlier_run(tmp_path: Path) -> None:
    assert run("sample:gsm8k", "--out", tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    bad = jsonl(tmp_path.parent / f"{tmp_path.name}.jsonl", GOOD, GOOD, {"question": "q"})
    assert run(bad, "--out", tmp_path, "--test-size", "1") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_requests_that_cannot_be_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = jsonl(tmp_path / "a.jsonl", GOOD, GOOD)
    empty = jsonl(tmp_path / "e.jsonl")
    other = jsonl(tmp_path / "o.jsonl", {"ask": "p", "tell": "r"})
    for arguments, message in [
        ((tmp_path / "none.jsonl",), "no such file"),
        (("sample:none",), "Shipped: sample:gsm8k"),
        ((tmp_path,), "no train.jsonl"),
        ((source, "--test-size", "2"), "no row is left for training"),
        ((source, "--test-file", source), "would be trained on"),
        ((empty,), "no rows"),
        ((empty, "--format", "gsm8k"), "no rows"),
        ((other,), "the format of its rows is not known"),
        ((other, "--format", "gsm8k"), "o.jsonl:1: field 'question': missing"),
    ]:
        assert run(*arguments, "--out", tmp_path / "out") == 1
        assert message in capsys.readouterr().err


def test_no_split_is_told_and_an_old_test_file_is_not_left_to_mislead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "a.jsonl", GOOD)
    assert run(source, "--out", tmp_path / "out") == 0
    assert "--test-size" in capsys.readouterr().err
    (tmp_path / "out" / "test.parquet").touch()
    assert run(source, "--out", tmp_path / "out") == 1
    assert "from an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "1.0", "half", "0.0", "1/0"])
def test_sizes_that_make_no_sense(size: str) -> None:
    with pytest.raises(SystemExit) as error:
        run("sample:gsm8k", "--out", "nowhere", f"--test-size={size}")
    assert error.value.code == 2


PEAK = """
import pathlib, sys
from data_prep import convert
assert convert.main([*sys.argv[1:], "--workers", "0", "--test-size", "0.1", "--quiet"]) == 0
# ru_maxrss would count the parent's memory at the fork.
status = pathlib.Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """From several times what is held at a time on; `make bench-data` measures gigabytes."""
    peaks, bytes_read = [], []
    for size in (40_000, 240_000):
        source = tmp_path / f"{size}.jsonl"
        with source.open("w") as file:
            for number in range(size):
                question = f"How many clips are {number}? " * 8
                file.write(json.dumps({"question": question, "answer": "Step by step. " * 9 + "#### 72"}) + "\n")
        bytes_read.append(source.stat().st_size)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(source), "--out", str(tmp_path / str(size))],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]))
    # How far the reader is ahead of the writer varies; all that was read takes more than its size in the file.
    assert peaks[1] - peaks[0] < (bytes_read[1] - bytes_read[0]) / 1e6, peaks
    assert peaks[1] < 500, peaks
