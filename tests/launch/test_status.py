"""What launch.status shows of a run: one screen, whatever lies in its directory."""

# ruff: noqa: E501  screens and logs are wide

import ast
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import slurm_queue
from launch.run_record import RunRecord, duration, read_run
from launch.slurm_queue import QueueState, parse_sacct, parse_squeue
from launch.status import NoRunError, find_run, main, sparkline, summarize, table
from launch.supervisor.causes import CAUSES
from launch.supervisor.training_log import read_training
from launch.supervisor.verdict import Evidence, Failure, write_json, write_verdict


def steps(first: int, last: int, seconds: float = 1.0, total: int = 0) -> str:
    """A trainer's log, as verl's console logger writes it."""
    lines = [f"\x1b[36m(T pid=1)\x1b[0m Total training steps: {total}"] if total else []
    lines += [
        f"\x1b[36m(T pid=1)\x1b[0m step:{n} - global_seqlen/mean:9 - critic/score/mean:{n / 10} - "
        f"timing_s/step:np.float64({seconds}) - perf/time_per_step:{seconds}"
        for n in range(first, last + 1)
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """As the first version of the toolkit left it: logs and nothing else."""
    run = tmp_path / "outputs" / "job" / "run-17"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "n1-trainer.log").write_text(steps(1, 20))
    return run


