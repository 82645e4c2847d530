"""Read what is appended to a log file, whole lines at a time."""

from pathlib import Path
from typing import List

from launch.supervisor.log_limit import cuts_of

# A log that floods must not keep the supervisor from its other duties.
CHUNK = 1 << 20


class LogFollower:
    """Follow one file from its present end; a file that does not exist yet is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A log of an earlier attempt in the same run directory is no news.
        self._rest = b""
        self._offset = path.stat().st_size if path.exists() else 0
        self._cuts = len(cuts_of(path))

    def lines(self) -> List[str]:
        """Lines that were completed since the last call, without their ends; at most CHUNK bytes a call.

        Of a log that this process cut (`log_limit`), no line twice and none in part. Of one that somebody else
        made shorter, what comes after that was noticed.
        """
        if not self._path.exists():
            return []
        self._follow_cuts()
        with self._path.open("rb") as stream:
            size = stream.seek(0, 2)
            if size < self._offset:
                self._rest, self._offset = b"", size
            stream.seek(self._offset)
            data = stream.read(CHUNK)
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > CHUNK:
            self._rest = b""  # a line without an end is no line of ours
        return [line.decode(errors="replace") for line in whole]

    def _follow_cuts(self) -> None:
        for cut in cuts_of(self._path)[self._cuts :]:
            if cut.head < self._offset < cut.tail_was:
                self._rest = b""  # its other half is gone
            self._offset = cut.moved(self._offset)
            self._cuts += 1
