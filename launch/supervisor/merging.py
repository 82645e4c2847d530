"""The merge at the end of a job, told beside the training: neither hides how the other ended.

RUN_DIR/training.json is written when the trainer has ended well. Who tells of the job later (the head, its guard,
launch.status where no head lived to tell) reads it there; and an attempt that Slurm starts after a merge that was
cut off merges, and does not train again.
"""

import contextlib
import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from launch.supervisor.settings import Settings
from launch.supervisor.training_log import latest_checkpoint, steps_done
from launch.supervisor.verdict import Failure, write_json
from singularity.toolkit import TOOLKIT

TRAINED = "training.json"
# Options of converters.merge that name a folder.
_FOLDERS = ("--local_dir", "--target_dir", "--base_model")
IN_VERDICT = "merge it by hand on a login node, without a GPU: merge.command in verdict.json"


@dataclass(frozen=True)
class Trained:
    """A training that came to its end.

    Attributes:
        step: the last one; 0: no log tells.
        checkpoint: folder of the step that verl's marker names.
        attempt: that did it.
    """

    step: int
    checkpoint: Optional[str]
    attempt: int


def note_trained(settings: Settings) -> None:
    """Note that the trainer ended well. A disk that takes no note fails nothing: the merge is what is left."""
    saved = latest_checkpoint(settings.checkpoint_dir)
    step = steps_done(settings.log("trainer")) or _step_of(saved) or 0
    trained = Trained(step, str(saved) if saved else None, settings.attempt)
    with contextlib.suppress(OSError):
        told = {**asdict(trained), "state": "completed", "merge_command": by_hand(settings, saved)}
        write_json(settings.run_dir / TRAINED, told)


def forget_trained(settings: Settings) -> None:
    """What an earlier run in the same directory has noted is no news of this one; an earlier attempt's is.

    Without Slurm, who starts a script again in the directory of a run wants to train.
    """
    if settings.attempt == 0 or not settings.in_slurm:
        with contextlib.suppress(OSError):
            (settings.run_dir / TRAINED).unlink()


def read_trained(settings: Settings) -> Optional[Trained]:
    """What this attempt or one before it has noted; None: the training has not come to its end."""
    try:
        told = json.loads((settings.run_dir / TRAINED).read_text(errors="replace"))
        step, attempt, checkpoint = int(told["step"]), int(told["attempt"]), told["checkpoint"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    known = checkpoint if isinstance(checkpoint, str) else None
    return Trained(step, known, attempt) if 0 <= attempt <= settings.attempt else None


def only_to_merge(settings: Settings) -> Optional[Trained]:
    """The training that an earlier attempt of this job completed, where its merge is all that is left."""
    trained = read_trained(settings)
    if not settings.merge or trained is None or trained.attempt == settings.attempt:
        return None
    if (settings.run_dir / "hf_model").exists():  # the job was done, and a user started it again
        return None
    saved = latest_checkpoint(settings.checkpoint_dir)
    return trained if saved is not None and trained.checkpoint == str(saved) and saved.is_dir() else None


def by_hand(settings: Settings, saved: Optional[Path], *, resume: bool = False) -> Optional[str]:
    """The command that merges the checkpoint on a login node; None where there is none to merge.

    Args:
        saved: `global_step_N`, which may not be the newest any more by then.
        resume: go on from what a merge left that was cut off.
    """
    step = _step_of(saved)
    if not settings.merge or step is None:
        return None
    words = list(settings.merge)
    for place, word in enumerate(words[:-1]):
        if word in _FOLDERS:  # the part runs in the run directory
            words[place + 1] = os.path.join(str(settings.run_dir), words[place + 1])  # noqa: PTH118
    words += ["--step", str(step)] if "--step" not in words else []
    words += ["--resume"] if resume and "--resume" not in words else []
    return f"cd {shlex.quote(str(settings.host_toolkit or TOOLKIT))} && {_joined(words)}"


def phases(
    settings: Settings, failure: Optional[Failure], hf_model: Optional[Path], steps: int
) -> Dict[str, Optional[Dict[str, Any]]]:
    """`training` and `merge` of the verdict.

    training: state (completed, failed, interrupted, not started), step, checkpoint.
    merge: None for a job without; else state (completed, failed, interrupted, not run), and what is known of path,
        cause, evidence, command.

    Args:
        failure: that ended the job; None: nothing failed.
        steps: the last in this attempt's log.
    """
    saved = latest_checkpoint(settings.checkpoint_dir)
    trained = read_trained(settings)
    if trained is not None or failure is None:
        state = "completed"
    elif failure.component == "trainer":
        state = "failed"
    else:
        state = "interrupted" if settings.log("trainer").exists() else "not started"
    step = max(steps, trained.step if trained else 0)
    training: Dict[str, Any] = {"state": state, "step": step, "checkpoint": str(saved) if saved else None}
    merge = _merge(settings, failure, hf_model, saved, trained) if settings.merge else None
    return {"training": training, "merge": merge}


def _merge(
    settings: Settings,
    failure: Optional[Failure],
    hf_model: Optional[Path],
    saved: Optional[Path],
    trained: Optional[Trained],
) -> Dict[str, Any]:
    told: Dict[str, Any] = {"state": "completed", "path": None, "cause": None, "evidence": None, "command": None}
    if hf_model is not None or failure is None:
        return {**told, "path": str(hf_model) if hf_model else None}
    if trained is None:
        cause = "the training has not come to its end"
        return {**told, "state": "not run", "cause": cause, "command": by_hand(settings, saved)}
    failed = failure.component == "merge"
    evidence = asdict(failure.evidence) if failed and failure.evidence else None
    command = by_hand(settings, saved, resume=not failed)
    state = "failed" if failed else "interrupted"
    return {**told, "state": state, "cause": failure.cause, "evidence": evidence, "command": command}


def what_to_do(settings: Settings, failure: Failure, trained: Trained) -> str:
    """For a job whose training is complete and whose merge failed or was cut off."""
    done = f"the training is complete{f' (step {trained.step})' if trained.step else ''}: do not repeat it"
    first = "mend what the evidence names, then " if failure.component == "merge" else ""
    return f"{done}; {first}{IN_VERDICT}"


def _step_of(saved: Optional[Path]) -> Optional[int]:
    number = saved.name.rpartition("_")[2] if saved else ""
    return int(number) if number.isascii() and number.isdigit() else None


def _joined(words: List[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
