"""Which failures start a job again, and when that ends."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.supervisor.causes import CAUSES
from launch.supervisor.restarts import HEALS, decide
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.verdict import Failure

HEALED = {
    "wall-time", "node-lost", "ray-node-lost", "nodes-missing", "nccl", "reward-outage", "reward-hang", "stalled",
    "port-taken",
}  # fmt: skip


def settings(run_dir: Path, attempt: int = 0, restarts: int = 3) -> Settings:
    words = ["--run-dir", str(run_dir), "--checkpoint-dir", "/c", "--nodes", "2", "--ray-gpus-head", "1"]
    words += ["--ray-gpus-other", "1", "--ray-cpus", "9", "--max-restarts", str(restarts), "::trainer", "t"]
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "SLURMD_NODENAME": "n0",
        "SLURM_JOB_NODELIST": "n[0-1]",
    }
    return read_settings(words, {**slurm, "SLURM_RESTART_COUNT": str(attempt)})


def failure(kind: str, component: str = "trainer") -> Failure:
    return Failure(component, "n1", "cause", 1, kind=kind)


def earlier(run_dir: Path, attempt: int, steps: int | None, saved: int | None) -> None:
    """What an earlier attempt left."""
    saved_in = f"/c/global_step_{saved}" if saved else None
    told = {"steps_done": steps, "last_checkpoint": saved_in, "attempt": attempt}
    (run_dir / f"verdict.{attempt}.json").write_text(json.dumps(told))


@pytest.mark.parametrize("kind", sorted(CAUSES))
def test_only_what_a_restart_may_heal_starts_again(tmp_path: Path, kind: str):
    decided = decide(settings(tmp_path), failure(kind, "no part"), 5, 4)
    assert decided.requeue is (kind in HEALED)
    assert decided.why if kind in HEALED else kind in decided.why


def test_every_kind_that_heals_is_a_cause():
    assert set(HEALS) <= set(CAUSES)


@pytest.mark.parametrize(
    ("kind", "component", "again"),
    [
        ("killed", "reward server", True),
        ("unrecognised", "ray head", True),
        ("", "node", True),
        ("killed", "trainer", False),
        ("unrecognised", "check", False),
        ("out-of-memory", "reward server", False),
        ("cuda-out-of-memory", "ray worker", False),
    ],
)
def test_a_part_that_ended_for_no_known_reason(tmp_path: Path, kind: str, component: str, again: bool):
    assert decide(settings(tmp_path), failure(kind, component), 5, 4).requeue is again


def test_it_is_for_those_who_asked(tmp_path: Path):
    decided = decide(settings(tmp_path, restarts=0), failure("wall-time"), 5, 4)
    assert (decided.requeue, decided.why) == (False, "recovery.requeue is off")
    local = replace(settings(tmp_path, restarts=0), nodelist="")
    assert decide(local, failure("wall-time"), 5, 4).why == "without Slurm nothing starts the job again"
    assert decide(local, failure("cancelled", "job"), 5, 4).why == ""


def test_gpus_that_are_not_there_are_not_there_again(tmp_path: Path):
    cause = "Ray has 3 GPUs, the job needs 4: 10.0.0.1"
    decided = decide(settings(tmp_path), Failure("nodes", "n1", cause, 21, kind="nodes-missing"), 0, None)
    assert not decided.requeue


def test_a_job_that_is_done_is_done(tmp_path: Path):
    assert not decide(settings(tmp_path), None, 5, 4).requeue


@pytest.mark.parametrize(("attempt", "again"), [(0, True), (1, True), (2, False), (3, False)])
def test_restarts_are_counted(tmp_path: Path, attempt: int, again: bool):
    for number in range(attempt):
        earlier(tmp_path, number, number, None)
    decided = decide(settings(tmp_path, attempt, restarts=2), failure("wall-time"), attempt + 1, None)
    assert decided.requeue is again
    assert f"restart {attempt + 1} of 2" in decided.why if again else "max_restarts is 2" in decided.why


@pytest.mark.parametrize(
    ("before", "now", "again"),
    [
        ((10, 8), (10, 8), False),
        ((10, 8), (9, 8), False),
        ((10, 8), (11, 8), True),
        ((10, 8), (10, 10), True),
        ((0, None), (0, None), False),
        ((None, None), (1, None), True),
        ((10, 8), (0, 8), False),
    ],
)
def test_a_restart_that_came_no_further_is_the_last(tmp_path: Path, before, now, again: bool):
    earlier(tmp_path, 0, *before)
    decided = decide(settings(tmp_path, 1), failure("node-lost"), *now)
    assert decided.requeue is again
    if not again:
        assert decided.why.startswith("no new step: attempt 0 came to step")


def test_the_newest_attempt_that_left_a_verdict_counts(tmp_path: Path):
    earlier(tmp_path, 0, 3, None)
    earlier(tmp_path, 1, 9, None)
    (tmp_path / "verdict.2.json").write_text("{")
    assert decide(settings(tmp_path, 3, 9), failure("node-lost"), 9, None).requeue is False
    assert decide(settings(tmp_path, 3, 9), failure("node-lost"), 10, None).requeue is True


def test_the_first_attempt_may_have_done_nothing(tmp_path: Path):
    decided = decide(settings(tmp_path), failure("node-lost", "node"), 0, None)
    assert decided.requeue
    assert "from the beginning" in decided.why
