"""Supervise one node of a job: the head runs everything in order, the others run a Ray worker.

Called by path from the rendered script, inside the container, once on each node. Standard library only and
Python 3.9+, because it runs inside whatever image the user has.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import List, Optional

if __package__ in (None, ""):
    # By path, so that PYTHONPATH stays the image's own; modules of launch/ must not shadow others.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from launch.supervisor.head import run_head
from launch.supervisor.processes import adopt_orphans, end_descendants
from launch.supervisor.settings import Settings, UsageError, read_settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, SetupError, note_failure
from launch.supervisor.worker import run_worker

_received: List[int] = []


def _remember(number: int, _frame: Optional[FrameType]) -> None:
    _received.append(number)


def _cancelled() -> Optional[int]:
    """The first signal that asked this node to end, or None."""
    return _received[0] if _received else None


def _failed_alone(settings: Settings, failure: Failure) -> int:
    """A failure that could not be told to the head; srun ends the other nodes for this one's exit code."""
    print(f"[{settings.node}] {failure.line()}", file=sys.stderr, flush=True)
    if settings.run_dir.is_dir():
        note_failure(settings.run_dir, failure)
    return failure.exit_code


def _supervise(settings: Settings) -> int:
    try:
        settings = settings.with_address()
        settings.temp_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return run_head(settings, _cancelled) if settings.rank == 0 else run_worker(settings, _cancelled)
    except JobFailed as error:
        return _failed_alone(settings, error.failure)
    except SetupError as error:
        return _failed_alone(settings, Failure("setup", settings.node, str(error), EXIT_CODES["setup"]))
    finally:
        left = end_descendants(grace_s=3.0)
        if left:
            print(f"[{settings.node}] processes {left} could not be ended", file=sys.stderr, flush=True)
        shutil.rmtree(settings.temp_dir, ignore_errors=True)


def main(words: Optional[List[str]] = None) -> int:
    """Exit codes: 0 done; the trainer's own; 20 to 29 and 143 as in README, "Exit codes"; 2 usage."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _remember)
    try:
        settings = read_settings(sys.argv[1:] if words is None else words, os.environ)
    except UsageError as error:
        print(f"launch/node.py: {error}", file=sys.stderr)
        return 2
    adopt_orphans()
    return _supervise(settings)


if __name__ == "__main__":
    sys.exit(main())
