"""Whether the packages of an image are those of a stack. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from singularity.stack import Stack
from singularity.versions import agrees, normalised


@dataclass(frozen=True)
class Difference:
    """A package that is not as the stack wants it."""

    package: str
    wanted: str
    found: str | None  # None: not installed

    def __str__(self) -> str:
        return f"{self.package} {self.found or 'is missing'}, the stack has {self.wanted}"


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
