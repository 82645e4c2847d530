"""What the job asks of its image, and what the image's stack has."""

import re
from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.image_stack import JobImage, JobStack, why_not
from launch.sizing.gpus import find_gpu
from singularity.stack import load_stack, stack_names


def check_stack(job: Job, image: JobImage, said: JobStack, *, rehearse: bool) -> Iterator[Finding]:
    """The stack's device, version of verl, CUDA, GPUs and engines; nothing where only verl's version is known."""
    yield from _label(job, image, rehearse=rehearse)
    if not rehearse:
        yield from _architecture(job, image)
    if not said.known:
        return
    stack, name = said.stack, f"stack {said.stack.name} ({said.said_by})"
    if stack.verl != job.engine.verl:
        yield error(
            "image-stack",
            f"{name} has verl {stack.verl}, the job has engine.verl={job.engine.verl}",
            f"set engine.verl={stack.verl}, or use another image",
        )
    if rehearse:
        return
    if stack.device != "cuda":
        yield error(
            "image-stack", f"{name} is for a CPU, and the job wants GPUs", "use another image, or --rehearse"
        )
        return
    yield from _cuda(job, said, name)
    gpu = find_gpu(job.cluster.gpu)
    if gpu is not None and not said.runs_on(gpu):
        yield error(
            "image-gpu",
            f"{name} is built for GPUs of capability {stack.gpus.value if stack.gpus else '?'}; cluster.gpu="
            f"{job.cluster.gpu} is {gpu.name} with {gpu.capability_text}",
            "choose another cluster.gpu, or an image for this one",
        )
    for wanted, value in (("rollout.engine", job.rollout.engine), ("actor.strategy", job.actor.strategy)):
        ability = getattr(stack.can, value)
        if not ability.able:
            yield error("image-engine", f"{wanted}={value}: {name}: {why_not(ability)}", ability.instead)


def _architecture(job: Job, image: JobImage) -> Iterator[Finding]:
    """The image beside the CPU of the nodes, as far as the GPU tells it."""
    gpu, inside = find_gpu(job.cluster.gpu), image.found.architecture if image.found else "unknown"
    if gpu is None or inside == "unknown":
        return
    if gpu.host is not None and inside != gpu.host:
        yield error(
            "image-architecture",
            f"{image.field}: {image.path} is for {inside}, and the nodes of cluster.gpu={job.cluster.gpu} "
            f"({gpu.name}) are {gpu.host}: nothing of it starts there",
            f"use an image for {gpu.host}, or choose another cluster.gpu",
        )
    elif gpu.host is None and inside != "amd64":
        yield warning(
            "image-architecture",
            f"{image.field}: {image.path} is for {inside}; cluster.gpu={job.cluster.gpu} is {gpu.name}, and most "
            f"nodes with it are amd64 (x86_64)",
            f"see that the nodes are {inside} (uname -m on one), or use an image for amd64",
        )


def _cuda(job: Job, said: JobStack, name: str) -> Iterator[Finding]:
    wanted = job.container.cuda
    if wanted is not None and said.cuda is not None and _minor(wanted) != _minor(said.cuda):
        yield error(
            "image-cuda",
            f"container.cuda={wanted}, and {name} has CUDA {said.cuda}",
            "remove container.cuda: the stack says it",
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _label(job: Job, image: JobImage, *, rehearse: bool) -> Iterator[Finding]:
    """What the image says of itself beside what the job says of it."""
    label = image.found.stack if image.found else None
    if label is None:
        return
    if label not in stack_names():
        yield warning(
            "image-stack",
            f"{image.field}: the label of {image.path} names the stack {label}, which this toolkit does not have",
            "use the toolkit that built it to check more, or build the image again",
        )
    elif not rehearse and job.container.stack not in (None, label):
        yield error(
            "image-stack",
            f"container.stack={job.container.stack}, and the label of {image.path} says {label}",
            f"set container.stack={label}, leave it out, or use another image",
        )
    elif rehearse and load_stack(label).device != "cpu":
        yield warning(
            "image-stack",
            f"{image.field}: the label of {image.path} says {label}, a stack for GPUs; a rehearsal has none",
            "build an image of the stack cpu",
        )
