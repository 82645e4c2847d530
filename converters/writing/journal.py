"""What is finished of a conversion, on disk, so that `--resume` can go on after a kill.

A file of JSON lines in the folder that is being written: the plan's digest and the writer, then a line for each
tensor when all of it is written. Its lock tells whether the writer lives. A last line that was cut is dropped.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from converters.errors import ConvertError
from converters.planning.steps import Step

NAME = "merge_journal.jsonl"
_FORMAT = 1
_PATIENCE_S = 1.0
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@dataclass
class Journal:
    """Open and locked; threads may share it.

    Attributes:
        finished: tensor -> CRC-32 of its bytes, from earlier lines.
        damage: why its lines cannot be read; None: they were.
    """

    path: Path
    file: int
    plan: str
    damage: str | None = None
    finished: dict[str, int] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, name: str, crc: int) -> None:
        """A tensor is written to its end; what was read for it is checked.

        Raises:
            ValueError: the journal is closed.
        """
        with self._lock:
            if self.file < 0:
                raise ValueError(f"{self.path}: closed")
            self.finished[name] = crc
            _append(self.file, {"tensor": name, "crc32": f"{crc:08x}"})

    @property
    def in_place(self) -> bool:
        """Whether its folder is still this writer's: not renamed, not taken by another."""
        return _is_at(self.file, self.path)

    def close(self) -> None:
        """Let go of the lock of the file; no line is written any more.

        A thread that a dead file system holds in `add` keeps the file until the process ends.
        """
        if self._lock.acquire(timeout=_PATIENCE_S):
            try:
                if self.file >= 0:
                    os.close(self.file)
                self.file = -1
            finally:
                self._lock.release()


def digest(steps: Sequence[Step], files: Iterable[Path], **options: object) -> str:
    """A name for a conversion: its steps, options, and the files that are read, by size and time of change."""
    stats = {str(path.absolute()): path.stat() for path in files}
    known = [(path, status.st_size, status.st_mtime_ns) for path, status in sorted(stats.items())]
    told = [
        (
            (step.source.name, step.source.dtype, step.source.shape, step.index),
            [(output.name, output.dtype, output.shape) for output in step.outputs],
            [(run.source_row, run.rows, run.output, run.output_row) for run in step.runs],
            [(added.a.name, added.b.name, added.scale) for added in step.added],
        )
        for step in steps
    ]
    text = json.dumps([_FORMAT, known, told, sorted(options.items())], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def begin(path: Path, plan: str) -> Journal:
    """A new journal.

    Raises:
        OSError: it cannot be written.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    _locked(file)
    _append(file, {"made_by": "converters.merge", "plan": plan, "host": socket.gethostname(), "pid": os.getpid()})
    return Journal(path, file, plan)


def take_over(path: Path) -> Journal | None:
    """The journal of a writer that is gone; None: somebody else took it meanwhile.

    Raises:
        ConvertError: its writer lives, or there is a folder and no journal in it.
    """
    folder = path.parent
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not folder.exists():
            return None
        raise ConvertError(
            f"{folder}: was not made by this command (no {NAME}). Remove it, or choose another target."
        ) from error
    try:
        lock = _locked(file)
        if lock is not False and not _is_at(file, path):
            os.close(file)
            return None
        head, finished, damage = _read(file)
        if lock is False or (lock is None and _may_live(head)):
            raise ConvertError(
                f"{folder}: another merge writes here (process {head.get('pid')} on {head.get('host')}). Wait for "
                "it, or end it; if there is no such process, remove the folder."
            )
    except BaseException:
        os.close(file)
        raise
    return Journal(path, file, str(head.get("plan")), damage, finished)


def _locked(file: int) -> bool | None:
    """True: by us; False: by another; None: this file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether `path` is still this file: it may have been taken away before we had the lock."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _may_live(head: Mapping[str, object]) -> bool:
    pid = head.get("pid")
    if head.get("host") != socket.gethostname() or not isinstance(pid, int):
        return True
    return lives(pid)


def lives(pid: int) -> bool:
    """Whether a process of this host has this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _read(file: int) -> tuple[dict[str, object], dict[str, int], str | None]:
    """First line, finished tensors, and what is damaged; a cut line is taken off, so that the next is a line."""
    data = os.pread(file, os.fstat(file).st_size, 0)
    whole = data.rfind(b"\n") + 1
    try:
        lines = [json.loads(line) for line in data[:whole].splitlines()]
        finished = {str(line["tensor"]): int(line["crc32"], 16) for line in lines[1:]}
        head = lines[0] if lines else {}
        if not isinstance(head, dict):
            raise ValueError("no table in its first line")
    except (ValueError, KeyError, TypeError) as error:
        return {}, {}, repr(error)
    if whole != len(data):
        os.ftruncate(file, whole)
    return head, finished, None


def _append(file: int, line: Mapping[str, object]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(file, data) :]
