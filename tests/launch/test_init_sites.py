"""launch.init on what recorded sites print: what it writes is a part of a job, and says why."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_sites import ROOT, SITES, init

from launch.config import load_job
from launch.config.cluster import Container
from launch.config.services import Rehearsal
from launch.config.yaml_text import parse_yaml
from launch.site.cluster_yaml import CPU_IMAGE, IMAGE, IMAGE_FOLDER

ALL = sorted(path.name for path in SITES.iterdir() if path.is_dir())


def test_the_names_of_images_are_those_of_a_job() -> None:
    assert f"{IMAGE_FOLDER}/{IMAGE}" == Container().image
    assert f"{IMAGE_FOLDER}/{CPU_IMAGE}" == Rehearsal().image


@pytest.mark.parametrize("site", ALL)
def test_each_site_becomes_a_part_of_a_job(site: str, tmp_path: Path) -> None:
    done = init(tmp_path, site)
    assert (done.code, "Traceback" in done.err) == (0, False), done.err
    assert "then: python -m launch.render --template grpo --rehearse\n" in done.err
    assert set(done.data) <= {"cluster", "container", "rehearsal"}
    job = load_job("grpo", None, [], tmp_path / "work" / "cluster.yaml")
    assert job.cluster.model_fields_set >= {"gpus_per_node", "time"}
    assert max(len(line) for line in done.text.splitlines()) <= 200
    assert all(char.isprintable() or char == "\n" for char in done.text)


def test_with_lmod_and_accounts(tmp_path: Path) -> None:
    done = init(tmp_path, "lmod-a100", "--yes")
    assert done.data == {
        "cluster": {
            "partition": "gpu", "account": "ml_lab", "gpus_per_node": 4, "gpu": "a100", "cpus_per_node": 64,
            "mem": "477G", "time": "24:00:00", "modules": ["apptainer/1.2.5"],
        },
        "container": {"runtime": "apptainer"},
    }  # fmt: skip
    for why in (
        "the default one, standard, has none that you can use",
        "gpu-devel (34 x 4 a100, 1:00:00)",
        "vip: it is for the groups vips",
        "a job may have 8",
        "others: astro_gpu",
        "yours: gpu_long, normal",
        "DefMemPerCPU=7800 MB",
        "the partition allows 2-00:00:00",
        "the site's default version; others: apptainer/1.3.6",
        "Slurm 23.11.10, cluster hera",
    ):
        assert why in done.flat, why


def test_with_tcl_modules_and_singularitypro(tmp_path: Path) -> None:
    done = init(tmp_path, "tcl-singularitypro", "--yes")
    assert done.data["cluster"] == {
        "partition": "gpu_h200", "account": "gaa50000", "gpus_per_node": 8, "gpu": "h200", "cpus_per_node": 180,
        "mem": "0", "time": "24:00:00", "modules": ["singularitypro/4.1"],
    }  # fmt: skip
    assert done.data["container"] == {"runtime": "singularity"}
    assert "MaxCPUsPerNode; a node has 192" in done.text
    assert "may be preempted (PreemptMode=REQUEUE)" in done.text


def test_with_gpus_of_several_kinds(tmp_path: Path) -> None:
    done = init(tmp_path, "mixed-gpus", "--yes")
    cluster = done.data["cluster"]
    # There are more slices of GPUs, in the partition mig.
    assert (cluster["partition"], cluster["gpu"], cluster["gpus_per_node"]) == ("gpu", "rtx6000", 4)
    assert "apart from mig (slices of GPUs (MIG)), untyped (for 30:00)" in done.flat
    assert "a slice of a GPU" not in done.flat
    assert "mem" not in cluster
    assert "does not hand out memory here (CR_CPU)" in done.text
    # As it can be typed again.
    assert "scontrol --all --oneliner show partition ended with 1" in done.flat
    assert "format=Account,Partition,QOS,DefaultQOS ended with 1" in done.flat


def test_with_slices_of_gpus_only(tmp_path: Path) -> None:
    done = init(tmp_path, "mig-only", "--yes")
    cluster = done.data["cluster"]
    assert (cluster["partition"], cluster["gpu"], cluster["gpus_per_node"]) == (
        "slices",
        "nvidia_a100_3g.20gb",
        16,
    )
    assert "the default partition, and it has GPUs" in done.text
    assert "a slice of a GPU (MIG): training over several of them does not work with NCCL" in done.flat


def test_whole_gpus_come_before_a_default_partition_of_slices(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text(
        "mig*|up|infinite|8|idle|64|512000|gpu:1g.10gb:7|(null)\n"
        "whole|up|1:00:00|1|idle|64|512000|gpu:a100:4|(null)\n"
    )
    done = init(tmp_path, tmp_path)
    assert done.data["cluster"]["partition"] == "whole"
    assert "the default one, mig, has slices of GPUs (MIG) only" in done.flat


@pytest.mark.parametrize(
    ("partition", "gpu", "gpus", "told"),
    [
        ("gpu", "rtx6000", 4, "2 nodes with 8 x a100, 1 node with 4 x a100"),
        ("untyped", None, 8, "features of these nodes: ib, v100"),
        ("preempt", "h100", 8, "named by you; but it is down"),
        ("cpu", None, None, "only rehearsals"),
    ],
)
def test_a_partition_that_is_named(
    partition: str, gpu: str | None, gpus: int | None, told: str, tmp_path: Path
) -> None:
    done = init(tmp_path, "mixed-gpus", "--partition", partition)
    cluster = done.data["cluster"]
    assert (cluster["partition"], cluster.get("gpu"), cluster.get("gpus_per_node")) == (partition, gpu, gpus)
    assert told in done.flat


def test_nodes_with_gpus_of_two_types(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text(
        "both*|up|infinite|2|idle|64|512000|gpu:a100:4,gpu:h100:4|(null)\n"
        "both*|up|infinite|1|idle|64|512000|gpu:h100:4|(null)\n"
        "more|up|infinite|1|idle|64|512000|gpu:a100:4,gpu:v100:2|(null)\n"
    )
    done = init(tmp_path, tmp_path)
    assert (done.data["cluster"]["gpu"], done.data["cluster"]["gpus_per_node"]) == ("h100", 4)
    assert "sinfo: 3 nodes with 4 x h100; of these 2 nodes have 4 x a100 too" in done.flat
    assert "more (1 x 4 a100, 1 node has 2 x v100 too, infinite)" in done.flat


@pytest.mark.parametrize(
    ("fields", "settings", "absent", "told"),
    [
        ("0:00|1|idle|64|512000", "", "time", "Slurm names a limit of 0:00 for the partition"),
        ("1:00:00|1|idle|64|1", "", "mem", "Slurm counts 1 MB in a node"),
        ("1:00:00|1|idle|64|512000", "MaxMemPerNode=1", "mem", "Slurm allows 1 MB on a node"),
    ],
    ids=["time", "memory", "limit"],
)
@pytest.mark.parametrize("gpus", [4, 8])
def test_limits_that_cannot_be(
    fields: str, settings: str, absent: str, told: str, gpus: int, tmp_path: Path
) -> None:
    (tmp_path / "sinfo.txt").write_text(f"gpu*|up|{fields}|gpu:h200:{gpus}|(null)\n")
    (tmp_path / "partitions.txt").write_text(f"PartitionName=gpu {settings}\n")
    done = init(tmp_path, tmp_path)
    assert {"time", "mem", "gpu"} - done.data["cluster"].keys() == {absent}
    assert told in done.flat


def test_hostile_output_stays_text(tmp_path: Path) -> None:
    done = init(tmp_path, "hostile", "--json")
    assert done.code == 0, done.err
    # A YAML library reads the names as they are.
    assert done.data["cluster"]["partition"] == "yes"
    assert (done.data["cluster"]["account"], done.data["cluster"]["gpu"]) == ("null", "on")
    assert "evil" not in done.data
    told = json.loads(done.out)
    assert told["chosen"]["partition"] == "yes"
    assert [one["name"] for one in told["found"]["partitions"]] == ["x: y # z\"'", "yes", "日本語"]
    named = init(tmp_path, "hostile", "--force", "--partition", "x: y # z\"'")
    assert "partition" not in named.data["cluster"]
    assert '# partition: "x: y # z\\"\'"' in named.text


def test_no_password_of_a_proxy_is_written(tmp_path: Path) -> None:
    proxies = {
        "http_proxy": "http://me:s3cr3t/p@ss@proxy:3128",
        "HTTPS_PROXY": "me:s3cr3t@proxy:3128",
        "all_proxy": "http://proxy:1/?token=s3cr3t",
    }
    done = init(tmp_path, "tcl-singularitypro", "--json", **proxies)
    assert "http_proxy=http://***@proxy:3128, https_proxy=***@proxy:3128" in done.text
    assert "all_proxy=http://proxy:1/." in done.text
    assert "s3cr3t" not in done.text + done.out + done.err
    assert "ss@" not in done.text + done.out + done.err


def test_to_standard_output(tmp_path: Path) -> None:
    done = init(tmp_path, "debian-24.11", "-o", "-")
    assert done.text == ""
    assert parse_yaml(done.out)["cluster"]["gpu"] == "h200"
    assert init(tmp_path, "debian-24.11", "-o", "-", "--json").code == 2


def test_without_slurm(tmp_path: Path) -> None:
    done = init(tmp_path, "nowhere", "--json", PATH="/nowhere")
    assert (done.code, done.text) == (1, "")
    assert "error: Slurm cannot be asked: sinfo is not in PATH" in done.err
    assert "sinfo is not in PATH" in json.loads(done.out)["error"]


def test_slurm_that_fails_or_says_nothing(tmp_path: Path) -> None:
    done = init(tmp_path, "nowhere")
    assert (done.code, done.text) == (1, "")
    assert "sinfo --all" in done.err
    assert "|%G|%f' ended with 1: sacctmgr: error: slurm_persist_conn_open_without_init: refused" in done.err
    (tmp_path / "sinfo.txt").write_text("\n*** Welcome ***\n")
    done = init(tmp_path, tmp_path)
    assert (done.code, done.text) == (1, "")
    assert "sinfo listed no partition that can be read; it printed '*** Welcome ***'" in done.err


def test_no_password_that_sinfo_prints_is_told(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text("by http://bob:s3cret@proxy:3128\n")
    done = init(tmp_path, tmp_path, "--json")
    assert done.code == 1
    assert "it printed 'by " in done.err
    assert "s3cret" not in done.out + done.err


_FEDERATION = """\
CLUSTER: east
gpu*|up|1:00:00|9|idle|64|512000|gpu:h200:8|(null)

