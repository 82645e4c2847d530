"""Jobs that end early, start again, or find what others left: scancel, limits, requeue, old checkpoints."""

import json
import re
import time
from pathlib import Path

import pytest
from cluster_jobs import (
    END_S,
    UP_S,
    Run,
    assert_diagnosed,
    assert_failed,
    at_step,
    edit,
    render,
    render_stub,
    submit,
    submitted,
)
from harness import Cluster

REQUEUED_S = 60  # from the end of an attempt to the next step: Slurm's own wait, Ray


def _steps(run: Run, attempt: int = 0) -> list[int]:
    """The steps that the trainer of an attempt took."""
    logs = run.folder / (f"logs.{attempt}" if attempt else "logs")
    text = "".join(log.read_text(encoding="utf-8") for log in logs.glob("*-trainer.log"))
    return [int(number) for number in re.findall(r"\bstep:(\d+) - ", text)]


def test_scancel(cluster: Cluster) -> None:
    run = at_step(cluster, render_stub(cluster, "scancel", "--stop-at 2", nodes=2), 2)
    cluster.on("login", "scancel", run.job_id)
    cancelled = time.monotonic()
    ended = cluster.wait(run.job_id, UP_S)
    assert ended.state.startswith("CANCELLED"), run.told()
    assert ended.seen - cancelled <= END_S
    verdict = run.verdict()
    assert (verdict["state"], verdict["exit_code"], verdict["steps_done"]) == ("cancelled", 143, 2), verdict
    assert verdict["requeue"] is False
    assert_diagnosed(verdict, "cancelled")


def test_time_limit(cluster: Cluster) -> None:
    """The supervisor ends the job before Slurm does, with a verdict."""
    script = render_stub(cluster, "time-limit", "--stop-at 2", "checkpoint.before_end_s=0")
    run = submit(cluster, script, "--time=2")  # the trainer has 90 s to come to its second step
    ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=47, component="job", node="n1")
    assert_diagnosed(verdict, "wall-time")
    assert verdict["steps_done"] == 2


def test_two_jobs_on_one_node(cluster: Cluster) -> None:
    scripts = [render_stub(cluster, f"two-{number}", "--step-s 0.3") for number in (1, 2)]
    runs = [submit(cluster, script, "--nodelist=n1") for script in scripts]
    ends = [cluster.wait(run.job_id, UP_S) for run in runs]
    for run, ended in zip(runs, ends, strict=True):
        assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
        assert "1 Ray node with" in run.told()
        assert _steps(run) == list(range(1, 31))
    spans = [(run.verdict()["started"], run.verdict()["ended"]) for run in runs]
    assert max(start for start, _ in spans) < min(end for _, end in spans), f"not at the same time: {spans}"
    ports = [set(run.manifest()["nodes"][0]["ports"].values()) for run in runs]
    assert not ports[0] & ports[1]


