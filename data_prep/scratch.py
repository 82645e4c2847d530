"""A folder for what a conversion keeps on disk for a while, gone when it ends, however it ends."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".convert-"
_LOCK = "lock"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, which is made and, where nothing came into it, removed again.

    Folders that killed conversions left there go first: their lock is free.
    """
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{_PREFIX}*"):
        _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with (folder / _LOCK).open("w") as lock:
            with suppress(OSError):  # some file systems have no locks: what is left there stays
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


def _remove_if_left(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # in use, just being made, or without locks
