"""Run the job from its head node, and judge how it ended: the cause, another start or not, the verdict."""

import time
import traceback
from pathlib import Path
from typing import Optional, Tuple

from launch.supervisor.causes import diagnose
from launch.supervisor.head import Head
from launch.supervisor.limits import oom_kills
from launch.supervisor.restarts import Restart, decide
from launch.supervisor.settings import Settings
from launch.supervisor.training import steps_done
from launch.supervisor.training_log import latest_checkpoint
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, SetupError, write_verdict
from launch.supervisor.watch import Cancelled, say


def run_head(settings: Settings, cancelled: Cancelled) -> int:
    """Run the job and write its verdict; returns the job's exit code."""
    started = time.time()
    kills = oom_kills()
    head, failure = _run(settings, cancelled)
    # The verdict first: what follows takes time, and a cancelled job has little.
    hf_model = head.hf_model if head is not None else None
    exit_code = conclude(settings, failure, started, kills=kills, hf_model=hf_model)
    if head is not None:
        try:
            head.record()
            head.close(exit_code)
        except OSError as error:
            say(settings, f"while ending the job: {error}")
    return exit_code


def conclude(
    settings: Settings,
    failure: Optional[Failure],
    started: float,
    *,
    kills: Optional[int] = None,
    hf_model: Optional[Path] = None,
) -> int:
    """Find the cause of a failure, decide about another start, write the verdict; returns the job's exit code.

    Args:
        failure: the first thing that failed; None: nothing did.
        started: Unix seconds.
        kills: of processes for want of memory on this node before that, as `oom_kills` tells.
    """
    try:
        if failure is not None:
            more = (oom_kills() or 0) - (kills or 0) if kills is not None else 0
            failure = diagnose(failure, sorted(settings.logs.glob("*.log")), more)
        text = failure.line() if failure else f"completed; verdict: {settings.run_dir / 'verdict.json'}"
        say(settings, text)
        _write(settings, failure, started, hf_model)
    except OSError as error:  # the exit code and the line above still tell
        say(settings, f"verdict.json cannot be written: {error}")
    return failure.exit_code if failure else 0


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


def _write(settings: Settings, failure: Optional[Failure], started: float, hf_model: Optional[Path]) -> None:
    steps = steps_done(settings.log("trainer"))
    saved = latest_checkpoint(settings.checkpoint_dir)
    saved_step = int(saved.name.rpartition("_")[2]) if saved else None
    restart = decide(settings, failure, steps, saved_step)
    if restart.requeue:
        say(settings, f"to be started again: {restart.why}")
    write_verdict(
        settings.run_dir,
        state=_state(failure, restart),
        started=started,
        failure=failure,
        attempt=settings.attempt,
        training={
            "steps_done": steps,
            "last_checkpoint": str(saved) if saved else None,
            "hf_model": str(hf_model) if hf_model else None,
        },
        restart=restart,
    )


def _state(failure: Optional[Failure], restart: Restart) -> str:
    if failure is None:
        return "completed"
    if restart.requeue:
        return "requeued"
    return "cancelled" if failure.kind == "cancelled" else "failed"
