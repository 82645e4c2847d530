"""Files of this job in /dev/shm: engines leave theirs there when they are killed, and the node keeps them.

Which ones are the job's is known only while its processes have them mapped or open, so these are looked at before
they are ended. A name says nothing: another job of the same user has the same patterns.
"""

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Set

FOLDER = Path("/dev/shm")
# What was there before this supervisor was put there by somebody, who may want to keep it.
_STARTED = time.time()


@dataclass(frozen=True)
class SharedFile:
    """A file by its identity; another one may come by its path."""

    path: str
    device: int
    inode: int


_noted: Set[SharedFile] = set()
_looks: Dict[SharedFile, int] = {}
_MOST_LOOKS = 3
_MOST_FILES = 5000


def _mapped(pid: int, prefix: str) -> Set[SharedFile]:
    found = set()
    needle = f" {prefix}".encode()
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        if needle not in line or line.endswith(b" (deleted)"):
            continue
        # proc(5): address perms offset dev inode path; a line break in a path is written \012.
        _, _, _, device, inode, path = os.fsdecode(line).split(maxsplit=5)
        major, minor = (int(part, 16) for part in device.split(":"))
        found.add(SharedFile(path.replace("\\012", "\n"), os.makedev(major, minor), int(inode)))
    return found


def _opened(pid: int, prefix: str) -> Set[SharedFile]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed while we looked
            path = str(entry.readlink())
            if path.startswith(prefix) and not path.endswith(" (deleted)"):
                identity = entry.stat()
                found.add(SharedFile(path, identity.st_dev, identity.st_ino))
    return found


def files_of(pids: Iterable[int], folder: Path = FOLDER) -> Set[SharedFile]:
    """Files below `folder` that any of the processes has mapped or open, and that still have a name."""
    prefix, found = f"{folder}/", set()
    for pid in pids:
        for look in (_mapped, _opened):
            # It ended while we looked, or is another user's.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                found |= look(pid, prefix)
    return found


def note_files(pids: Iterable[int], folder: Path = FOLDER) -> None:
    """Remember the files of these processes of the job. Takes some milliseconds a process."""
    _noted.update(files_of(pids, folder))


def note_new_files(pids: Callable[[], Iterable[int]], folder: Path = FOLDER, since: float = _STARTED) -> None:
    """Remember the files of these processes that are new in `folder`; for every few seconds.

    An engine that is killed by Ray is gone before anybody asks for its end. Costs a listing where nothing is new.
    A file that none of the processes has at the third look is somebody else's.
    """
    new = {found for found in _recent(folder, since) if found not in _noted and _looks.get(found, 0) < _MOST_LOOKS}
    if not new:
        return
    ours = files_of(pids(), folder)
    _noted.update(ours)
    _looks.update({found: _looks.get(found, 0) + 1 for found in new - ours})


def _recent(folder: Path, since: float) -> Iterator[SharedFile]:
    """Files of this user in `folder` and one level below, not older than `since`; some thousand at most."""
    left, waiting = _MOST_FILES, [(folder, True)]
    while waiting:
        place, deeper = waiting.pop()
        with contextlib.suppress(OSError):  # gone, or not for us
            for entry in os.scandir(place):
                left -= 1
                if left < 0:
                    return
                if deeper and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), False))
                    continue
                with contextlib.suppress(FileNotFoundError):
                    now = entry.stat(follow_symlinks=False)
                    if now.st_uid == os.getuid() and stat.S_ISREG(now.st_mode) and now.st_ctime >= since:
                        yield SharedFile(entry.path, now.st_dev, now.st_ino)


def remove_noted(folder: Path = FOLDER, since: float = _STARTED) -> List[str]:
    """Remove the remembered files that are still there, once the job's processes have ended.

    Kept are files that a process still uses (another job of this user shares them), those that are older than
    `since`, and what has taken a file's place. Returns the paths that were removed.
    """
    left = {found for found in _noted if _is_ours(found, since)}
    _noted.clear()
    if left:
        left -= files_of((int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()), folder)
    removed = []
    for found in sorted(left, key=lambda file: file.path):
        with contextlib.suppress(FileNotFoundError):  # its owner was quicker
            Path(found.path).unlink()
            removed.append(found.path)
    return removed


def _is_ours(found: SharedFile, since: float) -> bool:
    try:
        now = Path(found.path).lstat()
    except OSError:
        return False
    same = (now.st_dev, now.st_ino) == (found.device, found.inode)
    return same and stat.S_ISREG(now.st_mode) and now.st_uid == os.getuid() and now.st_ctime >= since
