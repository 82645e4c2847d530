"""The table of patches: one entry for everything that the CPU backend changes in torch, Megatron or verl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launch.hooks.after_import import after_import

SUPPORTED_SERIES = ("0.6", "0.8", "0.9")


@dataclass(frozen=True)
class Patch:
    """One named change.

    Attributes:
        name: The function's name.
        apply: Called with the module named by `after`, once that module has been imported.
        after: The module that is changed. A patch of a module that no process imports costs nothing.
        series: verl release series ("0.9" is 0.9.x) that need the change.
    """

    name: str
    apply: Callable[[Any], None]
    after: str
    series: tuple[str, ...]


PATCHES: dict[str, Patch] = {}


def patch(after: str, *series: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter the decorated function in `PATCHES` under its own name.

    Args:
        after: Full name of the module that the function changes.
        series: verl release series that need it; none means every supported one.

    Raises:
        ValueError: The name is taken, or a series is not supported.
    """

    def enter(function: Callable[[Any], None]) -> Callable[[Any], None]:
        name = function.__name__
        if name in PATCHES:
            raise ValueError(f"patch {name} is registered twice: {PATCHES[name].after} and {after}")
        unknown = sorted(set(series) - set(SUPPORTED_SERIES))
        if unknown:
            raise ValueError(f"patch {name}: unknown verl series {unknown}; supported: {SUPPORTED_SERIES}")
        PATCHES[name] = Patch(name, function, after, series or SUPPORTED_SERIES)
        return function

    return enter


def series_of(version: str) -> str:
    """Release series of a verl version: "0.9.1" is "0.9".

    Raises:
        RuntimeError: The version belongs to no series that this backend was proven with.
    """
    series = ".".join(version.split(".")[:2])
    if series not in SUPPORTED_SERIES:
        raise RuntimeError(
            f"the CPU backend knows verl {', '.join(s + '.x' for s in SUPPORTED_SERIES)}, not {version}; "
            "unset VERL_USE_EXTERNAL_MODULES or install one of those"
        )
    return series


def install(version: str) -> list[str]:
    """Arrange every patch that this verl version needs.

    Returns:
        Their names, in the order of registration.
    """
    series = series_of(version)
    wanted = [entry for entry in PATCHES.values() if series in entry.series]
    for entry in wanted:
        after_import(entry.after, entry.apply)
    return [entry.name for entry in wanted]
