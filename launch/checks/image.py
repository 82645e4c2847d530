"""The image of a job: whole, the recorded one, with the packages of its stack and the toolkit asked for."""

import re
import shlex
from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.image_stack import JobImage, JobStack, begins_as_sif
from singularity.agreement import differences, inherits_labels, tells_every_package
from singularity.checksum import sidecar, verify
from singularity.progress import progress_bar
from singularity.sif import ImageDamaged
from singularity.toolkit import content_hash

_SHOWN = 5  # packages


def check_image(job: Job, image: JobImage, said: JobStack) -> Iterator[Finding]:
    """What can be told without reading all of the image."""
    yield from _address(image)
    if image.damaged is not None:
        yield _damaged(image, image.damaged)
    if image.found is None:
        return
    if said.known and said.stack.name == image.found.stack:
        yield from _packages(image, said)
    if job.container.toolkit == "image":
        yield from _toolkit(image)


def _address(image: JobImage) -> Iterator[Finding]:
    """One that the container program would fetch: on every node, in the job."""
    if image.is_address:
        file = _file_of(image.name)
        yield error(
            "image-format",
            f"{image.field}={image.name} is an address: every node would fetch and convert it in the job, into a "
            f"home directory or /tmp",
            f"build it once, with APPTAINER_CACHEDIR and APPTAINER_TMPDIR on a large disk: apptainer build "
            f"{file} {image.name}; then set {image.field}={file}",
        )


def _file_of(address: str) -> str:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", address.partition("://")[2].rpartition("/")[2]).strip("-")
    return f"images/{name or 'image'}.sif"


def _damaged(image: JobImage, damaged: ImageDamaged) -> Finding:
    """An image that is not whole, something else than an image, or a record of its sum that is none."""
    if damaged.path != image.path:
        id_ = "image-checksum"
    else:
        id_ = "image-damaged" if begins_as_sif(image.path) else "image-format"
    return error(id_, f"{image.field}: {damaged.path}: {damaged.problem}", damaged.remedy)


def _packages(image: JobImage, said: JobStack) -> Iterator[Finding]:
    """An image of singularity.build names every package in its labels; one without, or with the labels of the
    image that it was made from, is compared in the job, before Ray starts."""
    found = image.found
    if found is None or inherits_labels(found):
        return
    complete = tells_every_package(found)
    others = [one for one in differences(said.stack, found.packages) if complete or one.found is not None]
    if others:
        shown = "; ".join(map(str, others[:_SHOWN])) + (f"; {len(others)} in all" if len(others) > _SHOWN else "")
        yield error(
            "image-packages",
            f"{image.field}: {image.path} is not what stack {said.stack.name} ({said.said_by}) says: {shown}",
            f"build it again: python -m singularity.build --stack {said.stack.name} "
            f"-o {shlex.quote(str(image.path))} --force",
        )


def _toolkit(image: JobImage) -> Iterator[Finding]:
    inside = image.found.toolkit if image.found else None
    if inside == content_hash():
        return
    what = f"has another toolkit ({inside})" if inside else "has no toolkit that its labels tell of"
    yield error(
        "image-toolkit",
        f"container.toolkit=image: {image.path} {what}, and this one is {content_hash()}",
        "build the image again with this toolkit (python -m singularity.build), or set container.toolkit=bind",
    )


def check_checksum(job: Job, image: JobImage) -> Iterator[Finding]:
    """The image beside its recorded sum. Reads all of it the first time: tens of seconds for 20 GB."""
    found = image.found
    if found is None or found.kind == "sandbox" or not job.container.verify:
        return
    if found.checksum is None:
        if "verify" in job.container.model_fields_set:
            yield warning(
                "image-checksum",
                f"container.verify: no {sidecar(image.path)}, so that only the size of the image is compared",
                f"record it once: python -m singularity.inspect --record {shlex.quote(str(image.path))}",
            )
        return
    try:
        verify(image.path, found.checksum, progress_bar(image.path))
    except ImageDamaged as damaged:
        yield error("image-checksum", f"{image.field}: {damaged.path}: {damaged.problem}", damaged.remedy)
    except OSError as wrong:
        yield error("image-checksum", f"{image.field}: {image.path}: {wrong.strerror}", "look at its disk")
