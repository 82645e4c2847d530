"""Logs have a limit: one that floods loses its middle, while its writer goes on.

The writers have their log open with O_APPEND, so that after a truncation they go on at the new end.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List

# A gigabyte is some days of a loud trainer, and fits in what a shared file system leaves a user.
LOG_LIMIT = 2**30
# Of the beginning (how it started) and of the end (what went wrong).
KEEP = 16 * 2**20
_CHUNK = 2**16


@dataclass(frozen=True)
class Cut:
    """Where bytes of a log went: those from `head` on are gone up to `tail_was`, which is now at `tail_is`."""

    head: int
    tail_was: int
    tail_is: int

    def moved(self, offset: int) -> int:
        """The place of what was at `offset`; the beginning of the end part for what is gone."""
        if offset <= self.head:
            return offset
        return max(offset - self.tail_was, 0) + self.tail_is


_cuts: Dict[Path, List[Cut]] = {}


def cuts_of(log: Path) -> List[Cut]:
    """What this process has cut out of a log, in order."""
    return _cuts.get(log, [])


def cut_log(log: Path, limit: int = LOG_LIMIT, keep: int = KEEP) -> int:
    """Cut the middle out of a log of more than `limit` bytes; returns how many bytes are gone, mostly 0.

    The first and the last `keep` bytes stay, as whole lines, with a line between them that tells what was cut. The
    end is copied to where the middle was, with what the writer adds meanwhile, and then the file is shortened; a
    line that is written in this last instant may be lost. Costs one look at the size, and `keep` bytes of copying
    (at most eight times that behind a fast writer) for a cut.

    Raises:
        OSError: the log is there and cannot be cut.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= max(limit, 2 * keep + _CHUNK):
        return 0
    descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    try:
        first = os.pread(descriptor, keep, 0)
        head = first.rfind(b"\n") + 1 or len(first)
        tail = size - keep
        tail += os.pread(descriptor, keep, tail).find(b"\n") + 1
        gone = tail - head
        told = f"\n[launch: {gone} bytes of this log were cut out here: it had more than {limit}]\n".encode()
        os.pwrite(descriptor, told, head)
        os.ftruncate(descriptor, _copy_down(descriptor, tail, head + len(told), 8 * keep))
    finally:
        os.close(descriptor)
    _cuts.setdefault(log, []).append(Cut(head, tail, head + len(told)))
    return gone


def _copy_down(descriptor: int, source: int, target: int, most: int) -> int:
    """Copy what is at `source`, to the end of the file or at most some bytes; returns where the copy ends."""
    until = target + most
    while target < until:
        data = os.pread(descriptor, _CHUNK, source)
        if not data:
            break
        os.pwrite(descriptor, data, target)
        source, target = source + len(data), target + len(data)
    return target


def cut_logs(logs: Iterable[Path], limit: int = LOG_LIMIT, keep: int = KEEP) -> List[str]:
    """Cut each log that is over the limit; a line for each that was. For every few seconds."""
    told = []
    for log in logs:
        try:
            gone = cut_log(log, limit, keep)
        except OSError as error:
            told.append(f"{log} has more than {limit} bytes and cannot be cut: {error}")
            continue
        if gone:
            told.append(f"{log} had more than {limit} bytes: {gone} bytes of its middle are gone")
    return told
