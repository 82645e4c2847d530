from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time

import pytest

from data_prep import progress
from data_prep.progress import Progress


def test_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    stream = io.StringIO()
    with Progress(200, stream=stream) as shown:
        shown.update(50, 1000)
        shown.update(150, 2000)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("25 %, 1,000 rows, ")
    assert second.startswith("100 %, 3,000 rows, ")
    assert first.endswith(" rows/s")
    assert (shown.bytes, shown.rows) == (200, 3000)
    assert shown.rate > 0


def test_quick_runs_have_no_lines() -> None:
    stream = io.StringIO()
    with Progress(10, stream=stream) as shown:
        shown.update(10, 1)
    assert stream.getvalue() == ""


def test_an_unknown_size_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    stream = io.StringIO()
    with Progress(0, stream=stream) as shown:
        shown.update(5, 7)
    assert stream.getvalue().startswith("7 rows, ")


def test_nothing_where_it_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    stream = io.StringIO()
    with Progress(10, shown=False, stream=stream) as shown:
        shown.update(10, 1)
        shown.say("a line")
    assert stream.getvalue() == ""
    assert shown.rows == 1


def test_a_process_without_standard_error() -> None:
    code = (
        "from data_prep.progress import Progress\n"
        "with Progress(10) as shown:\n    shown.update(10, 1)\n    shown.say('x')\nprint(shown.rows)"
    )
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")


def told_until(terminal: int, end: str) -> str:
    """What was written before `end`, read while the other side is open: closing it may lose what is under way."""
    told = ""
    deadline = time.monotonic() + 120
    while end not in told:
        assert time.monotonic() < deadline, told
        if select.select([terminal], [], [], 1.0)[0]:
            told += os.read(terminal, 1 << 16).decode()
    return told.partition(end)[0]


def test_a_bar_on_a_terminal_that_is_gone_at_the_end() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        with Progress(4 << 20, stream=terminal) as shown:
            shown.update(1 << 20, 100)
            shown.say("a line between")
            time.sleep(0.2)  # a bar is drawn ten times a second at most
            shown.update(3 << 20, 300)
        print("the end", file=terminal, flush=True)
        told = told_until(ours, "the end")
    os.close(ours)
    assert "a line between" in told
    assert "100%" in told
    assert "400 rows, " in told
    assert told.endswith(" \r")
