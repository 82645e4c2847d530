"""Read what is appended to a log file, whole lines at a time."""

from pathlib import Path
from typing import List

# A log that floods must not keep the supervisor from its other duties.
CHUNK = 1 << 20


class LogFollower:
    """Follow one file from its present end; a file that does not exist yet is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A log of an earlier attempt in the same run directory is no news.
        self._rest = b""
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> List[str]:
        """Lines that were completed since the last call, without their ends; at most CHUNK bytes a call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read(CHUNK)
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > CHUNK:
            self._rest = b""  # a line without an end is no line of ours
        return [line.decode(errors="replace") for line in whole]
