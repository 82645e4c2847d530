"""Whether there is room for a build, before it begins.

A quota does not show in the free space of a file system: only writing tells (EDQUOT), see failures.py.
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# Of the finished image's size: its files unpacked, as the cpu stack has them (2.4 GB and 0.9 GB).
UNPACKED = 2.8
_GB = 1e9


class Need(NamedTuple):
    """Bytes that a build writes to a folder; `option` names what chooses another folder."""

    folder: Path
    size: float
    what: str
    option: str


def needs(*, size_gb: float, output: Path, temporary: Path, cache: Path | None) -> list[Need]:
    """What a build writes, and where; `cache` None: nothing is downloaded into one."""
    found = [
        Need(output, size_gb * _GB, "the image", "-o"),
        Need(temporary, size_gb * UNPACKED * _GB, "its unpacked files", "--tmp-dir"),
    ]
    if cache is not None:
        found.append(Need(cache, size_gb * _GB, "the layers of its base", "--cache-dir"))
    return found


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def shortages(needed: Iterable[Need]) -> list[str]:
    """One line for each file system with less room than the needs on it; [] where there is enough."""
    by_device: dict[int, list[Need]] = defaultdict(list)
    for need in needed:
        by_device[existing(need.folder).stat().st_dev].append(need)
    told = []
    for group in by_device.values():
        free = os.statvfs(existing(group[0].folder))
        room = free.f_bavail * free.f_frsize
        wanted = sum(need.size for need in group)
        if room >= wanted:
            continue
        parts = ", ".join(f"{need.size / _GB:.0f} GB for {need.what} in {need.folder}" for need in group)
        options = " or ".join(sorted({need.option for need in group}))
        told.append(
            f"{room / _GB:.1f} GB free, about {wanted / _GB:.0f} GB needed ({parts}); choose with {options}"
        )
    return told


def unwritable(folder: Path) -> str | None:
    """Why no file can be made in a folder; None where one can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def mount_options(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> tuple[str, set[str]]:
    """Mount point and options (noexec, nodev, ...) of what a folder lies on."""
    inside = existing(folder).resolve()
    best, options = "/", set[str]()
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split()
        point = _unescaped(fields[4])
        # Of mounts over each other the last one counts.
        if len(point) >= len(best) and (inside == Path(point) or Path(point) in inside.parents):
            best, options = point, set(fields[5].split(","))
    return best, options


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
