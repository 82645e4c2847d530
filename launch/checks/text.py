"""Overrides that are none."""

import re
from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.supervisor.settings import COMMANDS
from launch.tokens import looks_secret

# Hydra's grammar of a key (hydra 1.3, "Override grammar"); bare keys can only be deleted.
_KEY = r"[A-Za-z_][A-Za-z0-9_./@-]*"
_SPACED = re.compile(rf"\s*(\+{{0,2}}{_KEY})\s*=\s*(\S.*?)\s*")
# A value without quotes and brackets, a space, and another override.
_TWO = re.compile(rf"(\+{{0,2}}{_KEY}=[^\s'\"\[\]{{}}()]*)\s+((?=\S*[.@+~])(\+{{0,2}}{_KEY}=|~{_KEY}).*)")
_VARIABLE = re.compile(r"(?<!\\)\$[A-Za-z_][A-Za-z0-9_]*")
_OVERRIDE = re.compile(rf"(\+{{0,2}}{_KEY}=[^\x00-\x1f\x7f]*)|(~{_KEY}(=[^\x00-\x1f\x7f]*)?)")


def check_text(job: Job) -> Iterator[Finding]:
    """Raw overrides that Hydra would not read as one override each, and names of variables that nobody expands."""
    for index, text in enumerate(job.overrides):
        place = f"overrides[{index}]"
        shown = "a text that looks like a secret" if looks_secret(text) else repr(text)
        spaced, two = _SPACED.fullmatch(text), _TWO.fullmatch(text)
        if two is not None:
            remedy = "write them as two list entries"
            yield error("override", f"{place}: {shown} holds two Hydra overrides", remedy)
        elif text in COMMANDS or not _OVERRIDE.fullmatch(text):
            remedy = (
                "write key=value, +key=value or ~key; flags of Hydra, sweeps and control characters do not pass"
            )
            if spaced is not None and text.isprintable():
                written = "key=value" if looks_secret(text) else _glued(spaced)
                remedy = f"no spaces around =: write {written}"
            yield error("override", f"{place}: {shown} is not a Hydra override", remedy)
        else:
            yield from _unexpanded(place, text)
    yield from _unexpanded("logging.project", job.logging.project)
    yield from _unexpanded("logging.experiment", job.logging.experiment or "")


def _glued(spaced: re.Match[str]) -> str:
    return f"{spaced[1]}={spaced[2]}"


def _unexpanded(place: str, text: str) -> Iterator[Finding]:
    found = _VARIABLE.search(text)
    if found is not None:
        remedy = "write its value"
        if place.startswith("overrides"):
            remedy += f", or ${{oc.env:{found.group()[1:]}}} to have it read in the job"
        yield warning("unexpanded", f"{place}: {found.group()} is taken as it stands: no shell reads it", remedy)