def refuse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let os.NAME answer as it does a user who may not look there; root may look everywhere."""

    def refused(path: Any, *_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, name, refused)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_folder_that_one_may_not_read(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    refuse("scandir", monkeypatch)
    assert main([str(run_dir), *form]) == 1
    out, err = capsys.readouterr()
    assert err == f"error: {run_dir}: Permission denied\n"
    assert out == "" or json.loads(out) == {"error": f"{run_dir}: Permission denied"}


def test_a_manifest_that_cannot_be_read_leaves_the_state_open(run_dir: Path) -> None:
    assert "state      running\n" in shown(run_dir)
    (run_dir / "manifest.json").mkdir()
    assert "state      running: as far as is known: its manifest.json cannot be read" in shown(run_dir)


def test_a_file_of_a_run_stands_for_its_folder(run_dir: Path) -> None:
    (run_dir / "verdict.json").write_text("{}")
    assert find_run(str(run_dir / "verdict.json"), Path("outputs")) == run_dir
    with pytest.raises(NoRunError):
        find_run(str(run_dir / "logs" / "n1-trainer.log"), Path("outputs"))


@pytest.mark.parametrize("text", ["", "soon", "nan", "0.1", "1e9"])
def test_seconds_to_watch(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["--watch", text])
    assert f"{text!r} is no number of seconds; give 0.5 to 86400" in capsys.readouterr().err


def shown(run_dir: Path, queue: QueueState | None = None) -> str:
    return table(read_run(run_dir, lambda _: queue))


def living(run_dir: Path, **told: Any) -> None:
    """A run with a manifest and a fresh heartbeat."""
    nodes = [{"rank": rank, "node": f"n{rank + 1}", "address": f"10.0.0.{rank}"} for rank in range(2)]
    data = {
        "job": 17,
        "attempt": 0,
        "nodes": nodes,
        "nodes_expected": 3,
        "checkpoint_dir": str(run_dir / "c"),
        **told,
    }
    write_json(run_dir / "manifest.json", data)
    (run_dir / "heartbeat").touch()


def test_a_run_of_the_first_version(run_dir: Path):
    first = {
        "job": 17,
        "attempt": 0,
        "nodes": 3,
        "head": {"node": "n1", "interface": "ib0", "address": "10.0.0.1"},
    }
    write_json(run_dir / "manifest.json", {**first, "ports": {}, "logs": str(run_dir / "logs")})
    told = summarize(run_dir)
    assert (told["state"], told["steps"]) == ("running", 20)
    assert (told["reward_first"], told["reward_last"]) == (pytest.approx(0.15), pytest.approx(1.95))
    assert "reward     0.1500 -> 1.9500" in shown(run_dir)
    assert "nodes      1 of 3 joined: n1 (10.0.0.1)" in shown(run_dir)


def test_a_running_job(run_dir: Path):
    (run_dir / "logs" / "n1-trainer.log").write_text(steps(1, 20, 60.0, total=435))
    living(run_dir, ends_at=time.time() + 3600)
    screen = shown(run_dir, QueueState("RUNNING"))
    assert "state      running\n" in screen
    assert "nodes      2 of 3 joined: n1 (10.0.0.0), n2 (10.0.0.1)" in screen
    assert "steps      20 of 435, 60 s a step, 6 h 55 min left" in screen
    assert "in 60 min: 59 of the 415 remaining steps fit" in screen
    living(run_dir, ends_at=time.time() + 86400)
    told = read_run(run_dir)
    assert (told.fits, told.steps_that_fit, told.seconds_left) == (True, 415, 415 * 60)
    assert "the remaining steps fit" in table(told)


def test_the_recent_steps_tell_the_rate(run_dir: Path):
    """The first steps compile kernels; one slow step (a checkpoint) does not count much."""
    text = steps(1, 10, 100.0, total=40) + steps(11, 19, 10.0) + steps(20, 20, 500.0)
    (run_dir / "logs" / "n1-trainer.log").write_text(text)
    told = read_run(run_dir)
    assert (told.seconds_per_step, told.seconds_left) == (10.0, 200.0)


def test_steps_in_all_are_told_by_the_job_before_verl_does(run_dir: Path):
    living(run_dir, resolved_job={"algorithm": {"total_steps": 30}})
    assert read_run(run_dir).total_steps == 30
    living(run_dir, resolved_job={"algorithm": {"total_steps": None}})
    assert read_run(run_dir).total_steps is None


def test_a_killed_head_is_not_running(run_dir: Path):
    living(run_dir)
    os.utime(run_dir / "heartbeat", (time.time() - 900, time.time() - 900))
    screen = shown(run_dir)
    assert "state      silent: no sign of life of the head for 15 min" in screen
    assert "state      failed: Slurm says NODE_FAIL; it left no verdict" in shown(
        run_dir, QueueState("NODE_FAIL", ended=True)
    )
    assert "state      timeout: Slurm says TIMEOUT" in shown(run_dir, QueueState("TIMEOUT", ended=True))
    (run_dir / "heartbeat").touch()
    assert "state      running\n" in shown(run_dir)


def test_a_second_attempt_that_begins_is_not_silent(run_dir: Path):
    """The heartbeat is the first attempt's until the head of the second one runs, in a slow image."""
    living(run_dir)
    os.utime(run_dir / "heartbeat", (time.time() - 900, time.time() - 900))
    (run_dir / "verdict.json").write_text('{"state": "requeued", "attempt": 0, "steps_done": 20}')
    (run_dir / "verdict.json").rename(run_dir / "verdict.0.json")
    (run_dir / "job.json").write_text("{}")
    os.utime(run_dir / "job.json", (time.time() - 120, time.time() - 120))
    screen = shown(run_dir, QueueState("RUNNING"))
    assert "state      starting: began 2 min ago, no sign of the head yet" in screen
    assert "1: starting, this one" in screen
    os.utime(run_dir / "job.json", (time.time() - 2000, time.time() - 2000))
    assert "state      silent" in shown(run_dir, QueueState("RUNNING"))
    (run_dir / "heartbeat").touch()
    assert "state      running\n" in shown(run_dir, QueueState("RUNNING"))


