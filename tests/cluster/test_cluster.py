"""The cluster itself: what the job tests rely on."""

import pytest
from cluster_jobs import UP_S
from harness import CHECKOUT, IMAGE, UP_AGAIN_S, Cluster, ClusterError


def test_three_nodes_are_idle(cluster: Cluster) -> None:
    assert cluster.on("login", "sinfo", "-h", "-o", "%D %t").stdout.split() == ["3", "idle"]


def test_job_runs_in_the_image_on_each_node_as_alice(cluster: Cluster) -> None:
    script = f"""#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --gpus-per-node=4 --output=image-%j.out
srun singularity -q exec {IMAGE} sh -c 'echo $(hostname) $(id -un) $CUDA_VISIBLE_DEVICES $(command -v python3)'
"""
    (cluster.home / "image.sh").write_text(script)
    job_id = cluster.sbatch("image.sh")
    ended = cluster.wait(job_id, UP_S)
    lines = sorted((cluster.home / f"image-{job_id}.out").read_text().splitlines())
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), lines
    assert lines == [f"{node} alice 0,1,2,3 /opt/venv/bin/python3" for node in cluster.nodes]


def test_exit_code_of_a_script_is_what_sacct_says(cluster: Cluster) -> None:
    (cluster.home / "exit.sh").write_text("#!/bin/bash\n#SBATCH --output=exit-%j.out\nexit 42\n")
    ended = cluster.wait(cluster.sbatch("exit.sh"), UP_S)
    assert (ended.state, ended.exit_code) == ("FAILED", 42)


def test_image_holds_the_engine(cluster: Cluster) -> None:
    code = "import megatron.core, mbridge, ray, torch, verl; print(verl.__version__, torch.cuda.is_available())"
    assert cluster.in_image("n1", "python3", "-W", "ignore", "-c", code).stdout.split() == ["0.9.1", "False"]


def test_nodes_have_no_way_out(cluster: Cluster) -> None:
    """No job can pass because it downloaded something: the nodes see each other and nothing else."""
    assert "default" not in cluster.on("n1", "ip", "route").stdout
    assert cluster.on("n1", "ping", "-c1", "-W20", "n3", user="root").returncode == 0


def test_checkout_is_read_only_on_the_nodes(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="Read-only file system"):
        cluster.on("n2", "touch", CHECKOUT / "stray", user="root")


def test_killed_node_is_gone_and_comes_back(cluster: Cluster) -> None:
    cluster.power_off("n3")
    assert cluster.on("n3", "true", check=False).returncode != 0
    cluster.power_on("n3")
    cluster.wait_for_idle(UP_AGAIN_S)
    assert cluster.on("n3", "hostname").stdout.strip() == "n3"
    (cluster.home / "again.sh").write_text("#!/bin/bash\n#SBATCH --nodelist=n3 --output=again-%j.out\nhostname\n")
    ended = cluster.wait(cluster.sbatch("again.sh"), UP_S)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)
