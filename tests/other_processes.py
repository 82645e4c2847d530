"""Waiting for other processes: no slow machine reaches the limit, only a broken product."""

import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 120.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds.

    Raises:
        TimeoutError: it did not within LIMIT_S.
    """
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {LIMIT_S:.0f} s")
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
