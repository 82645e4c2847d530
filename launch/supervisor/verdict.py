"""How a job ended: exit codes, the first failure with its evidence, and verdict.json."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Protocol, Union

from launch.supervisor.log_tail import printable, read_tail

# The trainer's own exit code is the job's; other parts and recognised causes (causes.py) have these.
# docs: README, "Exit codes".
EXIT_CODES: Dict[str, int] = {
    "check": 19,
    "setup": 20,
    "nodes": 21,
    "ray head": 22,
    "ray worker": 23,
    "node": 24,
    "reward server": 25,
    "prepare": 26,
    "merge": 27,
    "head": 28,
    "reward outage": 29,
    "ray watch": 30,
    "no step": 31,
    "out of memory": 32,
    "cuda out of memory": 33,
    "nccl": 34,
    "port taken": 35,
    "missing path": 36,
    "disk full": 37,
    "verl config": 38,
    "stalled": 39,
    "resume": 40,
    "canary": 41,
    "permission denied": 43,
    "gpu unusable": 44,
    "import error": 45,
    "worker died": 46,
    "wall time": 47,
    "cancelled": 143,
}

# The last line that matches the first of these wins: what names a cause, then what sounds like one.
_TELLING = (
    re.compile(r"\b\w+(Error|Exception)\b: .|^Could not override|out of memory|oom-kill|NCCL WARN", re.IGNORECASE),
    re.compile(r"error(?!=1)|exception|fatal|killed|refused|no such|abort|not found", re.IGNORECASE),
    re.compile(r""),
)
_EVIDENCE_BYTES = 65536
# In what to do, where there is a checkpoint that the next job finds.
GOES_ON = "the job goes on from its last checkpoint"


@dataclass(frozen=True)
class Evidence:
    """The log line that tells most: file, 1-based line number (None where it is unknown), text."""

    file: str
    line: Optional[int]
    text: str


@dataclass(frozen=True)
class Failure:
    """The first thing that failed.

    Attributes:
        kind: id of a row of the table in causes.py; "" before it was asked.
    """

    component: str
    node: str
    cause: str
    exit_code: int
    evidence: Optional[Evidence] = None
    kind: str = ""
    what_to_do: str = ""

    def line(self) -> str:
        """One line for a person."""
        where = f"; {self.evidence.file}: {self.evidence.text}" if self.evidence else ""
        # No part of a job that was cancelled or came to its time limit has failed.
        what = (
            f"{self.cause}, on {self.node}"
            if self.component == "job"
            else (f"{self.component} on {self.node} failed: {self.cause}")
        )
        return f"{what} (exit code {self.exit_code}){where}"


class SetupError(RuntimeError):
    """This node cannot take part: no address, no ports, too few GPUs."""


class JobFailed(RuntimeError):
    """Raised where a failure is found; carries it up to the one place that ends the job."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line())
        self.failure = failure


class RecordError(ValueError):
    """A file or message that should hold a failure does not; says what is wrong with it."""


class Restart(Protocol):
    """Whether Slurm is to start the job again, and why or why not."""

    @property
    def requeue(self) -> bool: ...

    @property
    def why(self) -> str: ...


def find_evidence(log: Path) -> Optional[Evidence]:
    """The last line of a log that speaks of an error, else its last line; None for an empty or missing log."""
    lines = read_tail(log, _EVIDENCE_BYTES)
    if not lines:
        return None
    shown = [(line.number, line.text.strip()) for line in lines]
    number, text = next(item for pattern in _TELLING for item in reversed(shown) if pattern.search(item[1]))
    return Evidence(str(log), number, text)


def read_failure(data: Any) -> Failure:
    """The inverse of `dataclasses.asdict` on a Failure, for what came over the wire or lies in a file.

    Raises:
        RecordError: naming what is missing or wrong. Evidence that makes no sense is left out.
    """
    if not isinstance(data, dict):
        raise RecordError(f"a failure is a JSON object, not {printable(repr(data), 80)}")
    missing = [name for name in ("component", "node", "cause", "exit_code") if data.get(name) is None]
    if missing:
        raise RecordError(f"a failure without {', '.join(missing)}")
    code = data["exit_code"]
    if isinstance(code, bool) or not isinstance(code, int) or not 0 < code < 256:
        raise RecordError(f"a failure with the exit code {printable(repr(code), 80)}; it is 1 to 255")
    return Failure(
        component=printable(str(data["component"])),
        node=printable(str(data["node"])),
        cause=printable(str(data["cause"]), 2000),
        exit_code=code,
        evidence=read_evidence(data.get("evidence")),
        kind=printable(str(data.get("kind") or "")),
        what_to_do=printable(str(data.get("what_to_do") or ""), 2000),
    )


