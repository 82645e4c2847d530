"""Whether the packages of an image are those of a stack, and whether the image tells them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from singularity.image import Image
from singularity.labels import STACK_CONTENT
from singularity.stack import Stack
from singularity.versions import agrees, normalised

_SHOWN = 80  # characters of a version; a label may hold megabytes


@dataclass(frozen=True)
class Difference:
    """A package that is not as the stack wants it."""

    package: str
    wanted: str
    found: str | None  # None: not installed

    def __str__(self) -> str:
        found = self.found or "is missing"
        shown = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
        return f"{self.package} {shown}, the stack has {self.wanted}"


def differences(stack: Stack, packages: Mapping[str, str]) -> list[Difference]:
    """Pins of a stack that these packages (name to version) do not meet, by name; [] where all agree.

    What the stack does not pin may be there in any version.
    """
    have = {normalised(name): version for name, version in packages.items()}
    return [
        Difference(name, wanted, have.get(name))
        for name, wanted in sorted(stack.pins.items())
        if name not in have or not agrees(wanted, have[name])
    ]


def tells_every_package(image: Image) -> bool:
    """Whether a package that the image does not tell of is not in it.

    A sandbox is looked into. Of a file only the labels of singularity.build are complete; those of another build
    may name some packages.
    """
    whole = image.kind == "sandbox" or (STACK_CONTENT in image.labels and not inherits_labels(image))
    return whole and bool(image.packages)


def inherits_labels(image: Image) -> bool:
    """Whether the labels of singularity.build are those of the image that this one was built on.

    The container programs keep the labels of a base, and not its definition, which names the stack's content.
    """
    content, definition = image.labels.get(STACK_CONTENT), image.sif.definition if image.sif else None
    return content is not None and definition is not None and f"# Stack {content}." not in definition