def test_json_is_ascii(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    (run_dir / "verdict.json").write_text(json.dumps({"state": "failed", "cause": "\x9b31m\u202eé"}))
    assert main([str(run_dir), "--json"]) == 0
    shown_text = capsys.readouterr().out
    assert shown_text.isascii()
    assert json.loads(shown_text)["cause"] == "31mé"


def test_a_job_in_the_queue(run_dir: Path):
    queue = QueueState("PENDING", "Resources", "2026-11-30T04:00:00")
    assert "state      pending: waits in the queue: Resources; expected start: 2026-11-30T04:00:00" in shown(
        run_dir, queue
    )
    assert "expected start: not known yet" in shown(run_dir, QueueState("PENDING"))


def test_a_failed_job_says_why_and_what_to_do(run_dir: Path):
    failure = Failure(
        "ray worker", "n2", "Ray lost the node", 23, Evidence("/log", 7, "boom"), "ray-node-lost", "submit again"
    )
    training = {"steps_done": 20, "last_checkpoint": "/c/global_step_20", "hf_model": None}
    write_verdict(run_dir, state="failed", started=time.time(), failure=failure, training=training)
    screen = shown(run_dir)
    assert "failed     ray worker on n2: Ray lost the node" in screen
    assert f"cause      ray-node-lost: {CAUSES['ray-node-lost'].meaning}" in screen
    assert "evidence   /log:7: boom" in screen
    assert "to do      submit again" in screen
    assert "checkpoint /c/global_step_20" in screen
    assert "left" not in next(line for line in screen.splitlines() if line.startswith("steps"))


def test_a_job_that_ran_out_of_time(run_dir: Path):
    failure = Failure("job", "n1", "out of time: signal 15", 47, kind="wall-time")
    write_verdict(run_dir, state="failed", started=0.0, failure=failure, training={})
    assert "state      timeout\ntimeout    out of time: signal 15, on n1\ncause      wall-time: " in shown(run_dir)


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        (None, "submit again: it begins at step 1: no checkpoint was written"),
        ("/c/global_step_7", "submit again: the job goes on from its last checkpoint"),
        ("checkpoints/global_step_7", "submit again: it begins at step 1: a rehearsal keeps"),
    ],
)
def test_a_cancelled_job_is_told_once_and_what_comes_next(run_dir: Path, checkpoint: str | None, says: str):
    failure = Failure("job", "n1", "cancelled: SIGINT", 143, None, "cancelled", CAUSES["cancelled"].what_to_do)
    assert failure.line() == "cancelled: SIGINT, on n1 (exit code 143)"
    saved = checkpoint and str(run_dir / checkpoint)
    write_verdict(run_dir, state="cancelled", started=0.0, failure=failure, training={"last_checkpoint": saved})
    screen = shown(run_dir)
    assert "state      cancelled\ncancelled  SIGINT, on n1\nto do      " in screen
    assert f"to do      {says}" in screen
    assert "restart" not in screen


def test_a_requeued_job_with_two_attempts(run_dir: Path):
    failure = Failure("node", "n2", "node lost", 24, kind="node-lost")

    class Restart:
        requeue, why = True, "restart 1 of 3"

    write_verdict(
        run_dir,
        state="requeued",
        started=0.0,
        failure=failure,
        attempt=0,
        training={"steps_done": 20},
        restart=Restart(),
    )
    screen = shown(run_dir, QueueState("PENDING", "BeginTime", "2026-11-30T04:00:00"))
    assert "state      requeued: waits in the queue: BeginTime" in screen
    assert "restart    restart 1 of 3" in screen
    # Slurm refused: nobody watches for ever.
    refused = read_run(run_dir, lambda _: QueueState("FAILED", ended=True))
    assert (refused.state, refused.over) == ("failed", True)
    assert "did not start the job again" in refused.why
    # What the script does at the start of the second attempt, which goes on from step 15.
    (run_dir / "verdict.json").rename(run_dir / "verdict.0.json")
    (run_dir / "logs.1").mkdir()
    (run_dir / "logs.1" / "n3-trainer.log").write_text(steps(16, 18, 2.0, total=40))
    living(run_dir, attempt=1, logs=str(run_dir / "logs.1"))
    told = read_run(run_dir)
    assert (told.state, told.attempt, told.steps, told.total_steps) == ("running", 1, 18, 40)
    # Steps 16 to 20 of the first attempt were lost, three of them are done again.
    assert (told.lost_steps, told.rewards) == (5, pytest.approx([n / 10 for n in range(1, 19)]))
    screen = table(told)
    assert "attempts   0: requeued after step 20, node on n2: node lost (exit code 24)" in screen
    assert "1: running, this one" in screen


def test_an_attempt_without_steps_yet_takes_none_away(run_dir: Path):
    (run_dir / "logs.1").mkdir()
    (run_dir / "logs.x").mkdir()
    (run_dir / "logs.1" / "n1-trainer.log").write_text("starting\n")
    assert read_run(run_dir).steps == 20


