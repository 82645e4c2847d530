"""Supervise one node of a job: the head runs everything in order, the others run a Ray worker.

Called by path from the rendered script, inside the container, once on each node. Standard library only and
Python 3.9+, because it runs inside whatever image the user has.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Callable, List, Optional

if __package__ in (None, ""):
    # By path, so that PYTHONPATH stays the image's own; modules of launch/ must not shadow others.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from launch.supervisor.devices import driver_warnings
from launch.supervisor.guard import failed_alone, flush, guarded
from launch.supervisor.limits import low_limits, raise_open_files
from launch.supervisor.node_folder import clean_up, make_temp_dir
from launch.supervisor.parts import say
from launch.supervisor.settings import Settings, UsageError, read_settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, SetupError
from singularity.toolkit import content_hash

# Slurm's own, and what sites let it send before the time limit (--signal).
_ENDING = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU,
)  # fmt: skip
_received: List[int] = []


def _remember(number: int, _frame: Optional[FrameType]) -> None:
    _received.append(number)


def _cancelled() -> Optional[int]:
    """The first signal that asked this node to end, or None."""
    return _received[0] if _received else None


def _role(settings: Settings) -> Callable[[Settings, Callable[[], Optional[int]]], int]:
    """What this node does. Hundreds of nodes import from one file system at once: each only what it needs."""
    if settings.rank == 0:
        from launch.supervisor.head import run_head

        return run_head
    from launch.supervisor.worker import run_worker

    return run_worker


def _other_toolkit(wanted: Optional[str]) -> Optional[str]:
    """What is wrong where the job was rendered with another toolkit than this one, which is the image's own."""
    if wanted is None or wanted == content_hash():  # which reads every file of the toolkit
        return None
    return f"the image has the toolkit {content_hash()}, and the job was rendered with {wanted}"


def _compare_toolkit(settings: Settings) -> None:
    other = _other_toolkit(settings.notes.get("toolkit")) if settings.rank == 0 else None
    if other:
        remedy = (
            "build the image again with this toolkit (python -m singularity.build), or set container.toolkit=bind"
        )
        code = EXIT_CODES["setup"]
        raise JobFailed(Failure("setup", settings.node, other, code, kind="image", what_to_do=remedy))


def _supervise(settings: Settings) -> int:
    started = time.time()
    try:
        _compare_toolkit(settings)
        warnings = (
            *raise_open_files(),
            *low_limits(shared_memory=not settings.logical_gpus),
            *driver_warnings(settings.min_driver),
        )
        for text in warnings:
            say(settings, f"warning: {text}", to=sys.stderr)
        in_ray = not (settings.reward_node and settings.rank == settings.reward_rank)
        if in_ray and settings.ray_cpus < settings.min_cpus:
            raise SetupError(
                f"node {settings.node} gives this job {settings.ray_cpus} CPUs; verl asks Ray for "
                f"{settings.min_cpus} or more on a node and would wait for ever; set cluster.cpus_per_node"
            )
        settings = settings.with_address()
        make_temp_dir(settings.temp_dir)
        return _role(settings)(settings, _cancelled)
    except JobFailed as error:
        return failed_alone(settings, error.failure, started)
    except SetupError as error:
        failure = Failure("setup", settings.node, str(error), EXIT_CODES["setup"])
        return failed_alone(settings, failure, started)
    except OSError as error:  # a full disk, a run directory that vanished
        cause = f"{type(error).__name__}: {error}"
        return failed_alone(settings, Failure("node", settings.node, cause, EXIT_CODES["node"]), started)
    finally:
        left = clean_up(settings.temp_dir, grace_s=3.0)
        if left:
            say(settings, f"processes {left} could not be ended", to=sys.stderr)


def main(words: Optional[List[str]] = None) -> int:
    """Exit codes: 0 done; the trainer's own; 19 to 47 and 143 as in README, "Exit codes"; 2 usage."""
    for number in _ENDING:
        signal.signal(number, _remember)
    words = sys.argv[1:] if words is None else words
    try:
        settings = read_settings(words, os.environ)
    except (UsageError, SystemExit) as error:
        # Another toolkit may know other options.
        wanted = next((word.partition("=")[2] for word in words if word.startswith("toolkit=")), None)
        told = [_other_toolkit(wanted), str(error) if isinstance(error, UsageError) else None]
        for text in filter(None, told):
            print(f"launch/node.py: {text}", file=sys.stderr)
        if isinstance(error, SystemExit):
            raise
        return 2
    if settings.staged is not None:
        settings.staged.unlink(missing_ok=True)  # the image is mounted by now, and nobody else uses this copy
    return guarded(settings, lambda: _supervise(settings), _ENDING)


if __name__ == "__main__":
    code = main()
    flush()
    # srun ends the image's file system with the step: what Python would read of it at its end is a SIGBUS.
    os._exit(code)
