"""One command: time, CPU time, peak memory, and what others did meanwhile."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.02


@dataclass(frozen=True)
class Run:
    """A command that ended well.

    Attributes:
        cpu_s: of its processes, in user and system mode.
        peak_mib: largest resident memory of each of its processes, together, as seen 50 times a second: what the
            kernel tells in the end (ru_maxrss) begins with that of the process that starts the command.
        others: part of the machine's CPU time, 0 to 1, that went elsewhere.
    """

    seconds: float
    cpu_s: float
    peak_mib: float
    others: float


def _busy_s() -> float:
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def _peaks_kib(session: int) -> dict[int, int]:
    """Process of a session -> its largest resident memory so far."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                status = dict(line.split(":", 1) for line in stat.with_name("status").read_text().splitlines())
                found[int(stat.parent.name)] = int(status["VmHWM"].split()[0])
        except (OSError, KeyError):
            continue  # it ended meanwhile
    return found


def run(command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> Run:
    """Run `command` to its end.

    Raises:
        RuntimeError: it failed; with the end of what it wrote, all of which is in `log`.
    """
    busy, begun = _busy_s(), time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        peaks: dict[int, int] = {}
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_EVERY_S):
                peaks.update(_peaks_kib(child.pid))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.monotonic() - begun
        finally:
            ended.set()
            looking.join()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {child.returncode}: {said}")
    cpu_s = usage.ru_utime + usage.ru_stime
    others = max(0.0, _busy_s() - busy - cpu_s) / (seconds * (os.cpu_count() or 1))
    return Run(seconds, cpu_s, sum(peaks.values()) / 1024, others)