def test_a_job_whose_head_could_not_begin(tmp_path: Path):
    """The script's own note of a path that a node lacks, without a verdict."""
    for node, code in (("n1", 143), ("n2", 20)):
        note = {"component": "setup", "node": node, "cause": "no /x on this node", "exit_code": code}
        (tmp_path / f"failed-{node}.json").write_text(json.dumps(note))
    screen = shown(find_run(str(tmp_path), tmp_path))
    assert "state      failed" in screen
    assert "failed     setup on n2: no /x on this node" in screen


def test_runs_are_found_by_path_job_id_or_age(run_dir: Path, tmp_path: Path):
    outputs = tmp_path / "outputs"
    (outputs / "job" / "run-17.before-20261129-220000").mkdir()
    assert find_run(str(run_dir), outputs) == run_dir
    assert find_run("17", outputs) == run_dir
    assert find_run(None, outputs) == run_dir
    for what in ("18", "1*", "[0-9]7"):
        with pytest.raises(NoRunError, match="looked for"):
            find_run(what, outputs)


DAMAGES = ['{"state":', "\0\xff", "[1]", "{}", "[" * 100_000, '"x"', ""]


@pytest.mark.parametrize("name", ["verdict.json", "manifest.json", "failed-n1.json", "verdict.0.json"])
@pytest.mark.parametrize("text", DAMAGES)
def test_a_damaged_file_is_told_and_the_rest_is_shown(run_dir: Path, name: str, text: str):
    (run_dir / name).write_text(text)
    screen = shown(run_dir)
    assert "steps      20" in screen
    assert name in screen
    if name == "verdict.json":
        assert "state      ended: its verdict is damaged" in screen


@pytest.mark.parametrize(
    "key", ["evidence", "exit_code", "state", "node", "attempt", "nodes", "logs", "resolved_job", "ends_at"]
)
@pytest.mark.parametrize("value", [None, 1, "x", [1], {"foo": 1}, True, 1e999, -1])
def test_foreign_values_are_survived(run_dir: Path, key: str, value: Any):
    good = {"state": "failed", "component": "trainer", "node": "n1", "cause": "x", "exit_code": 1, "attempt": 0}
    (run_dir / "verdict.json").write_text(json.dumps({**good, key: value}))
    (run_dir / "manifest.json").write_text(json.dumps({"job": 1, key: value}))
    assert "steps      20" in shown(run_dir)
    json.dumps(summarize(run_dir))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e18", "-1e18", "9" * 400, '{"a":' * 900 + "1" + "}" * 900])
@pytest.mark.parametrize("key", ["ends_at", "attempt", "nodes", "component"])
def test_values_beyond_all_bounds_are_survived(run_dir: Path, key: str, text: str):
    (run_dir / "manifest.json").write_text(f'{{"job": 1, "nodes": [{{"node": {text}}}], "{key}": {text}}}')
    (run_dir / "verdict.0.json").write_text(f'{{"state": "failed", "{key}": {text}}}')
    (run_dir / "logs" / "n1-trainer.log").write_text(steps(1, 2, total=10))
    assert "steps      2 of 10" in shown(run_dir)


@pytest.mark.parametrize("seconds", ["inf", "1e-320", "1e300"])
def test_steps_of_any_length_are_survived(run_dir: Path, seconds: str):
    living(run_dir, ends_at=time.time() + 1000)
    log = steps(1, 2, total=10**11).replace("np.float64(1.0)", f"np.float64({seconds})")
    log = log.replace("mean:0.1 ", "mean:1e308 ").replace("mean:0.2 ", "mean:-1e308 ")
    (run_dir / "logs" / "n1-trainer.log").write_text(log)
    assert "steps      2 of 100000000000" in shown(run_dir)


@settings(max_examples=150)
@given(
    st.text(alphabet=st.characters(), max_size=60),
    st.sampled_from(["text", "cause", "node", "state", "what_to_do"]),
)
def test_hostile_bytes_do_not_reach_the_terminal(tmp_path_factory: pytest.TempPathFactory, text: str, where: str):
    run = tmp_path_factory.mktemp("run-5")
    hostile = f"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e{text}"
    told: dict[str, Any] = {"state": "failed", "component": "trainer", "node": "n1", "cause": "x", "exit_code": 1}
    told["evidence"] = {"file": "/log", "line": 3, "text": hostile if where == "text" else "y"}
    told[where] = hostile
    (run / "verdict.json").write_text(json.dumps(told))
    screen = shown(run)
    assert not [
        c for c in screen if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066\u200b\u2028")
    ]
    assert len(screen.splitlines()) <= 14


