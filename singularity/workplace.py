"""The folder of one build, beside nobody else's: the definition, the toolkit's files, pip's settings."""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from singularity.definition import SETTINGS
from singularity.pip_settings import PipSettings
from singularity.toolkit import PACKAGES, TOOLKIT, package_files

_PREFIX = "launcher-build-"
_BUILDER = "builder"  # a file in the folder: host and process that it is of


class ToolkitIncompleteError(RuntimeError):
    """Packages of the toolkit are missing; the message names them, the place and the remedy."""


@contextlib.contextmanager
def work_folder(temporary: Path) -> Iterator[Path]:
    """A folder for this build alone, for the program's temporary files too: a killed one leaves them behind."""
    temporary.mkdir(parents=True, exist_ok=True)
    for left in left_behind(temporary):
        print(f"note: {left} is left of a build that was killed; {_removal(left)}", file=sys.stderr)
    work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary))
    try:
        (work / _BUILDER).write_text(f"{socket.gethostname()} {os.getpid()}\n", encoding="utf-8")
        yield work
    finally:
        try:
            # Files of subordinate ids are not ours to remove: the program does it, unless it was killed.
            if sys.version_info >= (3, 12):
                shutil.rmtree(work, onexc=_make_removable)
            else:
                shutil.rmtree(work, onerror=_make_removable)
        finally:  # also after one more Ctrl-C
            if work.exists():
                print(f"note: {work} is left; {_removal(work)}", file=sys.stderr)


def left_behind(temporary: Path) -> list[Path]:
    """Folders of this user's builds on this machine whose process is gone.

    They are told and not removed: a process of another container with the same host name is not seen from here.
    """
    found = []
    for folder in sorted(temporary.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            host, _, process = (folder / _BUILDER).read_text(encoding="utf-8").strip().partition(" ")
            gone = process.isdecimal() and not Path("/proc", process).exists()
            if gone and host == socket.gethostname() and folder.stat().st_uid == os.geteuid():
                found.append(folder)
    return found


def _removal(folder: Path) -> str:
    return f"remove it: chmod -R u+rwX {folder}; rm -rf {folder}"


def _make_removable(function: Any, path: str, _: object) -> None:
    """Folders of packages may be closed to writing; what cannot be removed then is told by the caller."""
    with contextlib.suppress(OSError):
        os.chmod(Path(path).parent, 0o700)  # noqa: PTH101
        os.chmod(path, 0o700)  # noqa: PTH101
        function(path)


def stage(text: str, work: Path) -> None:
    """The definition and the toolkit's files, in the folder that the definition's paths start from.

    Raises:
        ToolkitIncompleteError: a package of the toolkit is not there.
    """
    context = work / "context"
    for name in package_files():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOOLKIT / name, context / name)
    (context / "image.def").write_text(text, encoding="utf-8")
    (work / "tmp").mkdir()
    missing = [package for package in PACKAGES if not (context / package).is_dir()]
    if missing:
        raise ToolkitIncompleteError(f"the toolkit in {TOOLKIT} has no {', '.join(missing)}; install it again")


def bound(settings: PipSettings, wheels: Path | None, work: Path) -> list[str]:
    """The folder that brings pip's settings and wheels into %post, as options of the program; [] without any."""
    if not settings.text:
        return []
    folder = work / "settings"
    folder.mkdir(mode=0o700)
    (folder / "pip.conf").write_text(settings.text, encoding="utf-8")
    for name, file in settings.files.items():
        shutil.copyfile(file, folder / name)
    binds = ["--bind", f"{folder}:{SETTINGS}"]
    if wheels:
        (folder / "wheels").mkdir()
        binds += ["--bind", f"{wheels}:{SETTINGS}/wheels"]
    return binds
