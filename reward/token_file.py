"""The bearer token between client and server, from a file that only the job's user can read."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from reward.errors import RewardConfigError

_known: dict[tuple[str, int], str] = {}
_warned: set[tuple[Path, int]] = set()


def read_token(path: Path) -> str:
    """The token in ``path``, white space at its ends removed; warns once where other users can read it.

    Raises:
        ValueError: the file is empty, or holds what an HTTP header cannot.
        OSError: it cannot be read.
    """
    # Bytes that are no UTF-8 decode to what the next line refuses.
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        token = file.read().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{path}: expected one token of printable ASCII characters without spaces")
    if mode & (stat.S_IRGRP | stat.S_IROTH) and (path, os.getpid()) not in _warned:
        _warned.add((path, os.getpid()))
        logging.getLogger("reward").warning(
            "token file %s: other users can read it (mode %04o); chmod 600 it", path, mode
        )
    return token


def known_token(path: str) -> str:
    """The client's token, read once in each process: the file is on a file system that all nodes share.

    Raises:
        RewardConfigError: there is no such file, it is closed to us, or it holds no token.
        OSError: any other failure of the file system, which may pass; the next call reads again.
    """
    key = (path, os.getpid())
    if key not in _known:
        _known[key] = _read(path)
    return _known[key]


def is_known(path: str) -> bool:
    """Whether :func:`known_token` needs no file system."""
    return (path, os.getpid()) in _known


def was_replaced(path: str, refused: str) -> bool:
    """Whether the file holds another token than the one that the server refused; that one is known from now on.

    Raises:
        RewardConfigError, OSError: as :func:`known_token`.
    """
    key = (path, os.getpid())
    if _known.get(key) in (None, refused):  # else another thread has read the new one
        _known[key] = _read(path)
    return _known[key] != refused


def _read(path: str) -> str:
    try:
        return read_token(Path(path))
    except (ValueError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise RewardConfigError(f"REWARD_SERVER_TOKEN_FILE {path}: {error}") from error
