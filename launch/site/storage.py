"""File systems of this machine: which folders are a disk, memory or the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_MEMORY = {"tmpfs", "ramfs"}
_AUTOMATIC = "autofs"  # mounts what it stands for when that is looked at
# What a program serves (fuse) is mostly a network file system, and never known to be a disk.
_NETWORK = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|wekafs|panfs|afs|cifs|smb|9p|virtiofs|orangefs|pvfs|glusterfs|vastfs|gfs2|ocfs2|dvs"
    r"|fuse(\.|$)"
)
_MOST_LINKS = 40  # as Linux has it
# Usual names of a disk of the node. /scratch is shared on many sites: its file system tells.
LOCAL = ("/local", "/localscratch", "/local_scratch", "/lscratch", "/nvme", "/scratch", "/tmp")
STAT = ("stat", "-f", "-c", "%S %b %a %T")
TARGET = ("readlink", "-f", "--")


@dataclass(frozen=True)
class Folder:
    """A folder on a file system. `kind` is the type of /proc/mounts of what it is, or is a link to; "" where that
    is not known. Bytes are None where it did not answer.
    """

    path: str
    kind: str
    total: int | None = None
    free: int | None = None

    @property
    def in_memory(self) -> bool:
        """What is written there takes memory of the machine."""
        return self.kind in _MEMORY

    @property
    def shared(self) -> bool:
        """A file system of the network."""
        return _NETWORK.match(self.kind) is not None

    @property
    def lasting(self) -> bool:
        """It outlives the session that looks at it; $TMPDIR may be of a job, and gone with it."""
        return self.path in LOCAL or not (self.path.startswith("/tmp/") or re.search(r"[0-9]{2}", self.path))


def parse_mounts(text: str) -> dict[str, str]:
    """File system types by mount point, of /proc/mounts; a later mount covers an earlier one."""
    rows = [line.split(" ") for line in text.splitlines()]
    return {_unescaped(row[1]): row[2] for row in rows if len(row) >= 4}


def _unescaped(point: str) -> str:
    """Blanks and line ends stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


def kind_of(path: str, mounts: Mapping[str, str]) -> str:
    """The type of the file system that an absolute path without links lies on; "" where nothing is known."""
    kind = mounts.get(_mount_of(path, mounts), "")
    return "" if kind == _AUTOMATIC else kind


def _mount_of(path: str, mounts: Mapping[str, str]) -> str:
    while path not in mounts and path not in ("", "/"):
        path = path.rpartition("/")[0] or "/"
    return path


def target(path: str, mounts: Mapping[str, str], link: Callable[[str], str | None]) -> str:
    """What an absolute path means, its links followed. Nothing is looked at on a file system of the network, or
    below one that is mounted when it is looked at: it may never answer.

    Args:
        link: the text of a link; None where a path is no link.
    """
    done, left, followed = "", _parts(path), 0
    while left:
        if untouched(done or "/", mounts):
            return "/".join([done, *left])
        part = left.pop(0)
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}"
        text = link(here) if here not in mounts else None
        if text is None:
            done = here
            continue
        followed += 1
        if followed > _MOST_LINKS:
            return path
        done, left = ("" if text.startswith("/") else done), [*_parts(text), *left]
    return done or "/"


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def untouched(path: str, mounts: Mapping[str, str]) -> bool:
    """Whether a path lies where nothing is to be looked at; never where / itself is such a file system."""
    point = _mount_of(path, mounts)
    kind = mounts.get(point, "")
    return point != "/" and (kind == _AUTOMATIC or _NETWORK.match(kind) is not None)


def parse_stat(text: str) -> tuple[int | None, int | None]:
    """Bytes in all and free to the user, by `STAT`."""
    found = re.match(r"([0-9]{1,12}) ([0-9]{1,19}) ([0-9]{1,19}) ", text)
    if found is None:
        return None, None
    size, total, free = (int(part) for part in found.groups())
    return size * total, size * free


def local_folders(existing: Sequence[str], temporary: str | None) -> list[str]:
    """Folders worth looking at: the usual names of a local disk, and $TMPDIR, as far as they exist."""
    wanted = [*LOCAL, *([temporary] if temporary and temporary.startswith("/") else [])]
    return [path for path in dict.fromkeys(path.rstrip("/") or "/" for path in wanted) if path in existing]
