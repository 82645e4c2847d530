"""A trainer that writes nothing any more: notice it, and keep what its processes were doing."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import List, Optional

from launch.supervisor.processes import descendants

_LOOK_S = 5.0
_DUMPS_S = 20.0
_MOST_PROCESSES = 200


class StallWatch:
    """Whether a log has grown in the last `limit_s` seconds; None: it need not."""

    def __init__(self, log: Path, limit_s: Optional[float]) -> None:
        self._log = log
        self._limit_s = limit_s
        self._size = -1
        self._looked = self._grown = time.monotonic()

    def silent_s(self) -> Optional[float]:
        """For how many seconds the log has not grown, once that is too long; else None."""
        now = time.monotonic()
        if self._limit_s is None or now - self._looked < min(_LOOK_S, self._limit_s):
            return None
        self._looked = now
        try:
            size = self._log.stat().st_size
        except OSError:  # of the file system: the next look is in 5 s
            return None
        if size != self._size:
            self._size, self._grown = size, now
        silent = now - self._grown
        return silent if silent >= self._limit_s else None


def dump_stacks(into: Path) -> None:
    """Write what every process below this one waits for into a file: Python stacks where py-spy is installed.

    Takes _DUMPS_S seconds at most, and py-spy may be refused by the kernel: what is missing is said in the file.
    """
    pids = sorted(descendants(os.getpid()))[:_MOST_PROCESSES]
    with into.open("a", encoding="utf-8", errors="replace") as out:
        for pid in pids:
            out.write(f"{pid} {_state(pid)}\n")
        out.flush()
        _py_spy(pids, out.fileno(), time.monotonic() + _DUMPS_S)


def _state(pid: int) -> str:
    """State, kernel function and command line of a process."""
    folder = Path("/proc") / str(pid)
    try:
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        waits = (folder / "wchan").read_text(errors="replace") if os.access(folder / "wchan", os.R_OK) else "-"
    except OSError as error:
        return f"gone: {error}"
    return f"{state} {waits or '-'} {' '.join(words)[:300]}"


def _py_spy(pids: List[int], out: int, deadline: float) -> None:
    program = shutil.which("py-spy")
    if program is None:
        os.write(out, b"no py-spy on PATH: no Python stacks\n")
        return
    for pid in pids:
        left = deadline - time.monotonic()
        if left <= 0:
            os.write(out, b"no time for the rest\n")
            return
        try:
            subprocess.run(
                [program, "dump", "--nonblocking", "--pid", str(pid)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=min(5.0, left), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            os.write(out, b"py-spy did not end\n")
