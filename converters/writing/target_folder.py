"""The folder that a conversion makes: whole at the end, or not there at all.

It is written as OUT.partial beside it and renamed. After a signal OUT.partial stays, for `--resume`; after an
error, a full disk too, it is removed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from converters.errors import ConvertError
from converters.writing import journal as journals
from converters.writing.journal import Journal

MANIFEST = "merge_manifest.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Partial:
    """A folder to write in, and what an earlier run left there."""

    folder: Path
    journal: Journal


@contextmanager
def target(
    out: Path,
    need_bytes: int,
    plan: str = "",
    *,
    force: bool = False,
    resume: bool = False,
    forbidden: Sequence[Path] = (),
) -> Iterator[Partial]:
    """A folder beside `out` to write in, renamed to `out` if the block ends well.

    Args:
        out: does not exist, or is an empty folder, or with `force` is the result of an earlier merge.
        need_bytes: that will be written, compared with the free space first.
        plan: `journal.digest` of what will be written.
        resume: go on with what a killed run left; without it that is removed.
        forbidden: folders that `out` must not lie in (the checkpoint).

    Raises:
        ConvertError: `out` is taken, lies in the checkpoint, cannot be written or is being written by another
            process; the disk is too small, or full; what is to be resumed was begun from something else.
    """
    out = out.absolute()
    for tree in forbidden:
        if out.resolve().is_relative_to(tree.resolve()):
            raise ConvertError(
                f"{out}: lies in the checkpoint {tree}, where nothing is written. Choose another target."
            )
    replaces = _check_free(out, force)
    partial = out.with_name(f"{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        journal = _claimed(partial, plan, need_bytes, resume)
    except OSError as error:
        raise ConvertError(f"{out}: cannot be written: {error}. Choose another target.") from error
    try:
        yield Partial(partial, journal)
        journal.path.unlink()
        _sync(partial)
        old = out.with_name(f"{out.name}.old-{os.getpid()}")
        if replaces:
            out.rename(old)
        partial.rename(out)
        _sync(out.parent)
    except (KeyboardInterrupt, SystemExit):
        print(f"converters.merge: stopped; {partial} is kept: --resume goes on from there", file=sys.stderr)
        raise
    except BaseException as error:
        written = _allocated(partial)
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise ConvertError(
                f"{out}: {error.strerror} after {written} of {need_bytes} bytes, which are removed again. Make "
                "room (disk, quota, ulimit -f), or choose another target."
            ) from error
        raise
    finally:
        journal.close()
    if replaces:
        shutil.rmtree(old)


def _check_free(out: Path, force: bool) -> bool:
    """Whether `out` holds an earlier merge to replace."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConvertError(f"{out}: exists and is no folder. Choose another target.")
    if not out.exists() or not any(out.iterdir()):
        return False
    if not (out / MANIFEST).is_file():
        raise ConvertError(
            f"{out}: not empty, and not made by this command (no {MANIFEST}). Choose another target."
        )
    if not force:
        raise ConvertError(f"{out}: holds the result of an earlier merge. Add --force to replace it.")
    return True


def _claimed(partial: Path, plan: str, need_bytes: int, resume: bool) -> Journal:
    """The locked journal of `partial`, which is new, or what a killed run left of the same plan."""
    while True:
        if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
            raise ConvertError(f"{partial}: exists and is no folder. Remove it, or choose another target.")
        if partial.exists():
            left = journals.take_over(partial / journals.NAME)
            if left is None:
                continue
            try:
                if resume:
                    return _continued(left, partial, plan, need_bytes)
                _remove(partial)
            except BaseException:
                left.close()
                raise
            left.close()
        _check_space(partial.parent, need_bytes)
        fresh = partial.with_name(f"{partial.name}-{os.getpid()}")
        fresh.mkdir()
        journal = None
        try:
            # It has its name only when it is locked: nobody takes it for a left-over.
            journal = journals.begin(fresh / journals.NAME, plan)
            fresh.rename(partial)
        except BaseException as error:
            if journal is not None:
                journal.close()
            shutil.rmtree(fresh, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                continue
            raise
        journal.path = partial / journals.NAME
        return journal


def _continued(left: Journal, partial: Path, plan: str, need_bytes: int) -> Journal:
    if left.plan != plan:
        raise ConvertError(
            f"{partial}: was begun from another checkpoint or with other options, or the checkpoint has changed "
            "since. Start without --resume."
        )
    _check_space(partial.parent, need_bytes - _allocated(partial))
    return left


def _check_space(parent: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < need_bytes:
        raise ConvertError(
            f"{parent}: {free} bytes free, {need_bytes} needed. Make room, or choose another target."
        )


def _remove(folder: Path) -> None:
    """Under another name first: half of it must not look like something to go on from."""
    going = folder.with_name(f"{folder.name}-{os.getpid()}-removed")
    folder.rename(going)
    shutil.rmtree(going)


def _allocated(folder: Path) -> int:
    """Bytes on disk; the files are made in full length at once."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
