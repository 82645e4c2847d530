"""Reading logs, finding the telling line, and the verdict."""

import json
import signal
import textwrap
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.supervisor import log_tail, training_log, verdict
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


def test_the_line_number_is_true_in_a_long_log(tmp_path: Path):
    """An editor jumps there, however long the log is; beyond a gigabyte before the end nobody counts."""
    log = tmp_path / "log"
    log.write_text("filler\n" * 50_000 + "ValueError: here\n" + "more\n" * 5000)
    found = verdict.find_evidence(log)
    assert found is not None
    assert (found.line, found.text) == (50_001, "ValueError: here")


def test_an_uncounted_line_has_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "log"
    log.write_text("filler\n" * 50_000 + "ValueError: here\n")
    monkeypatch.setattr(log_tail, "COUNTED_BYTES", 1000)
    found = verdict.find_evidence(log)
    assert found is not None
    assert (found.line, found.text) == (None, "ValueError: here")


def test_the_last_state_of_a_progress_bar_is_its_line(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("1%|\r50%|\r100%|#\nend\r\n")
    assert [(line.number, line.text) for line in log_tail.read_tail(log)] == [(1, "100%|#"), (2, "end")]


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")), max_size=60), st.integers(1, 400))
def test_any_tail_is_printable_and_rightly_numbered(
    tmp_path_factory: pytest.TempPathFactory, raw: list[bytes], size: int
):
    log = tmp_path_factory.mktemp("log") / "x"
    log.write_bytes(b"\n".join(raw))
    whole = {line.number: line.text for line in log_tail.read_tail(log)}
    for line in log_tail.read_tail(log, size):
        assert whole[line.number] == line.text
        assert line.text.isprintable() or not line.text.isascii()
        assert not set(line.text) & set("\x1b\x9b\r\0\u202e")
        assert len(line.text) <= log_tail.LINE_CHARS + 1


@pytest.mark.parametrize("text", ["\x1b]0;title\x07ok", "\x1b[2J\x1b[Hok", "ok\x1b", "o\u202ek", "o\u200bk"])
def test_what_acts_on_a_terminal_is_no_text(text: str):
    assert log_tail.printable(text) == "ok"


class Again:
    """As launch.supervisor.restarts decides."""

    requeue = True
    why = "restart 1 of 3: 5 new steps"


def test_a_verdict_is_complete_json(tmp_path: Path):
    evidence = verdict.Evidence("/log", 3, "boom")
    failure = verdict.Failure("node", "n1", "node lost", 24, evidence, "node-lost", "submit again")
    training = {"steps_done": 3, "last_checkpoint": "/c/global_step_3", "hf_model": None}
    verdict.write_verdict(
        tmp_path,
        state="requeued",
        started=time.time(),
        failure=failure,
        attempt=2,
        training=training,
        phases={"training": {"state": "interrupted", "step": 3, "checkpoint": "/c/global_step_3"}, "merge": None},
        restart=Again(),
    )
    told = json.loads((tmp_path / "verdict.json").read_text())
    for name in ("started", "ended"):
        time.strptime(told.pop(name), "%Y-%m-%dT%H:%M:%S%z")
    assert told == {
        "state": "requeued",
        "component": "node",
        "node": "n1",
        "kind": "node-lost",
        "cause": "node lost",
        "evidence": {"file": "/log", "line": 3, "text": "boom"},
        "what_to_do": "submit again",
        "exit_code": 24,
        "attempt": 2,
        "steps_done": 3,
        "last_checkpoint": "/c/global_step_3",
        "hf_model": None,
        "training": {"state": "interrupted", "step": 3, "checkpoint": "/c/global_step_3"},
        "merge": None,
        "requeue": True,
        "requeue_why": "restart 1 of 3: 5 new steps",
    }
    assert verdict.read_failure(told) == failure
    assert [path.name for path in tmp_path.iterdir()] == ["verdict.json"]


def test_a_verdict_of_a_job_that_went_well_has_the_same_keys(tmp_path: Path):
    verdict.write_verdict(tmp_path, state="completed", started=0.0, failure=None, training={})
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert (told["state"], told["exit_code"], told["kind"], told["requeue"]) == ("completed", 0, None, False)
    assert {"evidence", "what_to_do", "attempt", "steps_done", "last_checkpoint", "requeue_why"} <= set(told)
    assert {"training", "merge"} <= set(told)


def test_a_failure_crosses_the_wire():
    failure = verdict.Failure(
        "trainer", "n1", "ended with 42", 42, verdict.Evidence("/log", None, "boom"), "k", "do"
    )
    assert verdict.read_failure(json.loads(json.dumps(asdict(failure)))) == failure


GOOD = {"component": "trainer", "node": "n1", "cause": "x", "exit_code": 1}


def test_a_failure_of_an_older_toolkit_is_read():
    assert verdict.read_failure({**GOOD, "new": 1}) == verdict.Failure("trainer", "n1", "x", 1)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([], "a JSON object, not []"),
        (None, "not None"),
        ({}, "without component, node, cause, exit_code"),
        ({**GOOD, "node": None}, "without node"),
        ({**GOOD, "exit_code": "1"}, "exit code '1'"),
        ({**GOOD, "exit_code": 0}, "exit code 0"),
        ({**GOOD, "exit_code": 256}, "it is 1 to 255"),
        ({**GOOD, "exit_code": True}, "exit code True"),
    ],
)
def test_what_is_no_failure_says_why(data: Any, told: str):
    with pytest.raises(verdict.RecordError) as caught:
        verdict.read_failure(data)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "evidence", [None, 1, "x", {}, {"file": "/f"}, {"text": 1}, {"file": "/f", "line": "x", "text": "t"}]
)
def test_evidence_that_makes_no_sense_is_left_out(evidence: Any):
    read = verdict.read_failure({**GOOD, "evidence": evidence}).evidence
    assert read is None or read == verdict.Evidence("/f", None, "t")


KEYS = st.sampled_from([*GOOD, "evidence", "kind"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_failure_or_a_record_error(data: Any):
    try:
        read = verdict.read_failure(data)
    except verdict.RecordError:
        return
    assert 0 < read.exit_code < 256
    assert read.line().isprintable() or not read.line().isascii()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"component": "setup"}', "\0"])
def test_a_damaged_note_is_still_a_failure_of_that_node(tmp_path: Path, text: str):
    """A node whose disk is full leaves half a note; the head must not end of it in another way."""
    (tmp_path / "failed-n2.json").write_text(text)
    verdict.note_failure(tmp_path, verdict.Failure("setup", "n3", "x", 20))
    first, second = verdict.noted_failures(tmp_path)
    assert (first.component, first.node, first.exit_code) == ("node", "n2", 24)
    assert "failed-n2.json cannot be read" in first.cause
    assert second == verdict.Failure("setup", "n3", "x", 20)


def test_exit_codes_are_distinct_and_leave_room():
    codes = list(verdict.EXIT_CODES.values())
    assert len(codes) == len(set(codes))
    assert all(2 < code < 126 or code == 128 + signal.SIGTERM for code in codes)
