"""The reward log: one JSON object a line, whole lines only, bounded in size."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_LONGEST_TURN_S = 2.0

# By process, and each filled by setdefault, which is one step: a fork may catch a lock closed.
_logs: dict[tuple[int, str, int], RewardLog] = {}
_marked: dict[Path, object] = {}


def reward_log(log_path: str, max_bytes: int) -> RewardLog:
    """The log of this process for REWARD_LOG_PATH.

    A folder gets ``reward-NODE-PID.jsonl``. A path that ends in ``.jsonl`` is that file, shared by all
    processes, as in scripts written for one file.
    """
    key = (os.getpid(), log_path, max_bytes)
    known = _logs.get(key)
    if known is not None:
        return known
    path = Path(log_path)
    shared = path.suffix == ".jsonl"
    if not shared:
        path = path / f"reward-{_process()}.jsonl"
    return _logs.setdefault(key, RewardLog(path, max_bytes, shared=shared))


def mark_failure(log_path: str, record: dict[str, Any]) -> None:
    """Write ``failure-NODE-PID.json`` into the folder of the log, for the first failure of this process.

    The launcher watches for it: some trainers drop a sample whose reward function raised and go on (see
    reward/client.py), and then this file is the only thing that ends the job.
    """
    place = Path(log_path)
    folder = place.parent if place.suffix == ".jsonl" else place
    path = folder / f"failure-{_process()}.json"
    mine = object()
    # Not path.exists(): a resumed job may have left one under the same name.
    if _marked.setdefault(path, mine) is not mine:
        return
    part = folder / f".{path.name}.{threading.get_ident()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")
        finally:
            with suppress(FileNotFoundError):
                part.replace(path)  # on a full disk an empty one, which ends the job too
    except OSError as error:
        del _marked[path]  # the next failure tries again
        # The failure itself is raised in any case; this must not hide it.
        print(f"{path} cannot be written: {error}", file=sys.stderr)


def _process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class RewardLog:
    """Appends lines with one ``write`` each (O_APPEND), from any thread.

    A file that would grow past ``max_bytes`` becomes ``NAME.1.jsonl``, replacing an older one. A half line that a
    killed process left is ended before the next one begins. Processes that share a file take turns (flock), on
    one node and on several. A log that cannot be written is reported once on stderr and does not stop the
    training.
    """

    def __init__(self, path: Path, max_bytes: int, *, shared: bool = False) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._shared = shared
        self._lock = threading.Lock()
        self._fd, self._locked = -1, False
        self._reported = False
        self._patience = _LONGEST_TURN_S

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; its values are JSON values, its floats finite."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            try:
                with self._turn():
                    self._append(line)
            except OSError as error:
                self._close()  # the next line may find the file system well again
                if not self._reported:
                    self._reported = True
                    print(f"reward log {self.path} cannot be written: {error}", file=sys.stderr)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The file is open and where its path says, and no other process appends to it or rotates it."""
        self._open()
        while not self._is_current():  # rotated by another process, or removed
            self._close()
            self._open()
        try:
            yield
        finally:
            if self._locked:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._locked = False

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._fd).st_size
        if size and size + len(line) > self._max_bytes:
            self.path.replace(self.path.with_suffix(".1.jsonl"))
            self._close()  # and gives up the turn: whoever waits for it sees that the file is no longer current
            self._open()
            size = os.fstat(self._fd).st_size
        if self._ends_in_half_a_line(size):
            line = b"\n" + line
        written = os.write(self._fd, line)
        if written < len(line):  # the disk is full
            if self._locked or not self._shared:
                os.ftruncate(self._fd, size)
            raise OSError(f"{written} of {len(line)} bytes written")

    def _ends_in_half_a_line(self, size: int) -> bool:
        return size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def _open(self) -> None:
        """Open the file where it is not, and take the turn."""
        if self._fd < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if self._shared:
            self._locked = _lock(self._fd, self._patience)
            # Not again for each line, if it was in vain.
            self._patience = _LONGEST_TURN_S if self._locked else 0.0

    def _close(self) -> None:
        fd, self._fd, self._locked = self._fd, -1, False
        if fd >= 0:
            with suppress(OSError):  # ESTALE: what was written is written
                os.close(fd)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False


def _lock(fd: int, patience: float) -> bool:
    """Whether the turn was taken.

    Not where a process holds it for more than ``patience`` seconds (it has stopped), nor where the file system has
    no locks (Lustre mounted without flock): no log is worth a training that waits.
    """
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(random.uniform(0.0005, 0.005))
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                return False
            raise
        else:
            return True
