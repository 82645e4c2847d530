"""Judge how a job ended: the cause, another start or not, the verdict."""

import contextlib
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Optional

from launch.supervisor.causes import diagnose
from launch.supervisor.merging import Trained, phases, read_trained, what_to_do
from launch.supervisor.parts import say
from launch.supervisor.restarts import Restart, decide
from launch.supervisor.settings import Settings
from launch.supervisor.training_log import latest_checkpoint, steps_done
from launch.supervisor.verdict import Failure, write_verdict


def conclude(
    settings: Settings,
    failure: Optional[Failure],
    started: float,
    *,
    oom_kills: int = 0,
    hf_model: Optional[Path] = None,
) -> int:
    """Find the cause of a failure, decide about another start, write the verdict; returns the job's exit code.

    Args:
        failure: the first thing that failed; None: nothing did.
        started: Unix seconds.
        oom_kills: processes of the job, on all nodes, that kernels have killed for want of memory.
    """
    trained = read_trained(settings)
    if failure is not None:
        try:
            failure = diagnose(failure, sorted(settings.logs.glob("*.log")), oom_kills)
        except Exception:  # noqa: BLE001  a disk that is gone, a mistake of ours: the failure is known all the same
            _tell_traceback()
        if trained is not None and settings.merge:
            failure = replace(failure, what_to_do=what_to_do(settings, failure, trained))
    say(settings, failure.line() if failure else f"completed; verdict: {settings.run_dir / 'verdict.json'}")
    try:
        _write(settings, failure, started, hf_model, trained)
    except Exception as error:  # noqa: BLE001  the exit code and the line above still tell
        _tell_traceback()
        say(settings, f"verdict.json cannot be written: {error}")
    return failure.exit_code if failure else 0


def _tell_traceback() -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody takes stderr any more
        traceback.print_exc()


def _write(
    settings: Settings,
    failure: Optional[Failure],
    started: float,
    hf_model: Optional[Path],
    trained: Optional[Trained],
) -> None:
    # An attempt that only merged has no log of steps.
    steps = max(steps_done(settings.log("trainer")), trained.step if trained else 0)
    saved = latest_checkpoint(settings.checkpoint_dir)
    saved_step = int(saved.name.rpartition("_")[2]) if saved else None
    restart = decide(settings, failure, steps, saved_step)
    told = phases(settings, failure, hf_model, steps)
    if failure is not None and trained is not None and settings.merge:
        say(settings, f"the training is complete: step {steps}, {saved or 'without a checkpoint'}")
        if restart.requeue:
            restart = replace(restart, why=f"{restart.why}; the training is complete, only its merge is left")
        elif told["merge"] and told["merge"]["command"]:
            say(settings, f"to merge it by hand on a login node: {told['merge']['command']}")
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
        phases=told,
        restart=restart,
    )


def _state(failure: Optional[Failure], restart: Restart) -> str:
    if failure is None:
        return "completed"
    if restart.requeue:
        return "requeued"
    return "cancelled" if failure.kind == "cancelled" else "failed"
