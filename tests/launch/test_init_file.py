"""What launch.init writes is taken by launch.render, and its comments are true."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.checks.slurm import check_slurm
from launch.config import Job
from launch.config.yaml_text import parse_yaml
from launch.site.choose import choose
from launch.site.cluster_yaml import cluster_yaml
from launch.site.commands import Answer
from launch.site.facts import Site, read_site
from launch.site.memory import memory
from launch.site.slurm import parse_sinfo
from launch.site.storage import Folder, parse_mounts, target


def written(gres: str = "gpu:h200:8", **settings: str) -> str:
    """The file for a site of one partition."""
    partitions, _ = parse_sinfo(f"gpu*|up|1:00:00|2|idle|64|512000|{gres}|(null)\n")
    partitions[0].settings = settings
    site = Site(partitions=partitions)
    return cluster_yaml(site, choose(site))


def flat(text: str) -> str:
    """The text with its comments in one line each."""
    return " ".join(text.replace("\n  #", " ").replace("\n#", " ").split())


def gpu_errors(text: str) -> list[str]:
    job = Job.model_validate(
        {"template": "grpo", **{key: value for key, value in parse_yaml(text).items() if value}}
    )
    return [one.message for one in check_slurm(job) if one.id == "gpu-type" and one.severity == "error"]


@pytest.mark.parametrize(
    ("gres", "gpu", "gpus"),
    [
        ("gpu:4090:8", "4090", 8),
        ("gpu:1080:8", "1080", 8),
        ("gpu:nvidia_h100_80gb_hbm3_1g.10gb+me:7", "nvidia_h100_80gb_hbm3_1g.10gb+me", 7),
        ("gpu:8", None, 8),
        ("gpu:12:8", None, 8),
        ("gpu:any:8", None, 8),
        ("gpu:a@b:8", None, 8),
        ("gpu:1g.5gb:112", "1g.5gb", None),
    ],
)
def test_a_type_that_is_written_is_taken(gres: str, gpu: str | None, gpus: int | None) -> None:
    text = written(gres)
    cluster = parse_yaml(text)["cluster"]
    assert (cluster.get("gpu"), cluster.get("gpus_per_node")) == (gpu, gpus)
    assert gpu_errors(text) == []
    assert ("more than the 64 that a job may name" in flat(text)) is (gpus is None)


@given(st.text(st.characters(codec="ascii")), st.integers(1, 200))
def test_every_gres_is_taken(kind: str, count: int) -> None:
    sinfo = f"gpu*|up|1:00:00|2|idle|64|512000|gpu:{kind}:{count}|(null)\n"
    partitions, _ = parse_sinfo(sinfo)
    if partitions:
        site = Site(partitions=partitions)
        assert gpu_errors(cluster_yaml(site, choose(site))) == []


@pytest.mark.parametrize("gpu", ["mi250", "1g.5gb", "volta"])
def test_a_type_that_is_not_known_is_not_said_to_be_checked(gpu: str) -> None:
    text = flat(written(f"gpu:{gpu}:8"))
    assert "FP8 are checked" not in text
    assert "launch.render does not know it: say gpu_memory_gb for the check of memory" in text
    assert f"gpu_memory_gb: {5 if gpu == '1g.5gb' else 80}" in text
    assert ("GPU of AMD: the images of this toolkit are for CUDA" in text) is (gpu == "mi250")


def test_a_type_that_is_known() -> None:
    text = flat(written())
    assert "with it memory and FP8 are checked" in text
    assert "gpu_memory_gb" not in text


_MOUNTS = """\
/dev/a / xfs rw 0 0
/dev/b /disk ext4 rw 0 0
fs /lustre lustre rw 0 0
auto /auto autofs rw 0 0
juice /juice fuse.juicefs rw 0 0
tmpfs /tmp tmpfs rw 0 0
"""


def answered(words: Sequence[str]) -> Answer:
    """Slurm lists one partition, and of the rest nothing answers but `readlink`."""
    if words[0] == "sinfo":
        return Answer("gpu*|up|1:00:00|2|idle|64|512000|gpu:h200:8|(null)\n")
    if words[0] == "stat":
        return Answer("4096 1000 500 x\n")
    return Answer("/gpfs/home/me\n") if words[0] == "readlink" else Answer(problem="no")


def of_root(root: Path, mounts: str = _MOUNTS, **environment: str) -> Site:
    (root / "proc").mkdir(parents=True)
    (root / "proc/mounts").write_text(mounts)
    return read_site(answered, environment, root)


@pytest.mark.parametrize(
    ("link", "kind", "staged"),
    [
        ("/lustre/s", "lustre", "/tmp"),
        ("../../lustre/s", "lustre", "/tmp"),
        ("/auto/s", "", "/tmp"),
        ("/juice", "fuse.juicefs", "/tmp"),
        ("/disk/s", "ext4", "/scratch"),
        ("/scratch", "xfs", "/tmp"),
    ],
)
def test_a_link_is_on_the_file_system_of_its_target(link: str, kind: str, staged: str, tmp_path: Path) -> None:
    (tmp_path / "disk/s").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "scratch").symlink_to(link)
    site = of_root(tmp_path)
    assert {one.path: one.kind for one in site.local}.get("/scratch") == (kind if link != "/scratch" else None)
    assert stage_dir(site) == staged


def stage_dir(site: Site) -> str | None:
    found = re.search(r"# stage_dir: (\S+)", cluster_yaml(site, choose(site)))
    return found and found[1]


def test_home_is_on_the_file_system_of_its_target(tmp_path: Path) -> None:
    site = of_root(tmp_path, f"{_MOUNTS}fs /gpfs gpfs rw 0 0\n", HOME="/home/me")
    assert site.home is not None
    assert (site.home.path, site.home.kind) == ("/home/me", "gpfs")


def test_nothing_is_looked_at_on_a_network() -> None:
    looked: list[str] = []

    def link(path: str) -> str | None:
        looked.append(path)
        return {"/a": "b/c", "/b": "lustre/d", "/loop": "loop"}.get(path)

    mounts = parse_mounts(_MOUNTS)
    assert target("/a/../x", mounts, link) == "/lustre/d/c/../x"
    assert target("/auto/x", mounts, link) == "/auto/x"
    assert target("/loop/x", mounts, link) == "/loop/x"
    assert not any(path.startswith(("/lustre", "/auto")) for path in looked)
    assert target("//disk/./x/../y/", mounts, lambda path: None) == "/disk/y"


@pytest.mark.parametrize(
    "kind", ["fuse.glusterfs", "fuse.ceph-fuse", "fuse.quobyte", "fuse", "gfs2", "ocfs2", "nfs4"]
)
def test_file_systems_of_a_network(kind: str) -> None:
    assert Folder("/local", kind).shared
    assert not any(Folder("/local", disk).shared for disk in ("xfs", "ext4", "fuseblk", "btrfs", "zfs"))


@pytest.mark.parametrize(
    ("temporary", "staged"), [("/disk/job.4711", "/tmp"), ("/tmp/x", "/tmp"), ("/disk/mine", "/disk/mine")]
)
def test_a_folder_of_this_session_is_not_proposed(temporary: str, staged: str, tmp_path: Path) -> None:
    for path in ("tmp/x", "disk/job.4711", "disk/mine"):
        (tmp_path / path).mkdir(parents=True)
    site = of_root(tmp_path, _MOUNTS.replace("tmpfs /tmp tmpfs", "/dev/c /tmp xfs"), TMPDIR=f"{temporary}/")
    assert temporary in [one.path for one in site.local]
    assert stage_dir(site) == staged


@pytest.mark.parametrize(
    ("config", "settings", "asked"),
    [
        ({}, {}, ("486G", "95 % of a node")),
        ({"MaxMemPerCPU": "4000"}, {}, ("256000M", "MaxMemPerCPU=4000 of the cluster for 64 CPUs")),
        ({"MaxMemPerNode": "200000"}, {"MaxMemPerNode": "UNLIMITED"}, ("200000M", "MaxMemPerNode of the cluster")),
        ({"MaxMemPerNode": "200000"}, {"MaxMemPerNode": "300000"}, ("300000M", "MaxMemPerNode of the partition")),
        ({"MaxMemPerNode": "200000"}, {"MaxMemPerCPU": "5000"}, ("320000M", "MaxMemPerCPU=5000 of the partition")),
        ({"MaxMemPerCPU": "9000"}, {}, ("486G", "95 % of a node")),
        ({"MaxMemPerCPU": "1"}, {}, (None, "too little for a job (MaxMemPerCPU=1 of the cluster for 64 CPUs)")),
        ({"SelectTypeParameters": "CR_CPU"}, {}, (None, "does not hand out memory")),
    ],
)
def test_memory_within_the_limits(
    config: dict[str, str], settings: dict[str, str], asked: tuple[str | None, str]
) -> None:
    size, why = memory(config, settings, mem_mb=524288, gpus=4, cpus=64)
    assert size == asked[0]
    assert asked[1] in why
    size, _ = memory(config, settings, mem_mb=524288, gpus=8, cpus=64)
    assert size == ('"0"' if asked[0] == "486G" else asked[0])


def test_the_limit_of_memory_is_for_the_cpus_of_the_job() -> None:
    assert "mem: 128000M" in written(MaxMemPerCPU="4000", MaxCPUsPerNode="32")


def test_interfaces_of_other_names_are_not_denied() -> None:
    assert "none of the usual names seen here" in flat(written())