def test_run_directory_of_an_earlier_run(cluster: Cluster) -> None:
    """A new cluster counts its jobs from 1 again."""
    script = render_stub(cluster, "earlier-run", "", "rehearsal.steps=3")
    job_id = cluster.sbatch(script.name, "--hold", folder="/scratch/earlier-run")
    run = submitted(script, job_id)
    inside = f"/scratch/earlier-run/{run.folder.relative_to(script.parent)}"
    make = (
        f"mkdir -p {inside}/reward_log {inside}/checkpoints/global_step_3 && cd {inside} && echo old >verdict.json"
    )
    rest = "echo {} >failed-n1.json; echo {} >reward_log/failure-n1-1.json; echo 0 >.over-0"
    cluster.on("login", "sh", "-c", f"{make}; {rest}; echo 3 >checkpoints/latest_checkpointed_iteration.txt")
    cluster.on("login", "scontrol", "release", job_id)
    ended = cluster.wait(job_id, UP_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    assert run.verdict()["steps_done"] == 3
    before = list(run.folder.parent.glob(f"run-{job_id}.before-*"))
    assert [(folder / "verdict.json").read_text() for folder in before] == ["old\n"]
    assert _steps(run) == [1, 2, 3]


@pytest.mark.slow
def test_requeued_after_a_node_failure(cluster: Cluster) -> None:
    """The third node takes the place of the lost one, and the trainer goes on from its last checkpoint."""
    settings = ("recovery.requeue=true", "checkpoint.every=10", "rehearsal.steps=100")
    script = render_stub(cluster, "requeue", "--step-s 0.3 --stop-at 50", *settings, nodes=2)
    run = at_step(cluster, script, 12)
    with cluster.cut_off("n2"):
        cluster.wait_for_text(run.log, "step 100 ", run.job_id, END_S + REQUEUED_S + UP_S)
    ended = cluster.wait(run.job_id, UP_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    first = json.loads((run.folder / "verdict.0.json").read_text(encoding="utf-8"))
    assert (first["state"], first["component"], first["node"]) == ("requeued", "node", "n2"), first
    assert first["requeue"] is True
    verdict = run.verdict()
    assert (verdict["state"], verdict["attempt"], verdict["steps_done"]) == ("completed", 1, 100)
    saved = int(str(first["last_checkpoint"]).rpartition("_")[2])
    assert saved >= 10
    assert _steps(run, 1) == list(range(saved + 1, 101))


def test_requeued_by_hand(cluster: Cluster) -> None:
    """`scontrol requeue`: the job keeps its id, its run directory and its checkpoints."""
    settings = ("recovery.requeue=true", "checkpoint.every=5", "rehearsal.steps=20")
    run = at_step(cluster, render_stub(cluster, "by-hand", "--stop-at 7", *settings), 7)
    cluster.on("login", "scontrol", "requeue", run.job_id)
    cluster.wait_for_text(run.log, "step 20 ", run.job_id, REQUEUED_S + UP_S)
    ended = cluster.wait(run.job_id, UP_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    assert (run.verdict()["state"], run.verdict()["attempt"]) == ("completed", 1)
    assert _steps(run, 1) == list(range(6, 21)), "from the last checkpoint"


@pytest.mark.slow
def test_no_requeue_without_a_new_step(cluster: Cluster) -> None:
    """An attempt that comes no further than the one before is the last."""
    settings = ("recovery.requeue=true", "recovery.stalled_s=3")
    script = render_stub(cluster, "no-progress", "--stop-at 2", *settings)
    run = submit(cluster, script)
    ended = cluster.wait_for_end(run.job_id, 2 * UP_S)
    verdict = run.verdict()
    assert (verdict["attempt"], verdict["requeue"], verdict["kind"]) == (1, False, "stalled"), verdict
    assert "no new step" in verdict["requeue_why"]
    assert (ended.state, ended.exit_code) == ("FAILED", 39), run.told()


def _prepare_checkpoints(cluster: Cluster, script: Path) -> Path:
    """A folder of checkpoints outside the run directory, with steps 5 and 10 of an earlier job."""
    folder = f"/scratch/{script.parent.name}/checkpoints"
    edit(script, "CHECKPOINT_DIR=$RUN_DIR/checkpoints", f"CHECKPOINT_DIR={folder}")
    run = submit(cluster, script)
    ended = cluster.wait(run.job_id, UP_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    return script.parent / "checkpoints"


def test_cut_checkpoint_is_not_resumed_from(cluster: Cluster) -> None:
    """verl's marker names step 10, which lost its power while it was written: the job goes on from step 5."""
    settings = ("recovery.requeue=true", "checkpoint.every=5", "rehearsal.steps=10")
    script = render_stub(cluster, "cut", "", *settings)
    checkpoints = _prepare_checkpoints(cluster, script)
    shard = checkpoints / "global_step_10" / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:-40])
    run = submit(cluster, script)
    ended = cluster.wait(run.job_id, UP_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    assert _steps(run) == [6, 7, 8, 9, 10]
    told = (run.folder / "logs" / "n1-resume.log").read_text(encoding="utf-8")
    assert "global_step_10 is not whole" in told


@pytest.mark.slow
def test_too_short_time_limit_takes_several_attempts(cluster: Cluster) -> None:
    """The real verl saves before the limit, Slurm starts the job again, and what was saved is not done again."""
    steps = 14
    settings = (
        "recovery.requeue=true",
        "recovery.max_restarts=9",
        "checkpoint.before_end_s=20",
        "checkpoint.every=1000",
    )
    script = render(cluster, "attempts", f"rehearsal.steps={steps}", "cluster.nodes=1", *settings)
    run = submit(cluster, script, "--time=3")
    cluster.wait_for_text(run.log, f"step {steps} ", run.job_id, 900)
    ended = cluster.wait(run.job_id, 300)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    last = run.verdict()
    assert (last["state"], last["steps_done"]) == ("completed", steps)
    assert last["attempt"] >= 1, "the limit was long enough; take more steps"
    assert last["hf_model"]
    saved = 0
    for attempt in range(last["attempt"]):
        verdict = json.loads((run.folder / f"verdict.{attempt}.json").read_text(encoding="utf-8"))
        assert (verdict["state"], verdict["kind"]) == ("requeued", "wall-time"), verdict
        assert _steps(run, attempt)[0] == saved + 1
        saved = int(str(verdict["last_checkpoint"]).rpartition("_")[2])
        # verl saves after each of the last steps: one more may have begun.
        assert verdict["steps_done"] - saved <= 1, verdict
    assert _steps(run, last["attempt"]) == list(range(saved + 1, steps + 1))
