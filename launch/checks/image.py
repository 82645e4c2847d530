"""The container image, looked at without running it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from launch.finding import Finding, error

# sylabs/sif, pkg/sif: the launch script has 32 bytes, then the magic.
_MAGIC_AT, _MAGIC = 32, b"SIF_MAGIC"
# Singularity before 3.0: squashfs or ext3 (its magic at 1080), each with or without a launch script before it.
_SQUASHFS, _EXT3, _EXT3_AT = b"hsqs", b"\x53\xef", (1080, 1080 + 31, 1080 + 32)
_READ = 2048
_POINTER = b"version https://git-lfs.github.com/spec/"


def check_image(field: str, name: str, project: Path) -> Iterator[Finding]:
    """A SIF file, whole enough to start, or a sandbox folder."""
    if re.match(r"[a-z][a-z0-9+.-]*://", name):
        yield error(
            "image-format",
            f"{field}={name} is an address: every node would fetch and convert it in the job, into a home "
            f"directory or /tmp",
            f"build it once, with APPTAINER_CACHEDIR and APPTAINER_TMPDIR on a large disk: apptainer build "
            f"{_file_of(name)} {name}; then set {field}={_file_of(name)}",
        )
        return
    path = project / name
    if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
        if not any(os.path.lexists(path / inside) for inside in ("bin/sh", ".singularity.d")):
            yield error(
                "image-format",
                f"{field}: {path} is a folder and no sandbox: it has neither bin/sh nor .singularity.d",
                "name the image file, or build a sandbox: apptainer build --sandbox FOLDER DEFINITION",
            )
        return
    if not path.is_file():
        return  # missing: reported with the other files
    try:
        with path.open("rb") as stream:
            start = stream.read(_READ)
    except OSError:
        return  # reported with the other files
    if start.startswith(_POINTER):
        yield error("image-format", f"{field}: {path} is a Git LFS pointer, not the image", "run: git lfs pull")
    elif not start:
        yield error("image-format", f"{field}: {path} is empty", "copy or build the image again")
    elif not _is_image(start):
        yield error(
            "image-format",
            f"{field}: {path} is not a SIF image (no {_MAGIC.decode()} at byte {_MAGIC_AT})",
            "build it: apptainer build IMAGE.sif DEFINITION",
        )


def _is_image(start: bytes) -> bool:
    return (
        start[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC
        or _SQUASHFS in start[:64]
        or any(start[place : place + len(_EXT3)] == _EXT3 for place in _EXT3_AT)
    )


def _file_of(address: str) -> str:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", address.partition("://")[2].rpartition("/")[2]).strip("-")
    return f"images/{name or 'image'}.sif"
