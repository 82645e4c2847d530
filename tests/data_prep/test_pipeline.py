"""Conversions from end to end: what is written, what is left out and told, and what a stop leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from chat_tokenizer import AROUND, CHATML, NO_SYSTEM, save_tokenizer
from other_processes import wait_until

from data_prep import convert as command

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> int:
    return command.main([str(argument) for argument in arguments])


def source(path: Path, *questions: str, answer: str = "#### 1") -> Path:
    path.write_text("".join(json.dumps({"question": text, "answer": answer}) + "\n" for text in questions))
    return path


def numbered(path: Path, rows: int) -> Path:
    return source(path, *(f"{path.stem}{number}" for number in range(rows)))


def questions(out: Path, split: str = "train") -> list[str]:
    table = pq.read_table(out / f"{split}.parquet")
    return [info["question"] for info in table.column("extra_info").to_pylist()]


def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "dataset.json").read_text())
    return found


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_last_rows_and_a_shuffle(tmp_path: Path) -> None:
    a = numbered(tmp_path / "a.jsonl", 20)
    assert run(a, "--test-last", 3, "--out", tmp_path / "kept") == 0
    assert questions(tmp_path / "kept") == [f"a{n}" for n in range(17)]
    assert questions(tmp_path / "kept", "test") == ["a17", "a18", "a19"]
    assert run(a, "--test-last", 3, "--shuffle", 1, "--out", tmp_path / "mixed") == 0
    mixed = questions(tmp_path / "mixed") + questions(tmp_path / "mixed", "test")
    assert sorted(mixed) == sorted(f"a{n}" for n in range(20))
    assert mixed != sorted(mixed, key=lambda name: int(name[1:]))


def test_blend_is_told_by_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = numbered(tmp_path / "a.jsonl", 12), numbered(tmp_path / "b.jsonl", 3)
    assert run(a, b, "--weight", 3, "--weight", 1, "--test-file", numbered(tmp_path / "t.jsonl", 2),
               "--data-source", "one", "--out", tmp_path / "out") == 0  # fmt: skip
    assert [name[0] for name in questions(tmp_path / "out")].count("b") == 3
    train_a, train_b = (part["train"] for part in record(tmp_path / "out")["parts"][:2])
    assert train_b == 3
    assert train_a == len(questions(tmp_path / "out")) - 3
    told = capsys.readouterr().out
    share = f"{100 * train_a / (train_a + train_b):.1f} %"
    assert any("a.jsonl" in line and share in line for line in told.splitlines()), told


def test_duplicates_and_leakage_are_told_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = source(tmp_path / "a.jsonl", "one", "two", "one", "ONE ", "three")
    test = source(tmp_path / "t.jsonl", "Three")
    asked = (a, "--test-file", test, "--out", tmp_path / "out")
    assert run(*asked) == 0
    told = capsys.readouterr().out
    assert "2 train rows have an earlier one's prompt (1 exactly)" in told
    assert "1 train rows have a test row's prompt (0 exactly)" in told
    assert run(*asked, "--remove-duplicates", "exact") == 0
    assert questions(tmp_path / "out") == ["one", "two", "ONE ", "three"]
    assert run(*asked, "--remove-duplicates", "normalized", "--remove-leakage", "normalized") == 0
    assert questions(tmp_path / "out") == ["one", "two"]
    assert [(part["duplicates"], part["leaked"]) for part in record(tmp_path / "out")["parts"]] == [(2, 1), (0, 0)]


def test_long_prompts_and_refused_ones_are_counted_apart(tmp_path: Path) -> None:
    model = save_tokenizer(tmp_path / "model", template=NO_SYSTEM + CHATML)
    rows = [[("user", "x" * 11)], [("system", "s"), ("user", "x")], [("user", "x" * 10)], [("user", "last")]]
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        for row in rows:
            messages = [{"role": role, "content": text} for role, text in [*row, ("assistant", "1")]]
            file.write(json.dumps({"messages": messages}) + "\n")
    bad, out = tmp_path / "bad.jsonl", tmp_path / "out"
    asked = (path, "--max-prompt-tokens", AROUND + 10, "--tokenizer", model, "--out", out)
    assert run(*asked) == 1
    assert run(*asked, "--skip-bad", bad) == 3
    assert questions(out) == ["x" * 10, "last"]
    (counts,) = record(out)["sources"]
    assert (counts["read"], counts["too_long"], counts["bad"]) == (4, 1, 1)
    assert json.loads(bad.read_text())["row"] == 2
    # Another template may count otherwise.
    save_tokenizer(model)
    assert run(*asked, "--skip-bad", bad) == 0
    assert record(out)["sources"][0]["bad"] == 0


def mixed(path: Path) -> Path:
    source(path, "a", "b", "c")
    path.write_text(path.read_text() + '{"question": 5, "answer": "#### 1"}\n')
    return path


def test_bad_rows_are_set_aside_and_the_exit_code_stays(tmp_path: Path) -> None:
    a, bad, out = mixed(tmp_path / "a.jsonl"), tmp_path / "bad.jsonl", tmp_path / "out"
    asked = (a, "--skip-bad", bad, "--out", out)
    assert run(*asked) == 3
    first = bad.read_bytes()
    assert [json.loads(line)["row"] for line in first.splitlines()] == [4]
    before = (out / "train.parquet").stat().st_ino
    assert run(*asked) == 3
    assert (out / "train.parquet").stat().st_ino == before
    bad.unlink()
    assert run(*asked) == 3
    assert bad.read_bytes() == first
    assert sorted(files(tmp_path / "out")) == ["dataset.json", "train.parquet"]


def test_all_rows_bad_is_an_error_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, bad = source(tmp_path / "a.jsonl", "a", "b", answer="none"), tmp_path / "bad.jsonl"
    assert run(a, "--format", "gsm8k", "--skip-bad", bad, "--out", tmp_path / "out") == 1
    told = capsys.readouterr().err
    assert "none of 2 rows can be used: 2 bad, most often answer: expected '#### NUMBER'" in told
    assert not bad.exists()
    assert not (tmp_path / "out").exists()


def test_files_that_a_conversion_reads_or_writes_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, out = mixed(tmp_path / "a.jsonl"), tmp_path / "out"
    assert run(a, "--skip-bad", out / "train.parquet", "--out", out) == 1
    assert "is a file that the conversion writes" in capsys.readouterr().err
    assert run(numbered(tmp_path / "b.jsonl", 9), "--out", out) == 0
    before = files(out)
    assert run(out / "train.parquet", "--test-size", 2, "--out", out) == 1
    assert "would be overwritten" in capsys.readouterr().err
    assert files(out) == before


def test_running_again_does_nothing_until_something_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, out = numbered(tmp_path / "a.jsonl", 9), tmp_path / "out"
    asked = (a, "--test-size", 2, "--out", out, "--quiet")

    def ran(*more: object) -> bool:
        before = (out / "train.parquet").stat().st_ino, (out / "train.parquet").stat().st_mtime_ns
        assert run(*asked, *more) == 0
        return before != ((out / "train.parquet").stat().st_ino, (out / "train.parquet").stat().st_mtime_ns)

    assert run(*asked) == 0
    first = files(out)
    assert not ran()
    assert ran("--force")
    assert files(out) == first
    assert ran("--ability", "other")
    assert ran()
    (out / "test.parquet").write_bytes(b"PAR1")
    assert ran()
    assert files(out) == first
    source(a, *(f"b{number}" for number in range(9)))
    assert ran()
    capsys.readouterr()
    assert run(*asked[:-1], "--json") == 0
    assert json.loads(capsys.readouterr().out) == record(out)


def test_workers_give_the_same_bytes(tmp_path: Path) -> None:
    a = numbered(tmp_path / "a.jsonl", 500)
    for workers in (0, 2):
        assert run(a, "--test-size", "0.1", "--workers", workers, "--out", tmp_path / str(workers)) == 0
    assert files(tmp_path / "0") == files(tmp_path / "2")


def test_a_folder_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, out = numbered(tmp_path / "a.jsonl", 3), tmp_path / "out"
    out.mkdir()
    handle = os.open(out, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert run(a, "--out", out) == 1
    assert "another conversion writes there" in capsys.readouterr().err
    os.close(handle)
    assert run(a, "--out", out) == 0


def test_an_output_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = numbered(tmp_path / "a.jsonl", 3)
    for out in (a, a / "below"):
        assert run(a, "--out", out) == 1
        assert f"--out {out}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("--data-source", "\udcff"), ("--ability", " "), ("--test-size", "1e999999999"), ("--weight", "1e999999999")],
)
def test_values_that_make_no_sense(tmp_path: Path, arguments: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("sample:gsm8k", "--out", tmp_path / "out", *arguments)
    assert stop.value.code == 2


def of_group(group: int) -> list[int]:
    """Processes of a process group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_leaves_no_file_and_no_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    line = json.dumps({"question": "How many? " * 50, "answer": "#### 1"}) + "\n"
    big, out = tmp_path / "big.jsonl", tmp_path / "out"
    big.write_text(line * 150_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "data_prep.convert", str(big), "--out", str(out), "--workers", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: any(path.stat().st_size for path in out.glob(".convert-*/spool/*")), "row in the spool")
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == code
    wait_until(lambda: not of_group(process.pid), "end of its processes")
    assert "Traceback" not in told
    if number != signal.SIGKILL:
        assert "run it again" in told
        assert not out.exists()
    else:
        assert not list(out.glob("*.*t"))
        assert run(numbered(tmp_path / "a.jsonl", 3), "--out", out) == 0
        assert sorted(files(out)) == ["dataset.json", "train.parquet"]
