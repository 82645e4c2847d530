"""The bearer token between client and server, from a file that only the job's user can read."""

from __future__ import annotations

import os
from pathlib import Path

from reward.errors import RewardConfigError

_known: dict[tuple[str, int], str] = {}


def read_token(path: Path) -> str:
    """The token in ``path``, white space at its ends removed.

    Raises:
        ValueError: the file is empty, or holds what an HTTP header cannot.
        OSError: it cannot be read.
    """
    # Bytes that are no UTF-8 decode to what the next line refuses.
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{path}: expected one token of printable ASCII characters without spaces")
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
