"""Names of files that a script cannot hold: it is UTF-8 text, and so is everything that is written into it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from launch.binds import bind_mounts
from launch.config import Job
from launch.finding import Finding, error
from launch.toolkit import toolkit_folder


def check_names(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Paths that the script holds and the user did not write into the job, whose values are text already."""
    named = {
        str(project): "the project folder",
        str(toolkit_folder(project)): "the toolkit's folder",
        sys.executable: "the Python that renders",
    }
    for bind in bind_mounts(job, project, rehearse=rehearse, sample_data=sample_data):
        named.setdefault(bind, "a link of the job")
    for name, whose in named.items():
        yield from name_problem(whose, name)


def name_problem(whose: str, name: str) -> Iterator[Finding]:
    """What is wrong with `name`, which the system gave: Python has surrogates where it could not decode it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        yield error("name-encoding", f"{whose}: {name!r}: {_rule(name)}", _remedy(name))


def _is_utf8(name: str) -> bool:
    """Whether the bytes of the name are UTF-8, and only the locale of this process is not."""
    try:
        os.fsencode(name).decode()
    except UnicodeError:
        return False
    return True


def _rule(name: str) -> str:
    if _is_utf8(name):
        return f"the locale here ({sys.getfilesystemencoding()}) has no characters for it"
    return "the name is not UTF-8, and a script is"


def _remedy(name: str) -> str:
    return "use a UTF-8 locale: export LC_ALL=C.UTF-8" if _is_utf8(name) else "rename it"
