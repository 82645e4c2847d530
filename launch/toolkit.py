"""The toolkit's own packages, where a job can use them without anything else of the Python that renders it."""

import os
import shutil
from pathlib import Path

from singularity.toolkit import TOOLKIT, content_hash, package_files


def _is_shared(folder: Path) -> bool:
    """Whether `folder` holds the packages of other distributions, too: pip install without --editable."""
    return folder.name in ("site-packages", "dist-packages")


def _copy_of(toolkit: Path, project: Path) -> Path:
    return project / ".launch-toolkit" / content_hash(toolkit)


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
    for name in package_files(toolkit):
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(toolkit / name, part / name)
    try:
        part.rename(copy)
    except OSError:
        if not copy.is_dir():
            raise
        shutil.rmtree(part)  # another render made the same copy meanwhile
