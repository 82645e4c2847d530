"""A container image as a file or folder, told by looking at it. Nothing in it is run. Standard library only."""

import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from singularity import checksum, filesystem, foreign, labels
from singularity.sif import MAGIC, MAGIC_AT, ImageDamaged, Sif, open_image, read_at, read_sif
from singularity.versions import normalised

Kind = Literal["sif", "sandbox", "squashfs", "ext3"]

_MOST = 16 << 20  # bytes of labels.json
_MOST_ENTRIES = 50_000  # of one site-packages
_MOST_PATH = 64 << 10  # bytes of a script that sets PATH, and of PATH
# What the container programs start with, where the image says nothing.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Scripts of the container programs themselves: for applications in an image, and what a user sets at its start.
_NOT_OF_THE_IMAGE = ("94-", "95-", "99-")
_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(?:-py\d[\d.]*)?\.(?:dist|egg)-info")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}


@dataclass(frozen=True)
class Image:
    """What an image says about itself."""

    path: Path
    kind: Kind  # squashfs and ext3: an image of Singularity before 3.0, without labels
    size: int | None  # bytes; None for a sandbox
    labels: dict[str, str]
    stack: str | None  # the one that singularity.build made it for
    packages: dict[str, str]  # version by normalised name, from labels; of a sandbox what lies in it
    checksum: str | None  # the recorded one, SHA-256
    sif: Sif | None = None

    @property
    def toolkit(self) -> str | None:
        """Content of the toolkit inside (`singularity.toolkit.content_hash`)."""
        return self.labels.get(labels.TOOLKIT)

    @property
    def architecture(self) -> str:
        """As Go names it: amd64, arm64, ...; "unknown"."""
        return self.sif.architecture if self.sif else "unknown"


def this_architecture() -> str:
    """The architecture of this machine as Go names it."""
    return _MACHINES.get(platform.machine(), platform.machine())


def read_image(path: Path, *, with_record: bool = True) -> Image:
    """An image whose structure is whole.

    Args:
        with_record: read the recorded checksum, too.

    Raises:
        OSError: it does not exist or cannot be read.
        ImageDamaged: it is no image, a part of it is missing, or its recorded checksum is none.
    """
    path = Path(path)
    if path.is_dir():
        return _read_sandbox(path)
    record = checksum.recorded(path) if with_record else None
    with open_image(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        start = read_at(stream, 0, foreign.START)
        old = foreign.old_format(start) if start[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC else None
        if old is not None:
            kind, at = old
            if problem := filesystem.problem_of(kind, stream, at, size - at):
                raise ImageDamaged(path, problem)
            return Image(path, kind, size, {}, None, {}, record)
    sif = read_sif(path)
    return Image(
        path, "sif", sif.size, sif.labels, sif.labels.get(labels.STACK), packages_of(sif.labels), record, sif
    )


def packages_of(found: dict[str, str]) -> dict[str, str]:
    """Versions that the labels tell, by normalised name."""
    named = (
        (name[len(labels.PACKAGE) :], value)
        for name, value in sorted(found.items())
        if name.startswith(labels.PACKAGE)
    )
    return {normalised(name): value for name, value in named}


def _read_sandbox(path: Path) -> Image:
    if not any(_is_there(path / inside) for inside in ("bin/sh", ".singularity.d")):
        raise ImageDamaged(
            path,
            "a folder and no sandbox: it has neither bin/sh nor .singularity.d",
            "name the image file, or build a sandbox: apptainer build --sandbox FOLDER DEFINITION",
        )
    found = _sandbox_labels(path)
    packages = dict(_sandbox_packages(path)) or packages_of(found)
    return Image(path, "sandbox", None, found, found.get(labels.STACK), packages, None)


def _is_there(path: Path) -> bool:
    """As os.path.lexists, which says no of a folder that one may not look into.

    Raises:
        PermissionError: it is such a folder.
    """
    try:
        path.lstat()
    except PermissionError:
        raise
    except OSError:
        return False
    return True


def _sandbox_labels(path: Path) -> dict[str, str]:
    file = path / ".singularity.d" / "labels.json"
    if not _inside(path, file):
        return {}
    try:
        with open_image(file) as stream:
            data: Any = json.loads(stream.read(_MOST))
    except FileNotFoundError:
        return {}
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError) as wrong:
        raise ImageDamaged(path, f".singularity.d/labels.json: {wrong}") from None
    return {str(name): str(value) for name, value in data.items()} if isinstance(data, dict) else {}


def _sandbox_packages(path: Path) -> Iterator[tuple[str, str]]:
    """Distributions of the interpreter that `python3` is in the sandbox, by the names of their folders."""
    for folder in reversed(list(_site_packages(path))):
        with os.scandir(folder) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                if match := _DISTRIBUTION.fullmatch(entry.name):
                    yield normalised(match["name"]), match["version"]


def _site_packages(path: Path) -> Iterator[Path]:
    """Folders of packages in the order of sys.path."""
    for binaries in _search_path(path):
        python = path / binaries.lstrip("/") / "python3"
        if not os.path.lexists(python):
            continue
        prefix = python.parent.parent
        prefixes = [prefix / "local", prefix] if prefix == path / "usr" else [prefix]
        for each in prefixes:
            for library in sorted((each / "lib").glob("python3*")):
                for name in ("site-packages", "dist-packages"):
                    folder = library / name
                    if folder.is_dir() and _inside(path, folder):
                        yield folder
        if not _sees_the_system(path, prefix / "pyvenv.cfg"):
            return


def _sees_the_system(path: Path, file: Path) -> bool:
    """Whether a virtual environment also has the packages of the Python that it was made with."""
    if not file.is_file() or not _inside(path, file):
        return False
    with file.open("rb") as stream:
        text = stream.read(_MOST).decode("utf-8", "replace")
    return re.search(r"^include-system-site-packages\s*=\s*true\s*$", text, re.MULTILINE) is not None


def _search_path(path: Path) -> list[str]:
    """PATH as the image sets it, read from the texts that the container programs run before a command."""
    found = _PATH
    for script in sorted((path / ".singularity.d" / "env").glob("*.sh")):
        if script.name.startswith(_NOT_OF_THE_IMAGE) or not script.is_file() or not _inside(path, script):
            continue
        with script.open("rb") as stream:
            text = stream.read(_MOST_PATH).decode("utf-8", "replace")
        for match in re.finditer(r"^\s*(?:export\s+)?PATH=(.*)", text, re.MULTILINE):
            found = re.sub(r"\$\{PATH\}|\$PATH\b", found.replace("\\", "/"), match[1].strip("\"' "))[:_MOST_PATH]
    return [part for part in found.split(":") if part.startswith("/")]


def _inside(root: Path, path: Path) -> bool:
    """Whether a path of a sandbox stays in it: an absolute link in it means another place than on this machine."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))  # Path.resolve fails on a loop
