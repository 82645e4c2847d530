"""One command in a session of its own: time, peak memory of all its processes, and what others did meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.1


@dataclass(frozen=True)
class Run:
    """A command that ended well.

    Attributes:
        peak_mib: largest sum, over the processes alive at one time, of proportional set sizes: what they share is
            counted once. Looked at ten times a second.
        others: part of the machine's CPU time, 0 to 1, that went elsewhere.
    """

    seconds: float
    peak_mib: float
    others: float


def pss_mib(session: int) -> float:
    """Of all processes of a session."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) != session:
                continue
            for line in stat.with_name("smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue  # it ended meanwhile
    return total / 1024


def _busy_s() -> float:
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def _own_s() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def run(command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> Run:
    """Run `command` to its end.

    Raises:
        RuntimeError: it failed; with the end of what it wrote, all of which is in `log`.
    """
    peak, busy, own, begun = 0.0, _busy_s(), _own_s(), time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            while True:
                peak = max(peak, pss_mib(child.pid))
                try:
                    child.wait(_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    seconds = time.monotonic() - begun
    if child.returncode != 0:
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {child.returncode}: {said}")
    others = max(0.0, (_busy_s() - busy) - (_own_s() - own)) / (seconds * (os.cpu_count() or 1))
    return Run(seconds, peak, others)
