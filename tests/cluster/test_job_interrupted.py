"""What Slurm and the machines do to a running job: a power cut, scancel, a requeue."""

import time

from cluster_jobs import START_S, render_idle, submit
from harness import Cluster

LOST_NODE_S = 60  # a node that lost its power says nothing: silence has to tell
SLEEP = "import time; print('trainer sleeps', flush=True); time.sleep(600)"
SECOND_ATTEMPT = (
    "import os, time; time.sleep(0 if os.environ.get('SLURM_RESTART_COUNT') else 600); "
    "print('step:1 - critic/score/mean:1.0')"
)


def test_power_cut_of_a_node_ends_the_job(cluster: Cluster) -> None:
    # Slurm requeues a job whose node failed, by default: not here, or the job would wait for the node.
    script = render_idle(cluster, "power-cut", SLEEP, 'cluster.extra_sbatch=["--no-requeue"]')
    run = submit(cluster, script)
    cluster.wait_for_text(run.folder / "logs" / "n1-trainer.log", "trainer sleeps", run.job_id, START_S)
    cluster.power_off("n3")
    cut = time.monotonic()
    try:
        ended = cluster.wait(run.job_id, LOST_NODE_S + 60)
    finally:
        cluster.power_on("n3")
        cluster.wait_for_idle(60)
    told = run.told()
    # FAILED where srun ends before Slurm notices the node.
    assert ended.state in ("FAILED", "NODE_FAIL"), told
    assert ended.exit_code != 0, (ended, told)
    assert " on n3 failed: " in told, told
    assert run.verdict()["node"] == "n3"
    assert ended.seen - cut <= LOST_NODE_S, f"the job ended {ended.seen - cut:.1f} s after the power cut\n{told}"


def test_scancel(cluster: Cluster) -> None:
    run = submit(cluster, render_idle(cluster, "scancel", SLEEP))
    cluster.wait_for_text(run.folder / "logs" / "n1-trainer.log", "trainer sleeps", run.job_id, START_S)
    cluster.on("login", "scancel", run.job_id)
    ended = cluster.wait(run.job_id, 60)
    assert ended.state.startswith("CANCELLED"), run.told()
    assert "n1-trainer.log\ntrainer sleeps" in cluster.report()  # what a failed test shows
    verdict = run.verdict()
    assert (verdict["state"], verdict["exit_code"]) == ("cancelled", 143), run.told()


def test_requeued_job_runs_again_in_its_run_directory(cluster: Cluster) -> None:
    script = render_idle(cluster, "requeue", SECOND_ATTEMPT, 'cluster.extra_sbatch=["--requeue"]')
    run = submit(cluster, script)
    cluster.wait_for_text(run.log, "trainer starts", run.job_id, START_S)
    cluster.on("login", "scontrol", "requeue", run.job_id)
    ended = cluster.wait(run.job_id, START_S)
    told = run.told()
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), told
    assert "trainer ended well" in told, told
    # In the run directory of the first attempt, for the job keeps its id.
    assert run.verdict()["state"] == "completed"
