"""Overrides that are none, and secrets that would be written down."""

import re
from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error
from launch.supervisor.settings import COMMANDS

# Hydra's grammar of a key (hydra 1.3, "Override grammar"); bare keys can only be deleted.
_KEY = r"[A-Za-z_][A-Za-z0-9_./@-]*"
_OVERRIDE = re.compile(rf"(\+{{0,2}}{_KEY}=[^\x00-\x1f\x7f]*)|(~{_KEY}(=[^\x00-\x1f\x7f]*)?)")
_SECRET = re.compile(
    r"TOKEN(?!IZE)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY", re.IGNORECASE
)


def check_text(job: Job) -> Iterator[Finding]:
    """Overrides that are none, and secrets that would be written down."""
    for text in job.overrides:
        if text in COMMANDS or not _OVERRIDE.fullmatch(text):
            remedy = (
                "write key=value, +key=value or ~key; flags of Hydra, sweeps and control characters do not pass"
            )
            yield error("override", f"{text!r} is not a Hydra override", remedy)
    for name in job.container.env:
        if _SECRET.search(name):
            yield error(
                "secret",
                f"container.env.{name} would stand in the script for all to read",
                f"export {name} in the shell that submits: the job inherits it",
            )
