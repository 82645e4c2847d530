"""The trainer: followed while it runs, ended when it hangs or the time is up, judged when it has ended."""

import time
from typing import Callable, Optional

from launch.supervisor.log_follower import LogFollower
from launch.supervisor.parts import failure_of, say
from launch.supervisor.processes import Component, stop
from launch.supervisor.settings import Settings
from launch.supervisor.stalls import StallWatch, dump_stacks
from launch.supervisor.training_log import latest_checkpoint, parse_steps, steps_done
from launch.supervisor.verdict import EXIT_CODES, Evidence, Failure, JobFailed, find_evidence
from launch.supervisor.wall_time import in_last_minutes, out_of_time
from launch.supervisor.watch import Watch, out_of_time_failure

STOP_S = 3.0
_LOOK_S = 2.0


def train(settings: Settings, watch: Watch, start: Callable[[], Component]) -> None:
    """Run the trainer to its end; `start` starts it.

    Raises:
        JobFailed: it failed, hung, did nothing, or something that it needs failed.
    """
    log = settings.log("trainer")
    follower = LogFollower(log)
    trainer = start()
    stalls, clock = StallWatch(log, settings.stalled_s), _Clock(settings)
    try:
        while trainer.poll() is None:
            watch.turn()
            _tell_steps(settings, follower)
            silent = stalls.silent_s()
            if silent is not None:
                raise JobFailed(_stalled(settings, silent))
            if clock.is_out():
                raise JobFailed(out_of_time_failure(settings))
    finally:
        stop([trainer], STOP_S)
        _tell_steps(settings, follower)
    if trainer.exit_code != 0:
        watch.let_root_cause_show()
        raise JobFailed(failure_of(trainer, settings.node, int(trainer.exit_code or 1)))
    watch.turn()  # a reward outage that verl survived to its end is still one
    steps = steps_done(log)
    if settings.expect_steps and not steps and not latest_checkpoint(settings.checkpoint_dir):
        cause = "ended with 0 without a training step or a checkpoint; is the data empty after filtering?"
        raise JobFailed(Failure("trainer", settings.node, cause, EXIT_CODES["no step"], find_evidence(log)))
    say(settings, f"trainer ended well; steps in its log: {steps}")


class _Clock:
    """The end of the allocation, looked at every few seconds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = time.time()
        self._looked = 0.0
        self._saved_at: Optional[float] = None

    def is_out(self) -> bool:
        if time.monotonic() - self._looked < _LOOK_S:
            return False
        self._looked = time.monotonic()
        marker = self._settings.checkpoint_dir / "latest_checkpointed_iteration.txt"
        if self._saved_at is None:
            try:
                saved_at = marker.stat().st_mtime
            except OSError:  # there is none yet, or the file system has a hiccup
                saved_at = 0.0
            # One of an earlier attempt, or of the middle of this one, is no sign that verl has done what it can.
            if saved_at >= self._started and in_last_minutes(self._settings, saved_at):
                self._saved_at = saved_at
        return out_of_time(self._settings, time.time(), self._saved_at)


def _tell_steps(settings: Settings, follower: LogFollower) -> None:
    try:
        lines = follower.lines()
    except OSError:  # of the file system: the next look is in 0.2 s
        return
    for step in parse_steps(lines):
        told = {"score": step.reward, "seconds": step.metrics.get("timing_s/step")}
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
        say(settings, f"step {step.number}  {numbers}")


def _stalled(settings: Settings, silent_s: float) -> Failure:
    stacks = settings.log("stacks")
    dump_stacks(stacks)
    last = find_evidence(settings.log("trainer"))
    text = f"the processes of this node are in {stacks}" + (
        f"; last line of the trainer: {last.text}" if last else ""
    )
    return Failure(
        "trainer",
        settings.node,
        f"has hung: nothing in its log for {silent_s:.0f} s",
        EXIT_CODES["stalled"],
        Evidence(str(last.file if last else stacks), last.line if last else None, text[:500]),
        kind="stalled",
    )
