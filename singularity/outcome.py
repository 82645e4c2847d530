"""Whether what a container program made is the image of the stack that it was asked for."""

import sys
from pathlib import Path

from singularity.agreement import differences
from singularity.image import read_image, this_architecture
from singularity.runtime import Runtime
from singularity.sif import ImageDamaged
from singularity.stack import Stack


class OutcomeError(RuntimeError):
    """A program ended well and made no image, or another one; the message says what is wrong."""


def built_packages(path: Path, stack: Stack, runtime: Runtime) -> dict[str, str]:
    """What the labels of a new image tell; one for another kind of machine is told on standard error.

    Raises:
        OutcomeError: it is not whole, or not of the stack.
    """
    try:
        image = read_image(path, with_record=False)
    except ImageDamaged as damaged:
        raise OutcomeError(
            f"{runtime} ended well, and made no whole image: {damaged.problem}; build it again"
        ) from None
    if image.stack is None or not image.packages:
        raise OutcomeError(
            f"{runtime} ended well, and its image has no labels that tell stack and packages; build with"
            " Apptainer, or with SingularityCE 3.7 or later"
        )
    if image.stack != stack.name:
        raise OutcomeError(f"{runtime} ended well, and made an image of stack {image.stack}, not {stack.name}")
    if wrong := differences(stack, image.packages):
        raise OutcomeError(
            f"{runtime} ended well, and its image is not stack {stack.name}: {'; '.join(map(str, wrong[:5]))}"
            f"{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}"
        )
    if image.architecture not in ("unknown", this_architecture()):
        print(f"note: the image is for {image.architecture}: it does not run on this machine", file=sys.stderr)
    return image.packages
