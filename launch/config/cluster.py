"""Where the job runs: Slurm's resources and the container."""

import re
from difflib import SequenceMatcher
from typing import Literal

from pydantic import Field, field_validator

from launch.config.base import CUDA_VERSION, Section, Text
from launch.config.slurm_types import SbatchOption, SlurmMemory, SlurmTime, SlurmWord
from singularity.stack import stack_names


class Cluster(Section):
    """Slurm allocation: node count and what is asked for on each node."""

    nodes: int = Field(2, ge=1, le=4096, description="nodes of the allocation; the first is the head")
    gpus_per_node: int = Field(8, ge=1, le=64, description="GPUs asked for on each node")
    gpu: SlurmWord | None = Field(None, description="GPU type as Slurm names it, e.g. h200; null: any")
    gpu_memory_gb: float | None = Field(
        None, gt=0, description="memory of one GPU in GiB, for the estimate; null: known from the GPU type"
    )
    cpus_per_node: int | None = Field(None, ge=1, description="CPUs on each node; null: the site's default")
    mem: SlurmMemory | None = Field(None, description="memory of each node as Slurm writes it, e.g. 900G; 0: all")
    partition: SlurmWord | None = Field(None, description="#SBATCH --partition")
    account: SlurmWord | None = Field(None, description="#SBATCH --account")
    qos: SlurmWord | None = Field(None, description="#SBATCH --qos")
    time: SlurmTime = Field("12:00:00", description="time limit: minutes, [days-]hours:minutes:seconds, ...")
    modules: list[Text] = Field([], description="environment modules loaded before the container starts")
    network_interface: Text | None = Field(
        None, description="interface whose address Ray, Gloo and NCCL use on every node; null: found by itself"
    )
    join_timeout_s: float = Field(300.0, gt=0, description="seconds until every node must have joined")
    extra_sbatch: list[SbatchOption] = Field([], description="more #SBATCH options, e.g. --reservation=x")


class Container(Section):
    """The image that every part of the job runs in."""

    image: Text = Field("images/verl-0.9.1.sif", description="path of the SIF image, visible on all nodes")
    runtime: Literal["auto", "apptainer", "singularity"] = Field(
        "auto", description="container program; auto: apptainer if it is there, else singularity"
    )
    cuda: str | None = Field(
        None,
        pattern=CUDA_VERSION,
        description="CUDA version in the image, e.g. 12.9; null: not known",
    )
    stack: str | None = Field(
        None,
        description="stack of singularity/stacks that the image was built as, e.g. verl-0.9.1; null: what the "
        "image's label says, and without one only what engine.verl can do is known",
    )
    toolkit: Literal["bind", "image"] = Field(
        "bind",
        description="the toolkit that runs inside. bind: this one, from the file system that all nodes share; "
        "image: the copy that singularity.build put into the image, which must be the same",
    )
    verify: bool = Field(
        True,
        description="compare the image with its recorded SHA-256 sum (IMAGE.sha256), at render and before Ray "
        "starts; its size is always compared",
    )
    stage: bool = Field(
        False, description="copy the image once to each node's local disk, so that the nodes do not read one file"
    )
    stage_dir: Text = Field("/tmp", description="node-local folder of that copy, an absolute path")
    binds: list[Text] = Field([], description="more bind mounts: SRC[:DEST[:ro]]")
    env: dict[str, str] = Field({}, description="environment variables set for every part of the job")
    env_file: Text | None = Field(
        None, description="file of NAME=VALUE lines, mode 0600, read when the job starts: the place of tokens"
    )

    @field_validator("stack")
    @classmethod
    def _stack_is_known(cls, value: str | None) -> str | None:
        names = stack_names()
        if value is not None and value not in names:
            near = sorted(names, key=lambda name: -SequenceMatcher(None, value, name).ratio())
            raise ValueError(f"there is no stack {value!r}; one of: {', '.join(near)}")
        return value

    @field_validator("env")
    @classmethod
    def _names_are_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(
                    f"{name!r} is not a name of an environment variable; use letters, digits and underscores"
                )
            if "\0" in text:
                raise ValueError(f"{name}: an environment variable cannot hold a NUL character")
        return value

    @field_validator("stage_dir")
    @classmethod
    def _stage_dir_can_be_bound(cls, value: str) -> str:
        if not re.fullmatch(r"/[^:,]*", value):
            raise ValueError(f"{value!r} is not an absolute path without colons and commas; write it as /tmp")
        return value

    @field_validator("binds")
    @classmethod
    def _binds_parse(cls, value: list[str]) -> list[str]:
        for bind in value:
            if not re.fullmatch(r"/[^:,]*(:/[^:,]+(:(ro|rw))?)?", bind):
                raise ValueError(f"{bind!r} is not SRC[:DEST[:ro]] with absolute paths and without commas")
        return value
