"""A process above the supervisor of a node that does nothing but outlive it.

A supervisor that is killed (kill -9, the kernel for want of memory) leaves Ray, the trainer and its folder behind,
and says nothing. This one notes the death, ends what is left, and only then lets srun know.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from types import FrameType
from typing import Callable, Optional, Sequence

from launch.supervisor.node_folder import clean_up, remove_secrets
from launch.supervisor.parts import say
from launch.supervisor.processes import adopt_orphans, note_shared_memory
from launch.supervisor.settings import Settings
from launch.supervisor.verdict import EXIT_CODES, Failure, note_failure

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_guard = 0


def guarded(settings: Settings, supervise: Callable[[], int], signals: Sequence[int]) -> int:
    """Run `supervise` in a child process; returns its exit code, or the node's when it was killed.

    Args:
        signals: to be passed on to the child. Slurm sends them to both, twice is as good as once.
    """
    global _guard
    started = time.time()
    adopt_orphans()
    _guard = os.getpid()
    child = os.fork()
    if child == 0:
        _run(settings, supervise, started)

    def pass_on(number: int, _frame: Optional[FrameType]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in signals:
        signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else _killed(settings, os.WTERMSIG(status), started)
    if settings.rank == 0:
        with contextlib.suppress(OSError):  # the script then waits for srun, however long that takes
            settings.over.write_text(f"{code}\n")
    return code


def _run(settings: Settings, supervise: Callable[[], int], started: float) -> None:
    """The child; does not return. What nobody foresaw is told as well, and has a verdict."""
    component = "head" if settings.rank == 0 else "node"
    code = EXIT_CODES[component]
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        adopt_orphans()
        code = supervise()
    except Exception as error:  # noqa: BLE001  a mistake of ours
        with contextlib.suppress(OSError, ValueError):  # nobody takes stderr any more
            traceback.print_exc()
        failure = Failure(component, settings.node, f"{type(error).__name__}: {error}", code)
        code = failed_alone(settings, failure, started)
    finally:
        flush()
        # srun ends the image's file system with the step: what Python would read of it at its end is a SIGBUS.
        os._exit(code)


def flush() -> None:
    """Let out what this process has said; one whose output goes nowhere ends with its own code all the same."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def is_unguarded() -> bool:
    """Whether the process above has gone: the signal that came with it is no cancellation."""
    return _guard not in (0, os.getppid())


def _killed(settings: Settings, number: int, started: float) -> int:
    """Tell of the supervisor's death, and leave the node clean; returns the exit code."""
    note_shared_memory()  # the parts are being ended as well, by the kernel
    component = "head" if settings.rank == 0 else "node"
    kind = "killed" if settings.rank == 0 else "node-lost"
    cause = f"the supervisor was killed by signal {number}"
    failure = Failure(component, settings.node, cause, EXIT_CODES[component], kind=kind)
    code = failed_alone(settings, failure, started)
    clean_up(settings.temp_dir, grace_s=3.0)
    if settings.rank == 0:
        remove_secrets(settings.secret_files)
    return code


def _told_code(settings: Settings, started: float) -> Optional[int]:
    """The exit code in the verdict that this attempt's head has written; None without one."""
    file = settings.run_dir / "verdict.json"
    if not file.exists() or file.stat().st_mtime < started - 1.0:  # clocks of file servers differ a little
        return None
    code = json.loads(file.read_text()).get("exit_code")
    return code if isinstance(code, int) else None


def failed_alone(settings: Settings, failure: Failure, started: float) -> int:
    """A failure that no head can tell; returns the exit code. srun ends the other nodes for it."""
    say(settings, failure.line(), to=sys.stderr)
    try:
        if settings.rank == 0 and (told := _told_code(settings, started)) is not None:
            return told  # srun ends what is left of the step, and this process with it
        note_failure(settings.run_dir, failure)
        if settings.rank == 0:
            from launch.supervisor.outcome import conclude  # no other node needs it

            return conclude(settings, failure, started)
    except Exception as error:  # noqa: BLE001  it may be the run directory that fails; the line above is out
        say(settings, f"this failure cannot be noted: {error}", to=sys.stderr)
    return failure.exit_code
