"""What others did on the cores of a measurement: the noise of a shared machine."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds so far: busy on some cores, and of those in our own processes."""

    at: float
    busy: float
    own: float


def _busy(cores: Sequence[int]) -> float:
    wanted = {f"cpu{core}" for core in cores}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total * _TICK_S


def _own(sessions: Sequence[int]) -> float:
    """CPU seconds of this process, and of all living ones of those sessions with their ended children."""
    total = sum(os.times()[:2])
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) in sessions:
            total += sum(int(field) for field in fields[11:15]) * _TICK_S
    return total


def cpu_times(cores: Sequence[int], sessions: Sequence[int]) -> CpuTimes:
    """The counters now."""
    return CpuTimes(time.monotonic(), _busy(cores), _own(sessions))


def share_of_others(before: CpuTimes, after: CpuTimes, cores: Sequence[int]) -> float:
    """The part of the cores' time, 0 to 1, that went to processes which are not part of the comparison."""
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / ((after.at - before.at) * len(cores)))