def test_any_other_folder_is_no_run(tmp_path: Path):
    with pytest.raises(NoRunError, match="not a run directory"):
        find_run(str(tmp_path), tmp_path)


def test_a_run_without_anything(tmp_path: Path):
    assert summarize(tmp_path)["rewards"] == []
    assert "steps      0" in shown(tmp_path)
    assert summarize(tmp_path / "none")["steps"] == 0


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([1.0, 1.0], "▁▁"), ([0.0, 0.5, 1.0], "▁▅█"), ([0.0, float("nan"), 1.0], "▁·█")]
)
def test_sparkline(values: list[float], bars: str):
    assert sparkline(values).replace("▄", "▅") == bars


@given(st.lists(st.floats(width=16), max_size=300))
def test_sparkline_is_never_wider(values: list[float]):
    assert len(sparkline(values, width=60)) <= 60


def test_durations():
    assert [duration(s) for s in (0, 89, 90, 5400, 86400, 200000)] == [
        "0 s", "89 s", "2 min", "1 h 30 min", "24 h 0 min", "2 d 7 h",
    ]  # fmt: skip


# ---- the trainer's log


@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_a_log_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int):
    log = tmp_path / "x.log"
    log.write_text(
        steps(1, 300, total=300)
        + "Training Progress: x\rstep:301 - critic/score/mean:1\nstep:302 - critic/score/mean:3"
    )
    monkeypatch.setattr("launch.supervisor.training_log._CHUNK", size)
    told = read_training(log)
    # The last line has no end: its number may be half of one.
    assert [step.number for step in told.steps] == list(range(1, 302))
    assert (told.total, told.skipped, told.steps[7].reward) == (300, 0, 0.8)


def test_of_a_very_large_log_the_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "x.log"
    log.write_text(steps(1, 2000, total=9999))
    monkeypatch.setattr("launch.supervisor.training_log._HEAD_BYTES", 10_000)
    told = read_training(log, limit=50_000)
    numbers = [step.number for step in told.steps]
    assert (numbers[0], numbers[-1], told.total) == (1, 2000, 9999)
    assert len(numbers) < 600
    assert told.skipped == log.stat().st_size - 50_000


def test_a_large_log_takes_little_time(run_dir: Path):
    """100 MB of a worker's chatter between steps; a status that takes long is not asked for."""
    chatter = ("(WorkerDict pid=5101, ip=10.0.2.101) " + "x" * 90 + "\n") * 8000
    with (run_dir / "logs" / "n1-trainer.log").open("w") as stream:
        for number in range(100):
            stream.write(chatter)
            stream.write(steps(number + 1, number + 1, total=435))
    began = time.process_time()
    assert read_run(run_dir).steps == 100
    assert time.process_time() - began < 10


# ---- Slurm


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PENDING|Resources|2026-11-30T04:00:00|N/A\n", QueueState("PENDING", "Resources", "2026-11-30T04:00:00", "")),
        ("PENDING|(null)|N/A|N/A\n", QueueState("PENDING")),
        ("RUNNING|None|2026-11-30T04:00:00|2026-11-30T05:00:00\n",
         QueueState("RUNNING", "", "2026-11-30T04:00:00", "2026-11-30T05:00:00")),
        ("TIMEOUT|TimeLimit|2026-11-30T04:00:00|2026-11-30T05:00:00\n",
         QueueState("TIMEOUT", "", "2026-11-30T04:00:00", "2026-11-30T05:00:00", ended=True)),
        ("slurm_load_jobs error: Invalid job id specified\n", None),
        ("a|b|c|d\n", None),
    ],
)  # fmt: skip
def test_squeue_is_read(text: str, expected: QueueState | None):
    assert parse_squeue(text) == expected


