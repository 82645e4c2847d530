"""The folder that a conversion makes: whole at the end, or not there at all.

It is written as OUT.partial beside it and renamed. After a signal OUT.partial stays, for `--resume`; after an
error, a full disk too, it is removed. What it replaces is back in its place if the renaming fails.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from converters.errors import ConvertError
from converters.printing import escaped, tell
from converters.writing import journal as journals
from converters.writing.earlier_result import refuse_foreign, refuse_overlap
from converters.writing.journal import Journal

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMOVED = "-removed"


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
    trees: Sequence[Path] = (),
    files: Iterable[Path] = (),
) -> Iterator[Partial]:
    """A folder beside `out` to write in, renamed to `out` if the block ends well.

    Args:
        out: does not exist, or is an empty folder, or with `force` is the result of an earlier merge.
        need_bytes: that will be written, compared with the free space first.
        plan: `journal.digest` of what will be written.
        resume: go on with what a killed run left; without it that is removed. With `force` too, what was begun
            from something else is removed, and is an error otherwise.
        trees, files: that are read; `out` must not lie in them, nor they in `out`.

    Raises:
        ConvertError: `out` is taken, holds what no merge wrote, or lies in the checkpoint; it cannot be written or
            is being written by another process; the disk is too small, or full; what is to be resumed was begun
            from something else.
    """
    out = out.absolute()
    refuse_overlap(out, trees, files)
    _check_kind(out)
    partial = _partial(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear(out)
        old = _beside(out, "old") if _check_free(out, force, resume) else None
        journal = _claimed(out, plan, need_bytes, resume, force)
    except OSError as error:
        raise ConvertError(f"{out}: cannot be written: {error}. Choose another target.") from error
    try:
        try:
            yield Partial(partial, journal)
            _sync_tree(partial)
            _rename(partial, out, old)
        except (KeyboardInterrupt, SystemExit):
            if journal.in_place:
                told = f"stopped; {partial} is kept: --resume goes on from there"
                _tell(told)
            raise
        except BaseException as error:
            written = _allocated(partial)
            if journal.in_place:
                shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise ConvertError(
                    f"{out}: {error.strerror} after {written} of {need_bytes} bytes, which are removed again. "
                    "Make room (disk, quota, ulimit -f), or choose another target."
                ) from error
            raise
        _tidy(out, old)
    finally:
        journal.close()


def check(
    out: Path,
    *,
    force: bool = False,
    trees: Sequence[Path] = (),
    files: Iterable[Path] = (),
) -> None:
    """What `target` says of `out` before it writes anything; nothing is changed.

    Raises:
        ConvertError: as `target`, but for what only writing shows.
    """
    out = out.absolute()
    refuse_overlap(out, trees, files)
    _check_kind(out)
    if _taken(out) and not force:
        raise _there(out)


def _rename(partial: Path, out: Path, old: Path | None) -> None:
    """`partial` becomes `out`, and `out` becomes `old`; after an error or a signal both have their names again."""
    made = partial.stat()
    try:
        if old is not None:
            out.rename(old)
        partial.rename(out)
        _sync(out.parent)
    except BaseException:
        # A signal comes before or after any of these: what has which name is on disk.
        with suppress(OSError):
            if os.path.samestat(out.stat(), made):
                out.rename(partial)
        if old is not None and old.exists():
            old.rename(out)
        raise


def _tidy(out: Path, old: Path | None) -> None:
    """Take away the journal, which `out` does not need any more, and what it replaced."""
    try:
        (out / journals.NAME).unlink(missing_ok=True)
        _sync(out)
        if old is not None:
            _remove(old, out)
    except OSError as error:
        _tell(f"{out} is whole; not removed: {error}")


def _tell(text: str) -> None:
    tell(escaped(f"converters.merge: {text}"), sys.stderr)


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _beside(out: Path, kind: str) -> Path:
    """A name beside `out` that tells who made it."""
    return out.with_name(f"{out.name}.{kind}-{_host()}-{os.getpid()}")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())


def _clear(out: Path) -> None:
    """Remove what killed processes of this host left beside `out`; what one was about to replace is put back."""
    form = re.compile(
        rf"{re.escape(out.name)}\.(?P<kind>partial|old)-{re.escape(_host())}-(?P<pid>[0-9]+)(?P<removed>{_REMOVED})?"
    )
    for path in sorted(out.parent.iterdir()):
        match = form.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_dir():
            continue
        if int(match["pid"]) != os.getpid() and journals.lives(int(match["pid"])):
            continue
        taken = out.exists() and any(out.iterdir())
        if match["kind"] == "old" and not match["removed"] and not taken:
            path.rename(out)
            _tell(f"{out}: put back, a merge was killed while it replaced it")
        else:
            shutil.rmtree(path, ignore_errors=True)


def _check_kind(out: Path) -> None:
    if out.is_symlink():
        raise ConvertError(
            f"{out}: is a link to {out.readlink()}, and a folder is to have this name. Give the folder itself, or "
            "remove the link."
        )
    if out.exists() and not out.is_dir():
        raise ConvertError(f"{out}: exists and is no folder. Choose another target.")


def _check_free(out: Path, force: bool, resume: bool) -> bool:
    """Whether `out` holds an earlier merge to replace."""
    if not _taken(out):
        return False
    if force:
        return True
    with suppress(OSError):  # its writer may have been killed just before the end
        (out / journals.NAME).unlink()
    if resume:
        raise ConvertError(
            f"{out}: is whole, there is nothing to resume. Leave --resume out: --verify compares it with the "
            "checkpoint, --force replaces it."
        )
    raise _there(out)


def _taken(out: Path) -> bool:
    """Whether an earlier result is there; what no merge wrote is an error."""
    if not out.exists() or not any(out.iterdir()):
        return False
    refuse_foreign(out)
    return True


def _there(out: Path) -> ConvertError:
    return ConvertError(f"{out}: holds the result of an earlier merge. Add --force to replace it.")


def _claimed(out: Path, plan: str, need_bytes: int, resume: bool, force: bool) -> Journal:
    """The locked journal of the folder to write in, which is new, or what a killed run left of the same plan."""
    partial = _partial(out)
    while True:
        if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
            raise ConvertError(f"{partial}: exists and is no folder. Remove it, or choose another target.")
        if partial.exists():
            left = journals.take_over(partial / journals.NAME)
            if left is None:
                continue
            try:
                other = _other(left, partial, plan)
                if resume and other is None:
                    _check_space(partial.parent, need_bytes - _allocated(partial))
                    return left
                if resume and not force:
                    raise ConvertError(f"{other} Start without --resume, or with --force too, to begin anew.")
                if resume:
                    _tell(f"{other} It is removed; begun anew.")
                _remove(partial, out)
            except BaseException:
                left.close()
                raise
            left.close()
        _check_space(partial.parent, need_bytes)
        fresh = _beside(out, "partial")
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


def _other(left: Journal, partial: Path, plan: str) -> str | None:
    """Why it is not possible to go on from what is left."""
    if left.damage is not None:
        return f"{left.path}: damaged ({left.damage})."
    if left.plan != plan:
        return (
            f"{partial}: was begun from another checkpoint or with other options, or the checkpoint has changed "
            "since."
        )
    return None


def _check_space(parent: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < need_bytes:
        raise ConvertError(
            f"{parent}: {free} bytes free, {need_bytes} needed. Make room, or choose another target."
        )


def _remove(folder: Path, out: Path) -> None:
    """Under another name first: half of it must not look like something to go on from, or to put back."""
    kind = folder.name.removeprefix(f"{out.name}.").partition("-")[0]
    going = _beside(out, kind)
    going = going.with_name(going.name + _REMOVED)
    folder.rename(going)
    shutil.rmtree(going)


def _allocated(folder: Path) -> int:
    """Bytes on disk; the files are made in full length at once."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _sync_tree(folder: Path) -> None:
    """Files first, then the folders that name them: what has the target's name is on disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
