"""What the trainer can do to a job: exit codes, signals, missing data, a full disk."""

from cluster_jobs import (
    UP_S,
    assert_diagnosed,
    assert_failed,
    at_step,
    edit,
    render_stub,
    submit,
)
from harness import Cluster

TRAINER = r"^\S*python3 \S*/stub_trainer\.py "


def test_exit_code_of_the_trainer_is_the_jobs(cluster: Cluster) -> None:
    run = submit(cluster, render_stub(cluster, "exit42", "--exit 42"))
    ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=42, component="trainer", node="n1")
    assert verdict["steps_done"] == 30
    assert str(verdict["last_checkpoint"]).endswith("global_step_30")


def test_killed_trainer(cluster: Cluster) -> None:
    run = at_step(cluster, render_stub(cluster, "trainer-killed", "--stop-at 2"))
    killed = cluster.kill("n1", TRAINER)
    ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=137, component="trainer", node="n1", since=killed)
    assert verdict["cause"] == "killed by signal 9"


def test_missing_data_file(cluster: Cluster) -> None:
    script = render_stub(cluster, "no-data", "--read /scratch/no-data/train.parquet")
    run = submit(cluster, script)
    verdict = assert_failed(run, cluster.wait(run.job_id, UP_S), code=36, component="trainer", node="n1")
    assert_diagnosed(verdict, "missing-path", "/scratch/no-data/train.parquet")


def test_full_disk_for_checkpoints(cluster: Cluster) -> None:
    settings = (
        "recovery.requeue=true",
        "checkpoint.every=5",
    )  # a rehearsal saves before its end for a restart only
    script = render_stub(cluster, "disk-full", "--save-bytes 3000000", *settings)
    full = "/scratch/disk-full/checkpoints"
    edit(script, "CHECKPOINT_DIR=$RUN_DIR/checkpoints", f"CHECKPOINT_DIR={full}")
    cluster.on("login", "mkdir", full)
    with cluster.mounted("n1", "-t", "tmpfs", "-o", "size=1m,mode=1777", "tmpfs", full):
        run = submit(cluster, script)
        ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=37, component="trainer", node="n1")
    assert_diagnosed(verdict, "disk-full", "No space left on device")
    assert verdict["last_checkpoint"] is None
    assert verdict["requeue"] is False
    assert verdict["steps_done"] == 5
