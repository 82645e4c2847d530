"""A folder for what a conversion keeps on disk for a while, gone when it ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from data_prep.errors import DataError
from data_prep.written import name_problem

_PREFIX = ".convert-"
_LOCK = "lock"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, which is made and, where nothing came into it, removed again.

    ``parent`` is locked meanwhile. Folders that killed conversions left there go first: their lock is free.

    Raises:
        DataError: ``parent`` cannot be written to, or another conversion writes there.
    """
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DataError(f"--out {parent}: is a file; name a folder.") from None
    except OSError as error:
        raise DataError(f"--out {parent}: cannot be made: {error.strerror}.") from error
    with ExitStack() as stack:
        stack.callback(_remove_empty, made)
        _lock_folder(parent, stack)
        for left in parent.glob(f"{_PREFIX}*"):
            _remove_if_left(left)
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            raise DataError(f"--out {parent}: cannot be written to: {error.strerror}.") from error
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        problem = name_problem(folder)
        if problem is not None:
            raise DataError(f"--out {parent}: {problem}")
        lock = stack.enter_context((folder / _LOCK).open("w"))
        with suppress(OSError):  # some file systems have no locks: what is left there stays
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder


def _lock_folder(folder: Path, stack: ExitStack) -> None:
    """Hold ``folder`` until ``stack`` is left; the lock of a process that was killed is free."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise DataError(f"--out {folder}: cannot be read: {error.strerror}.") from error
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(
            f"--out {folder}: another conversion writes there; wait for its end, or name another folder."
        ) from None
    except OSError:
        return  # a file system without locks on folders


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _remove_if_left(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # in use, just being made, or without locks
