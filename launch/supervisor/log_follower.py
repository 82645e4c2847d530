"""Read what is appended to a log file, whole lines at a time."""

from pathlib import Path
from typing import List


class LogFollower:
    """Follow one file from its present end; a file that does not exist yet is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A log of an earlier attempt in the same run directory is no news.
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> List[str]:
        """The lines that were completed since the last call, without their ends."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            whole, newline, _ = stream.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []
