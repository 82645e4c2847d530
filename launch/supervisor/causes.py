"""The causes that a job can end of: what each means and what to do; and which of them a failure has.

Exit codes: the trainer's own code is the job's, except that a plain 1 (a Python traceback), or 137 with a kill
for want of memory on record, becomes the code of the recognised cause. Another part's failure has the code of the
cause that its log shows, else the part's. A node that cannot take part has 20 whatever the reason, as the script
has that checks its paths; and what was cancelled keeps its code.

    python3 -m launch.supervisor.causes        prints the tables that the README has
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from launch.supervisor.cause_finder import Found, find_cause
from launch.supervisor.symptoms import LINKS, raised_kind, said_kind
from launch.supervisor.verdict import EXIT_CODES, GOES_ON, Evidence, Failure

# Of other parts' logs: what can take this part with it shows in their last lines.
_OTHER_BYTES = 256 << 10
_OTHER_LOGS = 64
_FROM_OTHERS = ("out-of-memory", "disk-full")
_SIGNAL = re.compile(r"killed by signal (\d+)")


@dataclass(frozen=True)
class Cause:
    """A row of the table.

    Attributes:
        code: the job's exit code; None: that of the part that failed.
        meaning: what happened, for the README and the status.
        what_to_do: one sentence for the user.
    """

    kind: str
    code: Optional[int]
    meaning: str
    what_to_do: str


def _row(kind: str, meaning: str, what_to_do: str, code: str = "") -> Cause:
    return Cause(kind, EXIT_CODES.get(code or kind.replace("-", " ")), meaning, what_to_do)


_ROWS = (
    _row(
        "out-of-memory",
        "the memory of a node (not of a GPU) did not suffice: the kernel, Slurm or Ray ended a process, or "
        "Python could not allocate",
        "ask for more with cluster.mem (or whole nodes), or hold less: fewer offloaded states, a smaller "
        "batch, fewer data workers; checkpoints need room beside the model",
    ),
    _row(
        "cuda-out-of-memory",
        "the memory of a GPU did not suffice",
        "lower the engine's share (rollout.gpu_memory_utilization) or the micro batch or token budget of the "
        "actor, or offload its optimizer; raise the share only where the engine says that it has too little",
    ),
    _row(
        "nccl",
        "GPUs of the job could not talk to each other, or one waited in vain for the others",
        "see which rank stopped first in the trainer's log; on a network fault set cluster.network_interface "
        "and try again, with NCCL_DEBUG=INFO in container.env; leave out a node that shows up twice",
    ),
    _row(
        "port-taken",
        "a port of the job was in use on a node",
        "submit again: the ports come from the job id; where a part has a fixed port in an override, remove it",
    ),
    _row(
        "missing-path",
        "an image, model, data file or other path was not there",
        "correct the path, or add its folder to container.binds so that every node sees it in the container",
    ),
    _row(
        "image",
        "the image is damaged, is another than the one that the job was rendered with, or lacks packages of its "
        "stack",
        "look at it with python -m singularity.inspect IMAGE; copy or build it again, or render the job again",
    ),
    _row(
        "disk-full",
        "a file could not be written: no space left, or the quota is used up",
        "free space or ask for quota where the evidence points; keep fewer checkpoints (checkpoint.keep) and "
        "submit again: the job goes on from the last whole one",
    ),
    _row(
        "verl-config",
        "verl or Hydra refused the configuration",
        "correct the key that the evidence names, in the job or in its overrides, and render again",
    ),
    _row(
        "stalled",
        "nothing new was in the trainer's log for longer than recovery.stalled_s",
        "look at the last lines of the trainer's log; raise recovery.stalled_s if a step of this job may take "
        "that long",
    ),
    _row(
        "permission-denied",
        "a file or folder may not be read or written by this user on that node",
        "correct the mode or owner of what the evidence names; a read-only bind ends in :ro",
    ),
    _row(
        "gpu-unusable",
        "a GPU cannot be used: no device, a driver that does not fit the image's CUDA, or a hardware fault",
        "try `nvidia-smi` on that node and inside the image; tell the site, and leave the node out (--exclude in "
        "cluster.extra_sbatch)",
    ),
    _row(
        "import-error",
        "a Python module or library is missing in the image or does not fit the others in it",
        "use an image with the verl that the job names; a module of your own must be in a folder of "
        "container.binds and on PYTHONPATH in container.env",
    ),
    _row(
        "worker-died",
        "a process of verl on some node was killed or crashed and left no message of its own",
        "look at that node's kernel log (dmesg) for a kill or a fault; memory is the usual reason: see "
        "out-of-memory",
    ),
    _row(
        "reward-outage",
        "the reward client has no score for a response: the server was not reached, had no capacity or refused",
        "look at the reward server's log; raise reward.deadline_s, or give the server a GPU or a node of its own "
        "(reward.placement)",
    ),
    _row(
        "reward-hang",
        "the reward server ran but answered nothing for longer than reward.unresponsive_s",
        "look at the last lines of its log; raise reward.unresponsive_s if one answer of this model may take "
        "that long",
        "reward server",
    ),
    _row(
        "node-lost",
        "a node is gone: it lost its power or its network, or its supervisor was killed",
        "look at the node's state (sinfo); submit again, or let recovery.requeue do it; leave the node out if it "
        "fails twice",
        "node",
    ),
    _row(
        "ray-node-lost",
        "Ray on a node ended while the job ran",
        "look at the node's own log; submit again, or let recovery.requeue do it; leave the node out if it fails "
        "twice",
        "ray worker",
    ),
    _row(
        "nodes-missing",
        "not all nodes joined, or Ray has other GPUs than the job needs",
        "look at the log of the node that is missing; raise cluster.join_timeout_s where images load slowly",
        "nodes",
    ),
    _row(
        "no-step",
        "the trainer ended well and did not train",
        "look whether the filter of long prompts left any rows: data.max_prompt_length, and prompts that are "
        "lists of messages",
    ),
    _row(
        "wall-time",
        "the time limit of the allocation came",
        f"submit again: {GOES_ON}; or set recovery.requeue, a longer cluster.time, more frequent checkpoints",
    ),
    _row("cancelled", "a user or the site ended the job", f"submit again: {GOES_ON}"),
    _row(
        "killed",
        "a signal from outside ended the part, and nothing says why",
        "look at the node's kernel log (dmesg) and at sacct for what ended it",
        "-",
    ),
    _row("setup", "a node cannot take part", "see the cause: it says what the node lacks"),
    _row("unrecognised", "none of the causes above", "read the evidence, and the log around it", "-"),
)
CAUSES: Dict[str, Cause] = {row.kind: row for row in _ROWS}

_OF_COMPONENT = {
    "nodes": "nodes-missing",
    "node": "node-lost",
    "ray worker": "ray-node-lost",
    "ray head": "ray-node-lost",
    "ray watch": "ray-node-lost",
    "reward client": "reward-outage",
    "setup": "setup",
    "job": "cancelled",
}
# These have the code that they came with, whatever their cause.
_KEEP_CODE = ("setup", "job", "reward client")


def diagnose(failure: Failure, logs: Sequence[Path], oom_kills: Optional[int]) -> Failure:
    """The failure with its cause: kind, exit code by the rule above, evidence, what to do.

    A kind that the failure has already stays, and its exit code too.

    Args:
        failure: the first thing that failed.
        logs: of the run's parts on all nodes (NODE-COMPONENT.log). The failed part's own decides; in the others
            only what takes other parts with it counts: memory and disks.
        oom_kills: processes of the job that kernels killed for want of memory; None: not told.
    """
    if failure.kind:
        return _told(failure, failure.kind, None, keep_code=True)
    if failure.exit_code == EXIT_CODES["no step"] and "without a training step" in failure.cause:
        return _told(failure, "no-step", None, keep_code=True)
    number = _signal_of(failure)
    kind, evidence = _look(failure, logs, number)
    if failure.component == "job":
        kind = kind if kind == "wall-time" else "cancelled"
    elif (oom_kills or 0) > 0 and kind in ("", *LINKS):
        kind = "out-of-memory"
        killed = f"kernels killed {oom_kills} of the job's processes for want of memory"
        failure = replace(failure, cause=f"{failure.cause}; {killed}")
    elif not kind:
        kind = _OF_COMPONENT.get(failure.component, "unrecognised" if number is None else "killed")
    return _told(failure, kind, evidence, keep_code=False)


def _told(failure: Failure, kind: str, evidence: Optional[Evidence], *, keep_code: bool) -> Failure:
    row = CAUSES.get(kind, CAUSES["unrecognised"])
    return replace(
        failure,
        kind=kind,
        what_to_do=failure.what_to_do or row.what_to_do,
        evidence=evidence or failure.evidence,
        exit_code=failure.exit_code if keep_code else _code(failure, row),
    )


def _code(failure: Failure, row: Cause) -> int:
    own = failure.exit_code
    if row.code is None or failure.component in _KEEP_CODE:
        return own
    if failure.component == "trainer":
        plain = own == 1 or (own == 137 and row.kind == "out-of-memory")
        return row.code if plain else own
    # A lost node or Ray is told more exactly by the part's own code.
    return own if row.kind == _OF_COMPONENT.get(failure.component) else row.code


def _signal_of(failure: Failure) -> Optional[int]:
    match = _SIGNAL.search(failure.cause)
    if match:
        return int(match.group(1))
    # Linux has 64 signals; 255 is sys.exit(-1).
    return failure.exit_code - 128 if failure.component == "trainer" and 128 < failure.exit_code <= 192 else None


def _look(failure: Failure, logs: Sequence[Path], number: Optional[int]) -> Tuple[str, Optional[Evidence]]:
    """(kind or "", evidence): of the part's own log, then of the cause as it is put, then of other logs."""
    own = _own_logs(failure, logs)
    first: Tuple[str, Optional[Evidence]] = ("", None)
    for log in own:
        found = find_cause(log, killed=number is not None)
        # SIGKILL and SIGTERM come from outside: no error that a process can write explains them.
        if found and not (number in (9, 15) and found.kind not in ("out-of-memory", "wall-time")):
            first = (found.kind, _evidence(log, found))
            break
    if first[0] not in ("", *LINKS):
        return first
    # The supervisor's or the script's own words: an exception of theirs, a path that is not there.
    words = raised_kind(failure.cause) or said_kind(failure.cause)
    if words:
        return words, first[1]
    for log in [log for log in logs if log not in own][:_OTHER_LOGS]:
        found = find_cause(log, killed=True, size=_OTHER_BYTES)
        if found and found.kind in _FROM_OTHERS:
            return found.kind, _evidence(log, found)
    return first


def _evidence(log: Path, found: Found) -> Evidence:
    return Evidence(str(log), found.line.number, found.line.text.strip())


def _own_logs(failure: Failure, logs: Sequence[Path]) -> List[Path]:
    name = f"{failure.node}-{failure.component.replace(' ', '-')}.log"
    own = [log for log in logs if log.name == name]
    if not own and failure.evidence:
        own = [log for log in logs if str(log) == failure.evidence.file]
    return own or (list(logs) if len(logs) == 1 else [])


def exit_code_rows() -> List[str]:
    """Rows of README's table "Exit codes" for the causes; those that are also parts of a job are told there."""
    named = {row.kind.replace("-", " "): row for row in _ROWS}
    own = ((code, name) for name, code in EXIT_CODES.items() if name in named and 31 < code < 128)
    return [f"| {code} | {name} | {named[name].meaning} |" for code, name in own]


def cause_rows() -> List[str]:
    """Rows of a table of all kinds: kind, meaning, what to do."""
    return [f"| `{row.kind}` | {row.meaning} | {row.what_to_do} |" for row in _ROWS]


if __name__ == "__main__":
    print("\n".join([*exit_code_rows(), "", *cause_rows()]))
