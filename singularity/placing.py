"""Give a whole image its name, and write its checksum beside it: both are there, or what was there before."""

import errno
import os
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

from singularity.checksum import Progress, hash_file, sidecar, write_record
from singularity.room import existing


class ExistsError(RuntimeError):
    """There is something under the name of the image; the message names it and the remedy."""


def refuse_existing(output: Path, *, force: bool) -> None:
    """Before anything is built.

    Raises:
        ExistsError: the name is taken, or that of the checksum by a folder, or it is too long.
    """
    added = max(len(os.fsencode(path.name)) for path in (partial_name(output), sidecar(output)))
    added -= len(os.fsencode(output.name))
    most = os.pathconf(existing(output.parent), "PC_NAME_MAX") - added
    if len(os.fsencode(output.name)) > most:
        raise ExistsError(
            f"-o {output}: the name is too long, {most} bytes are possible there, as files beside it have"
            f" {added} more; choose a shorter one"
        )
    if output.is_dir():
        raise ExistsError(f"-o {output}: it is a folder; name a file in it: {output / 'X.sif'}")
    if os.path.lexists(output) and not force:
        raise ExistsError(f"-o {output}: it exists; replace it with --force, or name another file")
    if output.is_symlink():
        raise ExistsError(
            f"-o {output}: it is a link to {output.readlink()}, and a link is not replaced; name that file, or"
            " remove the link"
        )
    if sidecar(output).is_dir():
        raise ExistsError(
            f"-o {output}: its checksum belongs in {sidecar(output)}, which is a folder; remove it or name another"
            " file"
        )


def partial_name(output: Path) -> Path:
    """The name of an image that this process builds."""
    return output.with_name(f"{output.name}.partial-{socket.gethostname()}-{os.getpid()}")


def forget_dead(output: Path) -> None:
    """Remove what builds of this machine left that were killed."""
    prefix = f"{output.name}.partial-{socket.gethostname()}-"
    for left in output.parent.iterdir():
        number = left.name.removeprefix(prefix)
        if left.name.startswith(prefix) and number.isdigit() and not Path("/proc", number).exists():
            remove(left)


def remove(path: Path) -> None:
    """Remove what a build made, also where it is a folder; what cannot be removed is told."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        print(f"note: {path} is left ({error.strerror}); remove it", file=sys.stderr)


def put_in_place(partial: Path, output: Path, *, force: bool, progress: Progress | None = None) -> str:
    """Move a built image to its name, with its checksum beside it. Returns the SHA-256.

    Raises:
        OSError: one of the two could not be written; what was there is there still.
        ExistsError: without `force`, something appeared under the name.
    """
    sha256 = hash_file(partial, progress)
    _sync(partial)
    if force:
        _replace(partial, output, sha256)
    else:
        _link(partial, output)
        try:
            write_record(output, sha256)  # one that is there is of an image that was removed
        except BaseException:
            output.unlink()
            raise
    return sha256


def _replace(partial: Path, output: Path, sha256: str) -> None:
    """The record first: one that cannot be written leaves the image that was there."""
    record = sidecar(output)
    before = record.read_bytes() if os.path.lexists(record) else None
    write_record(output, sha256)
    try:
        partial.replace(output)
    except BaseException:
        with suppress(OSError):
            record.unlink() if before is None else record.write_bytes(before)
        raise


def _link(partial: Path, output: Path) -> None:
    try:
        os.link(partial, output)  # unlike a rename it never replaces
    except FileExistsError:
        raise ExistsError(f"-o {output}: it was made while this build ran; replace it with --force") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        refuse_existing(output, force=False)  # a file system without hard links
        partial.replace(output)


def _sync(path: Path) -> None:
    """A machine that fails now must not leave a whole name with half of its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