def read_evidence(data: Any) -> Optional[Evidence]:
    """Evidence from JSON; None for anything that is none."""
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        return None
    line = data.get("line")
    number = line if isinstance(line, int) and not isinstance(line, bool) and line > 0 else None
    return Evidence(printable(str(data.get("file") or "?"), 4096), number, printable(data["text"]))


def note_failure(run_dir: Path, failure: Failure) -> None:
    """Leave a failure of a node that has no line to the head (yet) where the head looks."""
    write_json(run_dir / f"failed-{failure.node}.json", asdict(failure))


def noted_failures(run_dir: Path) -> List[Failure]:
    """What nodes left with `note_failure`, in the order of their names."""
    return [_noted(file) for file in sorted(run_dir.glob("failed-*.json"))]


def _noted(file: Path) -> Failure:
    try:
        return read_failure(json.loads(file.read_text(errors="replace")))
    except ValueError as error:  # a node failed, and the disk that its note is on may be full
        node = file.name[len("failed-") : -len(".json")]
        return Failure("node", node, f"failed; its note {file} cannot be read: {error}", EXIT_CODES["node"])


def write_json(path: Path, data: Dict[str, Any], mode: int = 0o644) -> None:
    """Write a JSON file so that a reader sees the old one or the whole new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    # A path may hold any bytes: Python has lone surrogates for them, and JSON escapes for these.
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
        json.dump(data, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
    part.replace(path)


def write_verdict(
    run_dir: Path,
    *,
    state: str,
    started: float,
    failure: Optional[Failure],
    training: Mapping[str, Union[int, str, None]],
    phases: Optional[Mapping[str, Optional[Dict[str, Any]]]] = None,
    attempt: int = 0,
    restart: Optional[Restart] = None,
) -> None:
    """Write RUN_DIR/verdict.json. The script of the next attempt, if any, keeps it as verdict.ATTEMPT.json.

    Args:
        state: completed, failed, cancelled or requeued.
        started: Unix seconds.
        failure: the first failure, or None.
        training: steps_done, last_checkpoint, hf_model: what there is to show, also after a failure.
        phases: training and merge, each with its own state, so that neither hides the other (merging.py).
        attempt: 0, or how often Slurm has requeued the job.
        restart: what was decided about another attempt, or None where nothing was to decide.
    """
    stamp = "%Y-%m-%dT%H:%M:%S%z"
    told: Dict[str, Any] = asdict(failure) if failure else {}
    verdict = {
        "state": state,
        "component": told.get("component"),
        "node": told.get("node"),
        "kind": told.get("kind") or None,
        "cause": told.get("cause"),
        "evidence": told.get("evidence"),
        "what_to_do": _start_anew(told.get("what_to_do") or "", run_dir, training.get("last_checkpoint")) or None,
        "exit_code": failure.exit_code if failure else 0,
        "started": time.strftime(stamp, time.localtime(started)),
        "ended": time.strftime(stamp),
        "attempt": attempt,
        "steps_done": 0,
        "last_checkpoint": None,
        "hf_model": None,
        **training,
        "training": None,
        "merge": None,
        **(phases or {}),
        "requeue": bool(restart and restart.requeue),
        "requeue_why": (restart.why or None) if restart else None,
    }
    write_json(run_dir / "verdict.json", verdict)


def _start_anew(what_to_do: str, run_dir: Path, checkpoint: Union[int, str, None]) -> str:
    """`what_to_do` without a promise that the next job cannot keep."""
    if not checkpoint:
        return what_to_do.replace(GOES_ON, "it begins at step 1: no checkpoint was written")
    if run_dir in Path(str(checkpoint)).parents:
        kept = "a rehearsal keeps its checkpoints in its run directory"
        return what_to_do.replace(GOES_ON, f"it begins at step 1: {kept}")
    return what_to_do
