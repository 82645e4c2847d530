"""The node-local folder of a job, and leaving a node as it was."""

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import Iterable, List

from launch.supervisor.processes import end_descendants, note_shared_memory
from launch.supervisor.shared_memory import remove_noted
from launch.supervisor.verdict import SetupError


def make_temp_dir(folder: Path) -> None:
    """Make the job's own folder, private to its user. One of an earlier attempt on this node is taken over.

    Raises:
        SetupError: something else is there: another user may have put it, and would own Ray's sockets.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise SetupError(
                f"{folder} exists and is not a folder of this user with mode 0700; remove it, or ask its owner to"
            ) from None


def remove_secrets(files: Iterable[Path]) -> None:
    """Remove files that must not outlive the job; one that cannot be removed does not save the others."""
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def clean_up(folder: Path, grace_s: float) -> List[int]:
    """End every process of the job on this node, remove its folder and its files in /dev/shm.

    Returns processes that are left. Does nothing the second time.
    """
    note_shared_memory()
    left = end_descendants(grace_s)
    remove_noted()
    shutil.rmtree(folder, ignore_errors=True)
    return left
