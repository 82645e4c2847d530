"""Run the job from its head node, and judge how it ended: the cause, another start or not, the verdict."""

import time
import traceback
from typing import Dict, Optional, Tuple, Union

from launch.supervisor.causes import diagnose
from launch.supervisor.head import Head
from launch.supervisor.limits import oom_kills
from launch.supervisor.restarts import Restart, decide
from launch.supervisor.settings import Settings
from launch.supervisor.training_log import latest_checkpoint
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, SetupError, write_verdict
from launch.supervisor.watch import Cancelled, say

Training = Dict[str, Union[int, str, None]]


def run_head(settings: Settings, cancelled: Cancelled) -> int:
    """Run the job and write its verdict; returns the job's exit code."""
    started = time.time()
    kills = oom_kills()
    head, failure = _run(settings, cancelled)
    if failure is not None:
        failure = diagnose(failure, sorted(settings.logs.glob("*.log")), (oom_kills() or 0) - (kills or 0))
    exit_code = failure.exit_code if failure else 0
    say(settings, failure.line() if failure else f"completed; verdict: {settings.run_dir / 'verdict.json'}")
    # The verdict first: what follows takes time, and a cancelled job has little.
    try:
        _judge(settings, head, failure, started)
    except OSError as error:  # the exit code and the line above still tell
        say(settings, f"verdict.json cannot be written: {error}")
    if head is not None:
        try:
            head.close(exit_code)
        except OSError as error:
            say(settings, f"while ending the job: {error}")
    return exit_code


def _run(settings: Settings, cancelled: Cancelled) -> Tuple[Optional[Head], Optional[Failure]]:
    """Whatever happens becomes a failure, since the other nodes wait for the end."""
    head: Optional[Head] = None
    try:
        head = Head(settings, cancelled)
        head.run()
    except JobFailed as error:
        return head, error.failure
    except SetupError as error:
        return head, Failure("setup", settings.node, str(error), EXIT_CODES["setup"])
    except Exception as error:  # noqa: BLE001  a full disk, a run directory that vanished, a mistake of ours
        traceback.print_exc()
        return head, Failure("head", settings.node, f"{type(error).__name__}: {error}", EXIT_CODES["head"])
    return head, None


def _judge(settings: Settings, head: Optional[Head], failure: Optional[Failure], started: float) -> None:
    if head is not None:
        head.record()
    training = head.training() if head is not None else {}
    restart = _restart(settings, failure, training)
    if restart.requeue:
        say(settings, f"to be started again: {restart.why}")
    write_verdict(
        settings.run_dir,
        state=_state(failure, restart),
        started=started,
        failure=failure,
        attempt=settings.attempt,
        training=training,
        restart=restart,
    )


def _restart(settings: Settings, failure: Optional[Failure], training: Training) -> Restart:
    saved = latest_checkpoint(settings.checkpoint_dir)
    return decide(
        settings,
        failure,
        int(training.get("steps_done") or 0),
        int(saved.name.rpartition("_")[2]) if saved else None,
    )


def _state(failure: Optional[Failure], restart: Restart) -> str:
    if failure is None:
        return "completed"
    if restart.requeue:
        return "requeued"
    return "cancelled" if failure.kind == "cancelled" else "failed"