@pytest.mark.parametrize(
    ("text", "state"),
    [("CANCELLED by 1000\n", "CANCELLED"), ("REQUEUED\nTIMEOUT\n", "TIMEOUT"), ("nonsense\n", None)],
)
def test_sacct_is_read(text: str, state: str | None):
    found = parse_sacct(text)
    assert (found.state if found else None) == state


def stub(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_slurm_is_asked_and_sacct_for_what_left_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    stub(tmp_path / "bin", "squeue", 'case "$*" in *--jobs=17*) echo "RUNNING|None|N/A|N/A";; *) exit 1;; esac')
    stub(tmp_path / "bin", "sacct", 'case "$*" in *--jobs=18*) echo NODE_FAIL;; esac')
    assert slurm_queue.ask("17") == QueueState("RUNNING")
    assert slurm_queue.ask("18") == QueueState("NODE_FAIL", ended=True)
    assert slurm_queue.ask("19") is None
    assert slurm_queue.ask("17; rm") is None


def test_a_controller_that_is_away_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_queue, "_TIMEOUT_S", 0.2)
    stub(tmp_path / "bin", "squeue", "exec sleep 20")
    stub(tmp_path / "bin", "sacct", "exec sleep 20")
    assert slurm_queue.ask("17") is None


# ---- the command


def status(cwd: Path, *words: str, path: str = "") -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    command = [sys.executable, "-m", "launch.status", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environ)


def test_the_command(run_dir: Path, tmp_path: Path):
    assert json.loads(status(tmp_path, "17", "--json").stdout)["steps"] == 20
    missing = status(tmp_path, "99")
    assert missing.returncode == 1
    assert "outputs/*/run-99" in missing.stderr
    assert f" in {tmp_path};" in missing.stderr
    assert "steps      20" in status(tmp_path, "run-17").stdout


def test_a_closed_pipe_is_no_traceback(run_dir: Path, tmp_path: Path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "launch.status", "17"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_json_has_no_nan(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    (run_dir / "logs" / "n1-trainer.log").write_text(steps(1, 3).replace("mean:0.2", "mean:nan"))
    assert main([str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rewards"] == [0.1, None, 0.3]


def test_a_job_that_waits_has_no_run_directory(tmp_path: Path):
    stub(tmp_path / "bin", "squeue", 'echo "PENDING|Priority|2026-11-30T04:00:00|N/A"')
    done = status(tmp_path, "4711", path=str(tmp_path / "bin"))
    assert done.returncode == 0
    assert "state      pending: waits in the queue: Priority; expected start: 2026-11-30T04:00:00" in done.stdout


def test_it_watches_until_the_end(run_dir: Path, tmp_path: Path):
    living(run_dir)
    command = [sys.executable, "-m", "launch.status", "17", "--watch", "0.5"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        seen = watching.stdout.readline()
        write_verdict(run_dir, state="completed", started=0.0, failure=None, training={"steps_done": 20})
        rest = watching.stdout.read()
        assert watching.wait(timeout=60) == 0
    assert seen.startswith("run ")
    assert rest.count("state      completed") == 1


def test_a_terminal_without_bars(run_dir: Path, tmp_path: Path):
    command = [sys.executable, "-m", "launch.status", "17"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=environ, check=True)
    assert b"steps      20" in done.stdout


def test_a_record_is_json():
    assert json.loads(json.dumps(RunRecord("x").__dict__))["state"] == "running"


def test_it_runs_with_python_3_9(run_dir: Path):
    """On a login node, without a package of others; where no such Python is here, the text alone is looked at."""
    program = "import sys, launch.status; print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)))"
    root = Path(slurm_queue.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    own = [Path(file) for file in done.stdout.split() if Path(file).is_relative_to(root)]
    assert Path(slurm_queue.__file__) in own
    for file in own:
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        unions = [
            node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        ]
        of_none = [node for node in unions if isinstance(node.right, ast.Constant) and node.right.value is None]
        assert not of_none or "from __future__ import annotations" in file.read_text(), file
    pythons = [
        *Path("/usr/bin").glob("python3.9"),
        *Path("~/.pyenv/versions").expanduser().glob("3.9*/bin/python"),
    ]
    for python in pythons:
        command = [python, "-BSm", "launch.status", str(run_dir)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert "\nsteps      20, " in told.stdout, told.stderr
