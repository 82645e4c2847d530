"""Copy what is appended to a log file to stdout, as `tail -f` does."""

import sys
from pathlib import Path
from typing import BinaryIO, Optional

_CHUNK = 1 << 20


class LogFollower:
    """Follow one file from its start; each `copy` writes what is new. Used as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: Optional[BinaryIO] = None

    def __enter__(self) -> "LogFollower":
        self._stream = self._path.open("rb")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def copy(self) -> None:
        """Write everything that was appended since the last call."""
        if self._stream is None:
            raise RuntimeError("use LogFollower as a context manager")
        while True:
            data = self._stream.read(_CHUNK)
            if not data:
                break
            sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
