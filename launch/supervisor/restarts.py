"""Whether Slurm shall start the job again after a failure. The head decides; the batch script does it.

What a restart may heal is a fixed set of kinds (HEALS); what it cannot heal (memory, configuration, a path, a full
disk, a cancelled job) would only use node hours again. An attempt that came no further than the one before is the
last; the batch script, which decides where no head lives to do so, only counts.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

from launch.supervisor.settings import Settings
from launch.supervisor.verdict import Failure

# kind (launch.supervisor.causes) -> why another start may go on.
HEALS = {
    "wall-time": "the time limit ended it",
    "node-lost": "a node was lost",
    "ray-node-lost": "Ray lost a node",
    "nodes-missing": "a node did not join",
    "nccl": "GPUs could not talk to each other",
    "reward-outage": "the reward server could not be reached",
    "reward-hang": "the reward server hung",
    "stalled": "the trainer hung",
    "port-taken": "another program had a port",
}
# Ray's GPUs are counted when all nodes have joined (head.py): they are the same at the next start.
_WRONG_GPUS = re.compile(r"\bRay has \S+ GPUs, the job needs\b")
# The same by the part that failed, where nothing in its log says why.
_UNKNOWN = ("", "unrecognised", "killed")
_HEALS_OF_PART = {
    "node": "a node was lost",
    "ray worker": "Ray ended on a node",
    "ray head": "Ray's head ended",
    "ray watch": "Ray's head did not answer",
    "reward server": "the reward server ended",
}


@dataclass(frozen=True)
class Restart:
    """A decision, and why, for a person; "" where there was nothing to decide."""

    requeue: bool
    why: str


def decide(settings: Settings, failure: Optional[Failure], steps_done: int, saved_step: Optional[int]) -> Restart:
    """Whether the job starts again.

    Args:
        failure: what ended it; None: nothing did.
        steps_done: number of the last step in this attempt's log, 0 without one.
        saved_step: of the newest checkpoint; None: there is none.
    """
    if failure is None:
        return Restart(False, "the job is done")
    why = _heals(failure)
    if why is None:
        named = failure.kind or failure.component
        text = f"another start would not heal this ({named})"
        return Restart(False, text if settings.max_restarts else "")  # nobody has asked
    if settings.max_restarts < 1:
        without = "without Slurm nothing starts the job again"
        return Restart(False, "recovery.requeue is off" if settings.nodelist else without)
    if settings.attempt >= settings.max_restarts:
        return Restart(
            False,
            f"started again {settings.attempt} times already, recovery.max_restarts is {settings.max_restarts}",
        )
    before = _previous(settings)
    if before is not None:
        number, steps, saved = before
        if steps_done <= steps and (saved_step or 0) <= saved:
            return Restart(
                False,
                f"no new step: attempt {number} came to step {steps} (saved: {saved or 'none'}), this one to step "
                f"{steps_done} (saved: {saved_step or 'none'})",
            )
    return Restart(
        True, f"{why}; restart {settings.attempt + 1} of {settings.max_restarts}, {_goes_on(saved_step)}"
    )


def _heals(failure: Failure) -> Optional[str]:
    if failure.kind in _UNKNOWN:
        return _HEALS_OF_PART.get(failure.component)
    if failure.kind == "nodes-missing" and _WRONG_GPUS.search(failure.cause):
        return None
    return HEALS.get(failure.kind)


def _goes_on(saved_step: Optional[int]) -> str:
    return f"from step {saved_step}" if saved_step else "from the beginning: no checkpoint was written"


def _previous(settings: Settings) -> "Optional[tuple[int, int, int]]":
    """(number, last step, last saved step) of the newest attempt before this one that left a verdict."""
    for number in range(settings.attempt - 1, -1, -1):
        verdict = _verdict(settings, number)
        if verdict is not None:
            steps = verdict.get("steps_done")
            match = re.search(r"global_step_(\d+)/?$", str(verdict.get("last_checkpoint") or ""))
            return number, steps if isinstance(steps, int) else 0, int(match.group(1)) if match else 0
    return None


def _verdict(settings: Settings, attempt: int) -> Optional[Dict[str, Any]]:
    """What the batch script kept of an attempt's verdict; None without one that can be read."""
    try:
        data = json.loads((settings.run_dir / f"verdict.{attempt}.json").read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
