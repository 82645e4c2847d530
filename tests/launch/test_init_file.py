"""What launch.init writes is taken by launch.render, and its comments are true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.checks.slurm import check_slurm
from launch.config import Job
from launch.config.yaml_text import parse_yaml
from launch.site.choose import choose
from launch.site.cluster_yaml import cluster_yaml
from launch.site.facts import Site
from launch.site.slurm import parse_sinfo


def written(gres: str = "gpu:h200:8", memory: int = 512000, **settings: str) -> str:
    """The file for a site of one partition."""
    partitions, _ = parse_sinfo(f"gpu*|up|1:00:00|2|idle|64|{memory}|{gres}|(null)\n")
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
