"""The job's environment file: NAME=VALUE lines with secrets, read as text and never by a shell."""

import os
import re
import stat
from pathlib import Path
from typing import Dict

from launch.supervisor.verdict import SetupError

_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LIMIT_BYTES = 65536


class EnvFileError(SetupError):
    """The environment file cannot be used. The message never holds a value of it."""


def read_env_file(path: Path) -> Dict[str, str]:
    """The variables of an environment file of mode 0600.

    A line is NAME=VALUE, where VALUE is everything to its end as it stands, with spaces, quotes, `=` and `#`;
    empty lines and lines that start with `#` are left out.

    Raises:
        EnvFileError: the file is missing, others may read it, or a line is not NAME=VALUE.
    """
    text = _private_text(path)
    variables: Dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")  # written on Windows
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise EnvFileError(
                f"container.env_file: line {number} of {path} is not NAME=VALUE; write no 'export' and no space "
                f"before '='"
            )
        if "\0" in match[2]:
            raise EnvFileError(f"container.env_file: line {number} of {path} holds a NUL character; remove it")
        variables[match[1]] = match[2]
    return variables


def _private_text(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise EnvFileError(f"container.env_file: {path} cannot be read: {error.strerror}") from error
    try:
        # Of the file that is open: a path may be exchanged between a look and a read.
        _refuse_shared(path, os.fstat(descriptor))
        data = os.read(descriptor, _LIMIT_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > _LIMIT_BYTES:
        raise EnvFileError(
            f"container.env_file: {path} has more than {_LIMIT_BYTES} bytes; it is for a few variables"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EnvFileError(f"container.env_file: {path} is not UTF-8 text at byte {error.start}") from None


def _refuse_shared(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise EnvFileError(f"container.env_file: {path} is not a regular file; write NAME=VALUE lines into one")
    if found.st_uid != os.getuid():
        raise EnvFileError(
            f"container.env_file: {path} belongs to user {found.st_uid}, not to you; make a file of your own"
        )
    if found.st_mode & 0o077:
        raise EnvFileError(
            f"container.env_file: {path} has mode {stat.S_IMODE(found.st_mode):04o}, which lets others in; "
            f"run: chmod 600 {path}"
        )
