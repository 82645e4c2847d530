"""The toolkit's own packages, where a job can use them without anything else of the Python that renders it."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

TOOLKIT = Path(__file__).resolve().parents[1]
_PACKAGES = ("launch", "reward", "data_prep", "converters", "singularity")


def _is_shared(folder: Path) -> bool:
    """Whether `folder` holds the packages of other distributions, too: pip install without --editable."""
    return folder.name in ("site-packages", "dist-packages")


def _files(toolkit: Path) -> Iterator[Path]:
    """Every file of the packages, relative to `toolkit`, in a fixed order."""
    for package in _PACKAGES:
        for file in sorted((toolkit / package).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(toolkit)


@lru_cache
def _content_hash(toolkit: Path) -> str:
    digest = hashlib.sha256()
    for name in _files(toolkit):
        content = (toolkit / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def _copy_of(toolkit: Path, project: Path) -> Path:
    return project / ".launch-toolkit" / _content_hash(toolkit)


def toolkit_folder(project: Path, toolkit: Path = TOOLKIT) -> Path:
    """The folder that a script of `project` takes the toolkit from.

    A checkout is used where it is. Of a folder that holds other packages, too, a job would see the host's, so that
    the copy which `place_toolkit` made is used instead.
    """
    if _is_shared(toolkit):
        copy = _copy_of(toolkit, project)
        if copy.is_dir():
            return copy
    return toolkit


def place_toolkit(project: Path, toolkit: Path = TOOLKIT) -> Path:
    """Copy the toolkit into `project` where its scripts need a copy, once for each content.

    Returns:
        What `toolkit_folder` says from then on.

    Raises:
        OSError: the copy cannot be written.
    """
    if _is_shared(toolkit):
        copy = _copy_of(toolkit, project)
        if not copy.is_dir():
            _copy(toolkit, copy)
    return toolkit_folder(project, toolkit)


def _copy(toolkit: Path, copy: Path) -> None:
    part = copy.with_name(f".{copy.name}.{os.getpid()}")
    for name in _files(toolkit):
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(toolkit / name, part / name)
    try:
        part.rename(copy)
    except OSError:
        if not copy.is_dir():
            raise
        shutil.rmtree(part)  # another render made the same copy meanwhile
