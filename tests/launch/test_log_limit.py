"""A log that floods loses its middle while its writer goes on; who follows it sees each line once."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.supervisor import log_limit
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.log_limit import cut_log, cut_logs
from launch.supervisor.processes import Component, stop

MARK = re.compile(
    rb"^\[launch: (\d+) bytes of this log were cut out here: it had more than (\d+)\]$", re.MULTILINE
)


def numbers(data: bytes) -> list[int]:
    return [int(line[:-1]) for line in re.findall(rb"^\d+;$", data, re.MULTILINE)]


FLOOD = """
import os, sys, time
number, most = 0, int(sys.argv[1])
until = time.monotonic() + 60
while time.monotonic() < until and not os.path.exists("enough"):
    if os.fstat(1).st_size > most:
        time.sleep(0.001)
        continue
    lines = b"".join(b"%d;\\n" % (number + more) for more in range(2000))
    number += 2000
    os.write(1, lines)
os.write(1, b"%d;\\n" % number)
"""


def test_a_real_writer_floods_and_goes_on(tmp_path: Path):
    """Cut again and again: the beginning and the end stay, what is cut is gone, and nothing is torn.

    The writer waits where the log has grown far beyond the limit: how far it comes between two looks is then the
    same on any machine.
    """
    log = tmp_path / "log"
    limit, keep = 4 * 2**20, 2**20
    flood = [sys.executable, "-c", FLOOD, str(2 * limit)]
    writer = Component("flood", flood, log, dict(os.environ), tmp_path)
    cuts = cut = 0
    while writer.poll() is None:
        taken = cut_log(log, limit, keep)
        cuts, cut = cuts + (taken > 0), cut + taken
        if cuts == 4:
            (tmp_path / "enough").touch()
        time.sleep(0.01)
    assert writer.exit_code == 0
    assert cuts >= 4
    data = log.read_bytes()
    found = numbers(data)
    written = sum(len(b"%d;\n" % number) for number in range(found[-1] + 1))
    assert len(data) <= written - cut + 100 * cuts  # a line of ours for each cut
    assert found[0] == 0
    assert found == sorted(set(found))
    assert b"%d;\n" % found[-1] == data.splitlines(keepends=True)[-1]
    (gone, told) = MARK.findall(data)[-1]
    assert int(gone) > 0
    assert int(told) == limit


def test_a_small_log_and_one_that_is_not_there_are_left_alone(tmp_path: Path):
    log, data = tmp_path / "log", b"x" * 200_000
    assert cut_log(log) == 0
    log.write_bytes(data)
    assert cut_log(log, limit=1000, keep=100_000) == 0
    assert cut_log(log, limit=200_000, keep=100) == 0
    assert log.read_bytes() == data
    assert cut_log(log, limit=199_999, keep=100) > 0


def test_what_is_told(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d;\n" % number for number in range(20000)))
    size = log.stat().st_size
    (told,) = cut_logs([log, tmp_path / "none"], limit=10000, keep=1000)
    (gone,) = re.findall(r"(\d+) bytes of its middle are gone", told)
    data = log.read_bytes()
    kept = numbers(data)
    assert kept[0] == 0
    assert kept[-1] == 19999
    mark = MARK.search(data)
    assert mark is not None
    assert int(mark[1]) == int(gone) == size - (len(data) - len(mark[0]) - 2)


def test_a_log_that_cannot_be_cut_is_told_and_no_end_of_the_job(tmp_path: Path):
    """A program that runs stands for it: nobody may write to its file."""
    log = tmp_path / "log"
    shutil.copy("/bin/bash", log)
    with subprocess.Popen([log, "-c", "read"], stdin=subprocess.PIPE) as running:
        (told,) = cut_logs([log], limit=1, keep=1)
        running.communicate(b"\n")
    assert "cannot be cut: [Errno 26]" in told


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 150), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_a_follower_sees_each_line_once_and_whole(tmp_path_factory: pytest.TempPathFactory, turns):
    """Whatever the order of writing, cutting and reading; only lines that a cut took are not seen."""
    log = tmp_path_factory.mktemp("follow") / "log"
    log.touch()
    follower = LogFollower(log)
    written, seen, gone = 0, [], 0
    for lines, cuts, reads in turns:
        with log.open("ab") as stream:
            for _ in range(lines):
                stream.write(b"%d;\n" % written)
                written += 1
        if cuts:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log_limit, "_CHUNK", 16)
                gone += cut_log(log, limit=400, keep=60)
        if reads:
            seen += follower.lines()
    seen += follower.lines()
    told = [line for line in seen if line.endswith(";")]
    assert all(line == "" or line.endswith(";") or line.startswith("[launch: ") for line in seen)
    counted = [int(line[:-1]) for line in told]
    assert counted == sorted(set(counted))
    if written:
        assert counted[-1] == written - 1
    if not gone:
        assert counted == list(range(written))


def test_half_a_line_survives_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_limit, "_CHUNK", 16)
    log = tmp_path / "log"
    log.write_bytes(b"old\n" * 100)
    follower = LogFollower(log)
    with log.open("ab") as stream:
        stream.write(b"step:")
        stream.flush()
        assert follower.lines() == []
        assert cut_log(log, limit=200, keep=50) > 0
        stream.write(b"1 - x:2\nnext\n")
        stream.flush()
        assert follower.lines() == ["step:1 - x:2", "next"]


def test_somebody_elses_cut_repeats_nothing(tmp_path: Path):
    """Ray's list of nodes read twice would tell of nodes that died."""
    log = tmp_path / "log"
    log.write_bytes(b"")
    follower = LogFollower(log)
    log.write_bytes(b"one\ntwo\n")
    assert follower.lines() == ["one", "two"]
    log.write_bytes(b"x\n")
    assert follower.lines() == []
    with log.open("ab") as stream:
        stream.write(b"three\n")
    assert follower.lines() == ["three"]


def test_a_supervisors_part_is_open_for_appending(tmp_path: Path):
    """What all of this rests on."""
    part = Component("part", ["sleep", "60"], tmp_path / "log", dict(os.environ), tmp_path)
    try:
        flags = int(re.findall(r"flags:\s+(\d+)", Path(f"/proc/{part.pid}/fdinfo/1").read_text())[0], 8)
        assert flags & os.O_APPEND
    finally:
        stop([part], 1.0)
