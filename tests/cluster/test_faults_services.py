"""What can die or hang beside the trainer: Ray, the reward server, the supervisors, ports."""

import pytest
from cluster_jobs import UP_S, assert_diagnosed, assert_failed, at_step, render_stub, submitted
from harness import Cluster

from launch.supervisor.ports import BLOCKS, port_plan

RAYLET = r"^\S*/raylet/raylet "
SERVER = r"^\S*python3 -m reward\.server "
SUPERVISOR = r"^\S*python3 \S*/launch/node\.py "


def test_killed_reward_server(cluster: Cluster) -> None:
    run = at_step(cluster, render_stub(cluster, "reward-killed", "--stop-at 1", server=True))
    killed = cluster.kill("n1", SERVER)
    ended = cluster.wait(run.job_id, UP_S)
    assert_failed(run, ended, code=25, component="reward server", node="n1", since=killed)


def test_hanging_reward_server(cluster: Cluster) -> None:
    """It is alive and its port is open, but nobody answers."""
    unresponsive_s = 10
    script = render_stub(
        cluster, "reward-hangs", "--stop-at 1", f"reward.unresponsive_s={unresponsive_s}", server=True
    )
    run = at_step(cluster, script)
    stopped = cluster.kill("n1", SERVER, "STOP")
    ended = cluster.wait(run.job_id, UP_S)
    within = unresponsive_s + 30
    verdict = assert_failed(
        run, ended, code=25, component="reward server", node="n1", since=stopped, within=within
    )
    assert_diagnosed(verdict, "reward-hang", f"{unresponsive_s} s")


def test_killed_raylet_of_a_worker_node(cluster: Cluster) -> None:
    run = at_step(cluster, render_stub(cluster, "raylet", "--stop-at 1", nodes=2))
    killed = cluster.kill("n2", RAYLET)
    ended = cluster.wait(run.job_id, UP_S)
    verdict = assert_failed(run, ended, code=23, component="ray worker", node="n2", since=killed)
    assert_diagnosed(verdict, "ray-node-lost")


@pytest.mark.parametrize("process", [RAYLET, r"^\S*/gcs/gcs_server "], ids=["raylet", "gcs"])
def test_killed_part_of_ray_on_the_head(cluster: Cluster, process: str) -> None:
    run = at_step(cluster, render_stub(cluster, "ray-head", "--stop-at 1"))
    # Before it says so, `ray start` itself waits for its parts, for half a minute.
    cluster.wait_for_text(run.folder / "logs" / "n1-ray-head.log", "Ray runtime started", run.job_id, UP_S)
    killed = cluster.kill("n1", process)
    ended = cluster.wait(run.job_id, UP_S)
    assert_failed(run, ended, code=22, component="ray head", node="n1", since=killed)


@pytest.mark.parametrize("process", ["guard", "supervisor"])
def test_killed_supervisor_of_the_head(cluster: Cluster, process: str) -> None:
    """Two processes of Python: the guard outlives the supervisor; where it dies, the batch script has to tell."""
    run = at_step(cluster, render_stub(cluster, "head-killed", "--stop-at 1", nodes=2))
    killed = cluster.kill("n1", SUPERVISOR, of=2, which=["guard", "supervisor"].index(process))
    ended = cluster.wait(run.job_id, UP_S)
    assert_failed(run, ended, code=28, component="head", node="n1", since=killed)


@pytest.mark.parametrize("process", ["guard", "supervisor"])
def test_killed_supervisor_of_a_worker_node(cluster: Cluster, process: str) -> None:
    run = at_step(cluster, render_stub(cluster, "worker-killed", "--stop-at 1", nodes=2))
    killed = cluster.kill("n2", SUPERVISOR, of=2, which=["guard", "supervisor"].index(process))
    ended = cluster.wait(run.job_id, UP_S)
    assert_failed(run, ended, code=24, component="node", node="n2", since=killed)


def _blocks(job_id: str) -> list[list[int]]:
    """The service ports of the blocks that a job tries, in its order."""
    return [sorted(port_plan(int(job_id), shift).services.values()) for shift in range(BLOCKS)]


def test_taken_ports_move_the_job_to_another_block(cluster: Cluster) -> None:
    script = render_stub(cluster, "port-taken", "", "rehearsal.steps=3", nodes=2)
    job_id = cluster.sbatch(script.name, "--hold", folder=f"/scratch/{script.parent.name}")
    own, second, *_ = _blocks(job_id)
    # One of the head's ports in its block, one of the worker's: each node looks for itself.
    with cluster.listening("n1", own[:1]), cluster.listening("n2", own[4:5]):
        cluster.on("login", "scontrol", "release", job_id)
        ended = cluster.wait(job_id, UP_S)
    run = submitted(script, job_id)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), run.told()
    ports = run.manifest()["nodes"]
    assert [node["ports"]["control"] for node in ports if node["node"] == "n1"] == [second[0]], ports


def test_no_free_block_of_ports(cluster: Cluster) -> None:
    script = render_stub(cluster, "no-port")
    job_id = cluster.sbatch(script.name, "--hold", folder=f"/scratch/{script.parent.name}")
    blocks = _blocks(job_id)
    with cluster.listening("n1", [block[0] for block in blocks]):
        cluster.on("login", "scontrol", "release", job_id)
        ended = cluster.wait(job_id, UP_S)
    run = submitted(script, job_id)
    verdict = assert_failed(run, ended, code=20, component="setup", node="n1")
    assert_diagnosed(verdict, "port-taken", str(blocks[0][0]), "ss -ltnp")
