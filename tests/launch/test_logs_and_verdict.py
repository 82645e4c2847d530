"""Reading logs, finding the telling line, and the verdict."""

import json
import signal
import textwrap
import time
from pathlib import Path

import pytest

from launch.supervisor import training_log, verdict
from launch.supervisor.log_follower import LogFollower

STEPS = textwrap.dedent("""\
    noise step:oops
    (TaskRunner pid=1) step:1 - critic/score/mean:0.25 - timing_s/step:np.float64(1.5) - actor/lr:1e-06 - x/y:nan
    (TaskRunner pid=1) step:2 - critic/score/mean:np.float32(-3.5e-1) - timing_s/step:2
    (TaskRunner pid=1) step:2 - critic/score/mean:0.5 - timing_s/step:2
    Training Progress: 2/2
""")


def test_steps_are_read():
    first, second = training_log.parse_steps(STEPS.splitlines())
    assert (first.number, first.reward, first.metrics["timing_s/step"], first.metrics["actor/lr"]) == (
        1, 0.25, 1.5, 1e-06,
    )  # fmt: skip
    assert (second.number, second.reward) == (2, 0.5)


@pytest.mark.parametrize(
    "text", ["step:5 - version:0.9.1 - a:1", "step:5 - a:1.2.3 - b:--1 - c:1e - a:1", "step:5 - "]
)
def test_odd_numbers_are_no_metrics(text: str):
    assert [step.metrics for step in training_log.parse_steps([text])] in ([{"a": 1.0}], [])


def test_a_follower_starts_at_the_end(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("of an earlier attempt\n")
    follower = LogFollower(log)
    with log.open("a") as stream:
        stream.write("news\n")
    assert follower.lines() == ["news"]


def test_a_follower_takes_a_flood_in_pieces(tmp_path: Path):
    log = tmp_path / "log"
    follower = LogFollower(log)
    lines = [f"{n}" * 50 for n in range(30000)]
    log.write_text("\n".join(lines) + "\nrest")
    first = follower.lines()
    assert 0 < len(first) < len(lines)
    read = list(first)
    while more := follower.lines():
        read += more
    assert read == lines


def test_evidence_is_printable(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"\0\0\x1b[31mValueError: red\x1b[0m\x07\n\0\0\n")
    found = verdict.find_evidence(log)
    assert found is not None
    assert found.text == "ValueError: red"


def test_follower_gives_whole_lines_once(tmp_path: Path):
    log = tmp_path / "log"
    follower = LogFollower(log)
    assert follower.lines() == []
    log.write_bytes(b"one\ntw")
    assert follower.lines() == ["one"]
    with log.open("ab") as stream:
        stream.write(b"o \xff\n\nthree\n")
    assert follower.lines() == ["two \ufffd", "", "three"]
    assert follower.lines() == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nTraceback\nRewardOutageError: no server\nINFO bye\n", "RewardOutageError: no server"),
        (
            "Could not override 'a.b'.\nKey 'b' is not in struct\n\nSet HYDRA_FULL_ERROR=1\n",
            "Could not override 'a.b'.",
        ),
        ("start\nlast words\n", "last words"),
        ("x\nbind: Address already in use, refused\nmore\n", "bind: Address already in use, refused"),
    ],
)
def test_evidence_is_the_telling_line(tmp_path: Path, text: str, line: str):
    log = tmp_path / "log"
    log.write_text(text)
    found = verdict.find_evidence(log)
    assert found is not None
    assert found.text == line
    assert text.splitlines()[(found.line or 0) - 1] == line


def test_no_log_no_evidence(tmp_path: Path):
    assert verdict.find_evidence(tmp_path / "none") is None
    (tmp_path / "empty").write_text("\n\n")
    assert verdict.find_evidence(tmp_path / "empty") is None


def test_a_verdict_is_complete_json(tmp_path: Path):
    failure = verdict.Failure("trainer", "n1", "ended with 42", 42, verdict.Evidence("/log", 3, "boom"))
    verdict.write_verdict(
        tmp_path, state="failed", started=time.time(), failure=failure, training={"steps_done": 3}
    )
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert (told["state"], told["exit_code"], told["evidence"]["text"], told["steps_done"]) == (
        "failed",
        42,
        "boom",
        3,
    )
    assert verdict.read_failure(json.loads(json.dumps(failure.__dict__, default=lambda e: e.__dict__))) == failure
    assert [path.name for path in tmp_path.iterdir()] == ["verdict.json"]


def test_exit_codes_are_distinct_and_leave_room():
    codes = list(verdict.EXIT_CODES.values())
    assert len(codes) == len(set(codes))
    assert all(2 < code < 126 or code == 128 + signal.SIGTERM for code in codes)
