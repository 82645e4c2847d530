"""What Slurm says of one job: in the queue, or how it ended. Silent where there is no Slurm."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from launch.supervisor.log_tail import printable

_TIMEOUT_S = 10.0
_UNKNOWN = {"", "N/A", "Unknown", "None", "(null)"}


@dataclass(frozen=True)
class QueueState:
    """One job as Slurm tells it.

    Attributes:
        state: Slurm's word, e.g. PENDING, RUNNING, TIMEOUT, NODE_FAIL.
        reason: why it waits (squeue's %r); "" when it does not.
        start: when it started or is expected to; "" when Slurm does not know.
        end: when its allocation ends; "" when Slurm does not know.
        ended: it is not in the queue any more.
    """

    state: str
    reason: str = ""
    start: str = ""
    end: str = ""
    ended: bool = False


def ask(job_id: str) -> QueueState | None:
    """The state of a job, or None when Slurm cannot be asked or does not know it.

    Uses squeue, and sacct for a job that has left the queue, each for 10 s at most.
    """
    if not (job_id.isascii() and job_id.isdigit()):
        return None
    text = _output(["squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T|%r|%S|%e"])
    if text is not None and text.strip():
        return parse_squeue(text)
    # The newest record comes last: a requeued job has several.
    text = _output(["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=State"])
    return parse_sacct(text) if text and text.strip() else None


def parse_squeue(text: str) -> QueueState | None:
    """The first line of `squeue --format=%T|%r|%S|%e`; a reason may hold anything but a bar."""
    fields = [_known(field) for field in text.strip().splitlines()[0].split("|")]
    if len(fields) != 4 or not re.fullmatch(r"[A-Z_]+", fields[0]):
        return None
    state, reason, start, end = fields
    ended = state not in {
        "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
        "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT",
    }  # fmt: skip
    return QueueState(state, reason if state == "PENDING" else "", start, end, ended)


def parse_sacct(text: str) -> QueueState | None:
    """The last line of `sacct --format=State`, e.g. "CANCELLED by 1000"."""
    word = printable(text.strip().splitlines()[-1]).split(" ")[0]
    return QueueState(word, ended=True) if re.fullmatch(r"[A-Z_]+", word) else None


def _known(field: str) -> str:
    text = printable(field, 100)
    return "" if text in _UNKNOWN else text


def _output(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # a controller that is away says nothing of the job
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
