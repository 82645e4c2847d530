"""The bench of data preparation: a small run of it, and what makes its comparison fair."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from inputs import make_jsonl
from measure import Run, run
from run import OURS, command_of, table, targets

HERE = Path(__file__).parent


def test_a_small_run_tells_every_number(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(HERE / "run.py"), "--mb", "1", "--rounds", "1", "--systems", "ours,limit"]
    done = subprocess.run(
        [*command, "--no-large", "--work", str(tmp_path), "--json", str(report)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["rows"] > 1000
    assert found["runs"]["ours"][0]["peak_mib"] > 20
    assert [target["reached"] for target in found["targets"]] == [True]
    assert list(tmp_path.iterdir()) == [report]


def test_all_do_the_same_work(tmp_path: Path) -> None:
    source = tmp_path / "small.jsonl"
    rows = make_jsonl(source, 100_000)
    written = {}
    for system in (OURS, "pandas", "datasets"):
        out = tmp_path / system
        out.mkdir()
        subprocess.run(command_of(system, source, out), check=True, capture_output=True, timeout=120)
        written[system] = pq.read_table(out / "train.parquet").to_pylist()
    assert len(written[OURS]) == rows
    assert written["pandas"] == written[OURS]
    assert written["datasets"] == written[OURS]


def test_inputs_are_the_same_each_time_and_no_prompt_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_jsonl(tmp_path / name, 200_000)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    lines = (tmp_path / "a").read_text().splitlines()
    assert len({json.loads(line)["question"] for line in lines}) == len(lines)


def test_memory_is_that_of_all_processes(tmp_path: Path) -> None:
    child = "import time; held = b'x' * (60 << 20); time.sleep(0.6)"
    code = f"import subprocess, sys; held = b'x' * (60 << 20); subprocess.run([sys.executable, '-c', {child!r}])"
    found = run([sys.executable, "-c", code], {}, tmp_path / "log")
    assert 120 < found.peak_mib < 200
    assert 0.6 < found.seconds < 30


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="ended with 3: told"):
        run([sys.executable, "-c", "print('told'); raise SystemExit(3)"], {}, tmp_path / "log")
    assert time.monotonic() - begun < 30


def test_targets() -> None:
    runs = {
        "ours": [Run(1.0, 100, 0), Run(2.0, 110, 0)],
        "pandas": [Run(3.0, 900, 0), Run(5.0, 900, 0)],
        "datasets": [Run(0.5, 900, 0), Run(1.0, 900, 0)],
        "limit": [Run(0.1, 50, 0), Run(0.2, 50, 0)],
    }
    assert [reached for _, reached in targets(runs, 110, 120)] == [True, False, True, True]
    assert [reached for _, reached in targets(runs, 110, 140)] == [True, False, True, False]
    assert [reached for _, reached in targets(runs, 110, 600)] == [True, False, False, False]
    assert "2.75 times" in targets(runs, 110, None)[0][0]
    assert "2.75" in table(runs, 10)[2]
