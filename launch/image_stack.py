"""The image of a job as it lies here, and its stack: what the packages inside can do.

The stack is the one that the job names (`container.stack`), else that of the image's label: then what is inside is
known. Else it is that of `engine.verl`, and only what this version of verl itself can do is known.
"""

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from launch.config import Job
from launch.sizing.gpus import Gpu
from singularity.image import Image, read_image
from singularity.sif import MAGIC, MAGIC_AT, ImageDamaged, open_image, shown
from singularity.stack import Ability, Stack, StackError, load_stack, stack_names, stack_of_verl


@dataclass(frozen=True)
class JobImage:
    """The image of a job on this machine, looked at without running it.

    Attributes:
        field: of the job, that names it.
        name: as the field has it.
        found: None where it is not here or is damaged.
        damaged: what is wrong with it; None for a whole one, and where nothing is here.
    """

    field: str
    name: str
    path: Path
    found: Image | None = None
    damaged: ImageDamaged | None = None

    @property
    def is_address(self) -> bool:
        """Whether the container program would fetch it: docker://..."""
        return re.match(r"[a-z][a-z0-9+.-]*://", self.name) is not None


@dataclass(frozen=True)
class JobStack:
    """What an image can do.

    Attributes:
        stack: by which the job is checked.
        said_by: what names it, for a message.
        known: the packages of the image are those of the stack; else only verl's version is.
    """

    stack: Stack
    said_by: str
    known: bool

    @property
    def cuda(self) -> str | None:
        """CUDA of the image, major.minor; None where it is not known."""
        return self.stack.cuda.value if self.known and self.stack.cuda else None

    @property
    def driver(self) -> str | None:
        """Oldest driver of a node for that CUDA; None where it is not known."""
        found = re.search(r"\d+(?:\.\d+)*", self.stack.driver.value) if self.known and self.stack.driver else None
        return found[0] if found else None

    def runs_on(self, gpu: Gpu) -> bool:
        """Whether the packages have code for a GPU.

        It is of its own capability, or below 9.0 of an older one of the same major number (NVIDIA, CUDA C++
        Programming Guide, "Binary Compatibility"). From 9.0 on kernels of SGLang and Transformer Engine are built
        for one architecture alone (sm_90a, sm_100a: "Architecture-Specific Features" there).
        """
        if not self.known or self.stack.gpus is None:
            return True
        built = [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d)", self.stack.gpus.value)]
        older = [(major, minor) for major, minor in built if major == gpu.capability[0] < 9]
        return not built or gpu.capability in built or any(minor <= gpu.capability[1] for _, minor in older)


def job_image(job: Job, project: Path, *, rehearse: bool) -> JobImage:
    """The image that a job runs in, or its rehearsal."""
    field, name = (
        ("rehearsal.image", job.rehearsal.image) if rehearse else ("container.image", job.container.image)
    )
    image = JobImage(field, name, project / name)
    if image.is_address:
        return image
    try:
        return replace(image, found=read_image(image.path))
    except ImageDamaged as damaged:
        return replace(image, damaged=damaged)
    except OSError as wrong:
        if not os.access(image.path, os.R_OK):  # missing or unreadable: reported with the other files
            return image
        problem = f"{shown(Path(wrong.filename or image.path))} cannot be read: {wrong.strerror}"
        chmod = f"make it readable: chmod -R u+rX {shlex.quote(str(image.path))}"
        remedy = chmod if isinstance(wrong, PermissionError) else "look at its disk"
        return replace(image, damaged=ImageDamaged(image.path, problem, remedy))


def begins_as_sif(path: Path) -> bool:
    """Whether a file has the magic of a SIF."""
    try:
        with open_image(path) as stream:
            return stream.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC
    except (OSError, ImageDamaged):
        return False


def job_stack(job: Job, image: JobImage, *, rehearse: bool) -> JobStack:
    """The stack that a job, or its rehearsal, is checked against.

    Raises:
        StackError: engine.verl has no stack, or the file of one does not hold together.
    """
    if job.container.stack is not None and not rehearse:
        return JobStack(load_stack(job.container.stack), f"container.stack={job.container.stack}", known=True)
    label = image.found.stack if image.found else None
    if label in stack_names() and (not rehearse or load_stack(str(label)).device == "cpu"):
        return JobStack(load_stack(str(label)), f"the label of {image.path.name}", known=True)
    version = job.engine.verl
    stack = next(iter(cpu_stacks(version)), None) if rehearse else None
    stack = stack or stack_of_verl(version)
    if stack is None:
        raise StackError(f"no stack in singularity/stacks has verl {version}; add one")
    return JobStack(stack, f"engine.verl={version}", known=False)


def cpu_stacks(version: str) -> list[Stack]:
    """Stacks without GPUs that have this version of verl, those that generate with vLLM last."""
    found = [stack for stack in map(load_stack, stack_names()) if stack.device == "cpu" and stack.verl == version]
    return sorted(found, key=lambda stack: stack.can.vllm.able)


def why_not(ability: Ability) -> str:
    """Why a stack cannot do something, with the place that says so."""
    return f"{ability.why} ({ability.source})"
