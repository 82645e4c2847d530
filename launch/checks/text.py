"""Overrides that are none."""

import re
from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error
from launch.supervisor.settings import COMMANDS
from launch.tokens import looks_secret

# Hydra's grammar of a key (hydra 1.3, "Override grammar"); bare keys can only be deleted.
_KEY = r"[A-Za-z_][A-Za-z0-9_./@-]*"
_OVERRIDE = re.compile(rf"(\+{{0,2}}{_KEY}=[^\x00-\x1f\x7f]*)|(~{_KEY}(=[^\x00-\x1f\x7f]*)?)")


def check_text(job: Job) -> Iterator[Finding]:
    """Raw overrides that Hydra would not read as one override each."""
    for index, text in enumerate(job.overrides):
        if text in COMMANDS or not _OVERRIDE.fullmatch(text):
            remedy = (
                "write key=value, +key=value or ~key; flags of Hydra, sweeps and control characters do not pass"
            )
            shown = "a text that looks like a secret" if looks_secret(text) else repr(text)
            yield error("override", f"overrides[{index}]: {shown} is not a Hydra override", remedy)
