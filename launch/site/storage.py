"""File systems of this machine: which folders are a disk, memory or the network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MEMORY = {"tmpfs", "ramfs"}
_NETWORK = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|wekafs|panfs|afs|cifs|smb|9p|virtiofs|orangefs|pvfs|glusterfs|vastfs|fuse\.sshfs"
)
# Usual names of a disk of the node. /scratch is shared on many sites: its file system tells.
LOCAL = ("/local", "/localscratch", "/local_scratch", "/lscratch", "/nvme", "/scratch", "/tmp")
STAT = ("stat", "-f", "-c", "%S %b %a %T")


@dataclass(frozen=True)
class Folder:
    """A folder on a file system. `kind` is the type of /proc/mounts; bytes are None where it did not answer."""

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


def parse_mounts(text: str) -> dict[str, str]:
    """File system types by mount point, of /proc/mounts; a later mount covers an earlier one."""
    rows = [line.split(" ") for line in text.splitlines()]
    return {_unescaped(row[1]): row[2] for row in rows if len(row) >= 4 and row[2] != "autofs"}


def _unescaped(point: str) -> str:
    """Blanks and line ends stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


def kind_of(path: str, mounts: Mapping[str, str]) -> str:
    """The type of the file system that an absolute path lies on; "" where nothing is known."""
    while path not in mounts and path not in ("", "/"):
        path = path.rpartition("/")[0] or "/"
    return mounts.get(path, "")


def parse_stat(text: str) -> tuple[int | None, int | None]:
    """Bytes in all and free to the user, by `STAT`."""
    found = re.match(r"([0-9]{1,12}) ([0-9]{1,19}) ([0-9]{1,19}) ", text)
    if found is None:
        return None, None
    size, total, free = (int(part) for part in found.groups())
    return size * total, size * free


def local_folders(existing: Sequence[str], temporary: str | None) -> list[str]:
    """Folders worth looking at: $TMPDIR and the usual names of a local disk, as far as they exist."""
    wanted = [*([temporary] if temporary and temporary.startswith("/") else []), *LOCAL]
    return [path for path in dict.fromkeys(path.rstrip("/") or "/" for path in wanted) if path in existing]
