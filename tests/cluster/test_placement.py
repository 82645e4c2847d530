"""Where things are: the image on each node's own disk, the reward server on a node of its own."""

from pathlib import Path

import pytest
from cluster_jobs import SLURM_S, UP_S, assert_diagnosed, assert_failed, at_step, edit_node, render_stub, submit
from harness import IMAGE, Cluster

STAGED_S = 900  # the image is copied to each node and read there twice more for its sum


def _staged(cluster: Cluster, name: str, *settings: str) -> Path:
    settings = ("container.stage=true", "rehearsal.steps=3", *settings)
    return render_stub(cluster, name, "", *settings, nodes=2)


@pytest.mark.slow
def test_staged_image(cluster: Cluster) -> None:
    """Both nodes run their copy, and nothing of it is left (the fixture looks into /tmp)."""
    run = submit(cluster, _staged(cluster, "staged"))
    ended = cluster.wait(run.job_id, STAGED_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    assert "2 Ray nodes" in run.told()
    sum_of_image = cluster.on("login", "sha256sum", IMAGE).stdout.split()[0]
    assert sum_of_image in (run.folder / "manifest.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_damaged_copy_of_the_image(cluster: Cluster) -> None:
    script = _staged(cluster, "staged-damaged")
    edit_node(script, "n2", 'echo x >>"$staged"', before="chmod 600")
    run = submit(cluster, script)
    ended = cluster.wait(run.job_id, STAGED_S)
    verdict = assert_failed(run, ended, code=20, component="setup", node="n2")
    sum_of_image = cluster.on("login", "sha256sum", IMAGE).stdout.split()[0]
    assert_diagnosed(verdict, "setup", sum_of_image, "container.stage")


@pytest.mark.slow
def test_no_room_for_the_copy_of_the_image(cluster: Cluster) -> None:
    for node in ("n1", "n2"):
        cluster.on(node, "install", "-d", "-m", "1777", "/opt/stage", user="root")
    script = _staged(cluster, "staged-full", "container.stage_dir=/opt/stage")
    with cluster.mounted("n2", "-t", "tmpfs", "-o", "size=10m,mode=1777", "tmpfs", "/opt/stage"):
        run = submit(cluster, script)
        ended = cluster.wait(run.job_id, STAGED_S)
    left = [cluster.on(node, "ls", "/opt/stage").stdout for node in ("n1", "n2")]
    assert ended.state == "FAILED", (ended, run.told())
    verdict = run.verdict()
    assert (verdict["state"], verdict["component"]) == ("failed", "setup"), verdict
    assert "container.stage_dir" in f"{verdict['cause']}{verdict['what_to_do']}", verdict
    assert left == ["", ""]


def test_reward_server_on_a_node_of_its_own(cluster: Cluster) -> None:
    settings = ("reward.placement=separate",)
    run = at_step(cluster, render_stub(cluster, "separate", "--stop-at 2", *settings, nodes=2, server=True))
    told = run.told()
    assert "1 Ray node with" in told, told
    assert "reward server ready at http://10.77.0.12:" in told, told
    killed = cluster.kill("n2", r"^\S*python3 -m reward\.server ")
    ended = cluster.wait(run.job_id, UP_S)
    assert_failed(run, ended, code=25, component="reward server", node="n2", since=killed)


@pytest.mark.slow
def test_node_of_the_reward_server_is_cut_off(cluster: Cluster) -> None:
    settings = ("reward.placement=separate",)
    with cluster.slurmd_timeout(300):
        script = render_stub(cluster, "separate-cut", "--stop-at 2", *settings, nodes=2, server=True)
        run = at_step(cluster, script)
        with cluster.cut_off("n2") as cut:
            ended = cluster.wait_for_end(run.job_id, UP_S)
    assert_failed(run, ended, code=24, component="node", node="n2", since=cut, more=SLURM_S)
