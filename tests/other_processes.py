"""Waiting for other processes: no slow machine reaches the limit, only a broken product."""

import fcntl
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LIMIT_S = 180.0


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = LIMIT_S) -> None:
    """Poll until `condition` holds.

    Raises:
        TimeoutError: it did not within `limit_s`.
    """
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {limit_s:.0f} s")
        time.sleep(0.02)


def written_pid(file: Path) -> int:
    """The number that a process writes into a file, once its line is whole."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), f"pid in {file}")
    return int(file.read_text())


def wait_for_end(pid: int) -> None:
    """Wait until a process is gone, or ended and not reaped yet."""

    def ended() -> bool:
        try:
            return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(ended, f"end of process {pid}")


def interrupted(process: "subprocess.Popen[str]", pipe: BinaryIO) -> str:
    """What a process tells on standard error after Ctrl-C, given while it waits for more from a pipe.

    Raises:
        TimeoutError: it did not end within LIMIT_S.
    """

    def waits() -> bool:
        unread = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]
        return not any(unread) and state == "S"

    # Python does not look for signals between the reads that fill one buffer: one of then does not end the next.
    wait_until(waits, "read of an empty pipe")
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise TimeoutError(f"{process.args!r} went on after Ctrl-C") from None
