"""A trainer that writes nothing any more."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.supervisor.stalls import StallWatch, dump_stacks


def test_a_log_that_grows_is_no_stall(tmp_path: Path):
    log = tmp_path / "log"
    log.touch()
    watch = StallWatch(log, 0.2)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        log.write_text(log.read_text() + "x")
        assert watch.silent_s() is None
        time.sleep(0.05)
    until = time.monotonic() + 60.0
    while (silent := watch.silent_s()) is None and time.monotonic() < until:
        time.sleep(0.05)
    assert silent is not None
    assert silent >= 0.2


def test_without_a_limit_it_may_be_silent(tmp_path: Path):
    watch = StallWatch(tmp_path / "none", None)
    assert watch.silent_s() is None


def test_the_dump_names_what_runs_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no py-spy
    code = "import time; print(flush=True); time.sleep(600) # the-trainer"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # it has its command line
        dump_stacks(tmp_path / "stacks")
    finally:
        child.kill()
        child.communicate()
    text = (tmp_path / "stacks").read_text()
    assert f"{child.pid} " in text
    assert "the-trainer" in text
    assert "no py-spy on PATH" in text


def test_py_spy_that_hangs_or_fails_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho stack of $4; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        dump_stacks(tmp_path / "stacks")
    finally:
        child.kill()
        child.wait()
    assert f"stack of {child.pid}" in (tmp_path / "stacks").read_text()
