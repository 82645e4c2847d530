"""Nodes that are lost, never come, lack something, or have fewer GPUs than the others."""

import pytest
from cluster_jobs import (
    SLURM_S,
    UP_S,
    assert_diagnosed,
    assert_failed,
    at_step,
    edit,
    edit_node,
    render_stub,
    submit,
)
from harness import IMAGE, Cluster


def test_power_cut_of_a_node_ends_the_job(cluster: Cluster) -> None:
    """SlurmdTimeout is 300 s by default: srun and the job must not wait for Slurm to notice."""
    with cluster.slurmd_timeout(300):
        run = at_step(cluster, render_stub(cluster, "power-cut", "--stop-at 1", nodes=2))
        with cluster.cut_off("n2") as cut:
            ended = cluster.wait_for_end(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=24, component="node", node="n2", since=cut, more=SLURM_S)
    assert verdict["steps_done"] == 1


@pytest.mark.slow  # the batch script dies with its node: Slurm alone can tell
def test_power_cut_of_the_head_node(cluster: Cluster) -> None:
    run = at_step(cluster, render_stub(cluster, "head-cut", "--stop-at 1", nodes=2))
    with cluster.cut_off("n1"):
        ended = cluster.wait_for_end(run.job_id, UP_S)
        left = cluster.left_after(15)
    assert ended.state == "NODE_FAIL", (ended, run.told())
    assert not left, f"{left}\n{run.told()}"


def test_node_lost_before_it_joined(cluster: Cluster) -> None:
    """It dies between the allocation and srun: nobody on it ever says anything."""
    script = render_stub(cluster, "never-joined", nodes=3)
    edit(script, "\nset -euo pipefail\n", "\nset -euo pipefail\nuntil [[ -e go ]]; do sleep 0.1; done\n")
    run = submit(cluster, script)
    cluster.wait_for_running(run.job_id, UP_S)
    with cluster.cut_off("n3") as cut:
        (script.parent / "go").touch()
        ended = cluster.wait_for_end(run.job_id, UP_S)
    assert_failed(run, ended, code=24, component="node", node="n3", since=cut, more=SLURM_S)
    assert "trainer starts" not in run.told()


def test_wrong_number_of_gpus_on_one_node(cluster: Cluster) -> None:
    script = render_stub(cluster, "gpus", nodes=2)
    less = 'set -- "${@/#--logical-gpus/--ray-gpus-other=0}"'
    edit_node(script, "n2", less, before='exec "$@"')
    run = submit(cluster, script)
    ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=21, component="nodes", node="n2")
    assert "10.77.0.12" in verdict["cause"] or "n2" in verdict["cause"]
    assert "trainer starts" not in run.told()


def test_image_missing_on_one_node(cluster: Cluster) -> None:
    """On a path that is each node's own: n1 has the image, n2 has not."""
    script = render_stub(cluster, "no-image", nodes=2)
    edit(script, f"IMAGE={IMAGE}\n", "IMAGE=/opt/img/verl-cpu.sif\n")
    for node in ("n1", "n2"):
        cluster.on(node, "mkdir", "-p", "/opt/img", user="root")
    with cluster.mounted("n1", "--bind", "/scratch/img", "/opt/img"):
        run = submit(cluster, script)
        ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=20, component="setup", node="n2")
    assert_diagnosed(verdict, "missing-path", "/opt/img/verl-cpu.sif")
    assert "trainer starts" not in run.told()
