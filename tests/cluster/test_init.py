"""launch.init on login nodes of Slurm 22.05, 24.11 and 26.05, and what Slurm says of a job with what it wrote."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import CHECKOUT, Cluster

from launch.config import load_job
from launch.config.yaml_text import parse_yaml
from launch.render import main as render
from launch.site.slurm import seconds

# Debian's suite; the oldest Slurm that it has (26.05.5 when this was written; sid moves on); what brings `module`.
SUITES = {"bookworm": ((22, 5), "lmod"), "sid": ((26, 5), "environment-modules")}
SLURM_CONF = """
NodeName=c[1-2] NodeAddr=10.77.0.99 CPUs=64 RealMemory=256000 State=DOWN Reason=absent
PartitionName=cpu Nodes=c[1-2] Default=YES MaxTime=7-0 State=UP
PartitionName=closed Nodes=ALL MaxTime=1:00:00 State=DOWN
PartitionName=staff Nodes=ALL AllowGroups=root MaxTime=UNLIMITED State=UP
PartitionName=hidden Nodes=n1 Hidden=YES MaxTime=2-0 State=UP
"""
MODULES = ("apptainer/1.4", "apptainer/1.3.6", "apptainer/1.10", "singularitypro/4.1", "gcc/13")


@pytest.fixture(scope="module", params=SUITES)
def other(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A small cluster of another Debian, with modules that a site would have."""
    packages = SUITES[request.param][1]
    cluster = Cluster(1, suite=request.param, CPUS="32", MORE_PACKAGES=packages, MORE_SLURM_CONF=SLURM_CONF)
    found_up = cluster.is_up()
    try:
        print(cluster.up())
        for name in MODULES:
            file = cluster.scratch / "modules" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("#%Module\n")
        (cluster.scratch / "modules/apptainer/.version").write_text("#%Module1.0\nset ModulesVersion 1.4\n")
        motd = "echo '*** Welcome | launch-init: modules none ***'\nmodule use /scratch/modules\n"
        (cluster.home / ".bash_profile").write_text(motd)
        yield cluster
    finally:
        if not found_up:
            cluster.down()


def init(cluster: Cluster, folder: str, *options: str) -> str:
    """Run it as alice in a new folder of /scratch; returns what it said on standard error."""
    shutil.rmtree(cluster.scratch / folder, ignore_errors=True)
    command = 'mkdir "$0" && cd "$0" && PYTHONPATH="$1" exec python3 -m launch.init "${@:2}" 2>&1 >told.json'
    words = ("bash", "-c", command, f"/scratch/{folder}", CHECKOUT, *options)
    return cluster.on("login", *words).stdout


def site_of(cluster: Cluster, folder: str) -> dict[str, Any]:
    data = parse_yaml((cluster.scratch / folder / "cluster.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def rendered(cluster: Cluster, folder: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """Render a job of one node with the site's file, as the user's own copy in its folder."""
    monkeypatch.chdir(cluster.scratch / folder)
    words = ["--template", "grpo", "--site", "cluster.yaml", "--no-engine-check", "--set", "cluster.nodes=1"]
    assert render([*words, *options, "-o", "run.sh"]) == 0
    return Path("run.sh").read_text(encoding="utf-8")


def test_on_slurm_of_another_debian(
    other: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = request.node.callspec.params["other"]
    said = init(other, "site", "--yes", "--json")
    assert "wrote cluster.yaml; read it, then: python -m launch.render --template grpo --rehearse\n" in said
    found = json.loads((other.scratch / "site/told.json").read_text(encoding="utf-8"))["found"]
    version = tuple(map(int, found["config"]["SLURM_VERSION"].split(".")[:2]))
    assert version == SUITES[suite][0] or (suite == "sid" and version > SUITES[suite][0])
    assert site_of(other, "site") == {
        "cluster": {
            "partition": "gpu", "gpus_per_node": 4, "gpu": "h200", "cpus_per_node": 32, "mem": "59G",
            "time": "24:00:00", "modules": ["apptainer/1.4"],
        },
        "container": {"runtime": "apptainer"},
    }  # fmt: skip
    text = (other.scratch / "site/cluster.yaml").read_text(encoding="utf-8")
    assert "closed: it is down; staff: it is for the groups root" in text
    assert "others: apptainer/1.10, apptainer/1.3.6, singularitypro/4.1" in text
    assert "You are not running a supported accounting_storage plugin" in text.replace("\n# ", " ")
    # The real model takes it, and that very Slurm takes the job.
    assert load_job("grpo", None, [], other.scratch / "site/cluster.yaml").cluster.partition == "gpu"
    script = rendered(other, "site", monkeypatch)
    assert "#SBATCH --gpus-per-node=h200:4\n" in script
    told = other.on("login", "sbatch", "--test-only", "/scratch/site/run.sh")
    assert re.search(r"Job \d+ to start at .* in partition gpu", told.stderr), told.stderr
    # And the module is one that a node of that partition loads.
    load = 'module load apptainer/1.4 && echo "loaded $LOADEDMODULES"'
    loaded = other.on("login", "srun", "--partition=gpu", "--time=1", "bash", "-lc", load)
    assert "loaded apptainer/1.4\n" in loaded.stdout


def test_a_partition_that_slurm_hides(other: Cluster) -> None:
    init(other, "hidden", "--yes", "--partition", "hidden")
    assert site_of(other, "hidden")["cluster"]["partition"] == "hidden"
    assert seconds(site_of(other, "hidden")["cluster"]["time"]) == 24 * 3600


@pytest.fixture
def account(cluster: Cluster) -> Iterator[str]:
    """alice in an account of the ordinary cluster."""
    asks = ("sacctmgr", "-i")
    try:
        cluster.on("login", *asks, "add", "account", "rl-lab", user="root")
        cluster.on("login", *asks, "add", "user", "alice", "account=rl-lab", user="root")
        yield "rl-lab"
    finally:
        cluster.on("login", *asks, "delete", "user", "alice", user="root", check=False)
        cluster.on("login", *asks, "delete", "account", "rl-lab", user="root", check=False)


def test_on_the_ordinary_cluster(cluster: Cluster, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init(cluster, "init", "--yes", "--json")
    found = json.loads((cluster.scratch / "init/told.json").read_text(encoding="utf-8"))["found"]
    assert found["config"]["SLURM_VERSION"].startswith("24.11.")
    assert re.match(r"apptainer version 1\.", found["programs"]["apptainer"])
    assert found["modules"] is None
    site = site_of(cluster, "init")["cluster"]
    assert (site["partition"], site["account"], site["gpu"]) == ("gpu", account, "h200")
    assert "modules" not in site
    rendered(cluster, "init", monkeypatch, "--set", "engine.mode=sync", "--set", "actor.fp8=null")
    told = cluster.on("login", "sbatch", "--test-only", "/scratch/init/run.sh")
    assert re.search(r"Job \d+ to start at .* in partition gpu", told.stderr), told.stderr
