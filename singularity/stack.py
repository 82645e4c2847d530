"""A stack: packages that are known to fit together in one image, and what a job can do with them.

`stacks/NAME.yaml` is the only place that says it; `singularity.build` makes the image from it,
`singularity.inspect` compares an image with it, and `launch` takes from it what a job can ask for.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from singularity.versions import normalised

STACKS = Path(__file__).resolve().parent / "stacks"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;#]+)")


class StackError(ValueError):
    """A stack that does not exist or does not hold together; the message names it, the rule and the remedy."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ability(_Strict):
    """Whether an image of the stack can do one thing."""

    able: bool
    why: str = Field("", description="where it cannot: the reason, as a finding of launch.render tells it")
    instead: str = Field("", description="where it cannot: what to set, as a finding tells it")
    source: str = Field(min_length=1, description="file and version, or page, that says so")


class Abilities(_Strict):
    """What a job can ask for. Each name is a rule of `launch.checks`."""

    one_step_off: Ability = Field(description="engine.mode=one_step_off")
    one_step_off_critic: Ability = Field(description="algorithm.estimator=gae with it")
    dynamic_sampling: Ability = Field(description="algorithm.filter_groups.enable in sync mode")
    fp8_training: Ability = Field(description="actor.fp8=blockwise with a Megatron actor")
    fp8_rollout: Ability = Field(description="rollout.fp8")
    fp8_both_sglang: Ability = Field(description="both, with SGLang as the rollout")
    sglang: Ability = Field(description="rollout.engine=sglang")
    vllm: Ability = Field(description="rollout.engine=vllm; for a stack of the cpu: rehearsal.rollout=vllm")
    megatron: Ability = Field(description="actor.strategy=megatron")
    fsdp2: Ability = Field(description="actor.strategy=fsdp2")


class Fact(_Strict):
    """Where a pinned value was found."""

    value: str
    source: str = Field(min_length=1, description="file and version, or page, that says so")


class Stack(_Strict):
    """One set of packages.

    `packages` are versions by distribution name, normalised (PEP 503). Where `requirements` names a folder, its
    requirements*.txt are installed over the base, and their pins belong to `packages`.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    summary: str = Field(min_length=1, description="one line for a list of stacks")
    device: Literal["cuda", "cpu"]
    verl: str = Field(description="verl's version, engine.verl of a job")
    base: Fact = Field(description="what the image starts from, as Bootstrap://reference: docker://...")
    python: str = Field("python3", description="interpreter of the packages in the base")
    python_version: Fact | None = Field(None, description="of that interpreter, major.minor")
    cuda: Fact | None = Field(None, description="CUDA of the image, major.minor")
    driver: Fact | None = Field(None, description="oldest driver of the host for that CUDA")
    gpus: Fact | None = Field(
        None, description="compute capabilities that the packages have code for, separated by spaces: 8.0 9.0"
    )
    packages: dict[str, Fact] = Field({}, description="versions that the image must have")
    adds: dict[str, Fact] = Field(
        {}, description="versions that the base lacks or has wrong: installed over it, without dependencies"
    )
    requirements: str | None = Field(None, description="folder beside the file with requirements*.txt")
    size_gb: float = Field(gt=0, description="size of the finished image in GB, roughly: for a look at free space")
    notes: list[str] = Field([], description="what a user of the image has to know, and what is not known of it")
    can: Abilities

    @model_validator(mode="after")
    def _holds_together(self) -> "Stack":
        missing = [name for name in ("cuda", "driver", "gpus", "python_version") if getattr(self, name) is None]
        if self.device == "cuda" and missing:
            raise ValueError(f"a stack for cuda names {', '.join(missing)}, too")
        for name, fact in (("cuda", self.cuda), ("python_version", self.python_version)):
            if fact is not None and not re.fullmatch(r"\d+\.\d+", fact.value):
                raise ValueError(f"{name}: value {fact.value!r} is not major.minor (quoted, as '13.0')")
        if self.gpus is not None and not re.fullmatch(r"\d+\.\d( \d+\.\d)*", self.gpus.value):
            raise ValueError(
                f"gpus: value {self.gpus.value!r} is not a list of compute capabilities, as '8.0 9.0'"
            )
        twice = {normalised(name) for name in self.packages} & {normalised(name) for name in self.adds}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))}: in packages and in adds; name it once")
        if self.requirements and not self.requirement_files:
            raise ValueError(f"requirements: no requirements*.txt in singularity/stacks/{self.requirements}/")
        return self

    @property
    def requirement_files(self) -> list[Path]:
        """requirements.txt, then the one that is installed without dependencies; [] without a folder."""
        return (
            sorted((STACKS / self.requirements).glob("requirements*.txt"), reverse=True)
            if self.requirements
            else []
        )

    @property
    def pins(self) -> dict[str, str]:
        """Version of every package that the image must have, by normalised name."""
        pinned = dict(_pins(self.requirement_files))
        return {
            **pinned,
            **{normalised(name): fact.value for name, fact in (*self.packages.items(), *self.adds.items())},
            "verl": self.verl,
        }

    @property
    def content(self) -> str:
        """Twelve hex digits that change when the definition of the stack does."""
        digest = hashlib.sha256((STACKS / f"{self.name}.yaml").read_bytes())
        for file in self.requirement_files:
            digest.update(file.read_bytes())
        return digest.hexdigest()[:12]


def _pins(files: list[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            # A second pin of a package is for Python 3.10, which no image has.
            if (pin := _PIN.match(line.strip())) and "python_version <" not in line:
                yield normalised(pin[1]), pin[2]


def stack_names() -> list[str]:
    """Every stack there is."""
    return sorted(path.stem for path in STACKS.glob("*.yaml"))


@lru_cache
def load_stack(name: str) -> Stack:
    """A stack by its name.

    Raises:
        StackError: there is no such stack, or its file does not hold together.
    """
    if name not in stack_names():
        raise StackError(f"no stack {name!r}; one of: {', '.join(stack_names())}")
    try:
        data: Any = yaml.safe_load((STACKS / f"{name}.yaml").read_text(encoding="utf-8"))
        stack = Stack.model_validate(data)
    except (yaml.YAMLError, ValidationError) as wrong:
        raise StackError(f"singularity/stacks/{name}.yaml: {wrong}") from wrong
    if stack.name != name:
        raise StackError(f"singularity/stacks/{name}.yaml: its name is {stack.name!r}; make them agree")
    return stack


def stack_of_verl(version: str) -> Stack | None:
    """The stack for GPUs with this version of verl."""
    stacks = map(load_stack, stack_names())
    return next((stack for stack in stacks if stack.device == "cuda" and stack.verl == version), None)