CLUSTER: west
gpu*|up|1:00:00|2|idle|64|512000|gpu:a100:4|(null)
"""


def test_of_a_federation_this_cluster_is_taken(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text(_FEDERATION)
    done = init(tmp_path, tmp_path)
    assert (done.code, done.text) == (1, "")
    assert "sinfo listed the clusters east, west, and scontrol show config did not say" in done.err
    (tmp_path / "config.txt").write_text("ClusterName = north\n")
    done = init(tmp_path, tmp_path)
    assert (done.code, done.text) == (1, "")
    assert "sinfo listed the clusters east, west, and north, this one, is not among them" in done.err
    (tmp_path / "config.txt").write_text("ClusterName = west\n")
    done = init(tmp_path, tmp_path)
    assert (done.data["cluster"]["gpu"], done.data["cluster"]["gpus_per_node"]) == ("a100", 4)
    assert "east" not in done.text


def test_a_partition_that_is_not_there(tmp_path: Path) -> None:
    done = init(tmp_path, "debian-24.11", "--partition", "gpus")
    assert (done.code, done.text) == (1, "")
    assert "--partition gpus: there is none of this name; there are: gpu (default)" in done.err


def test_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, launch.init; print([name for name in ('pydantic', 'yaml', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    done = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path.append({str(ROOT)!r}); import launch.init"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
