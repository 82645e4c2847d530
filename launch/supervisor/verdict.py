"""How a job ended: exit codes, the first failure with its evidence, and verdict.json."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

# The trainer's own exit code is the job's; other parts have these. docs: README, "Exit codes".
EXIT_CODES: Dict[str, int] = {
    "check": 19,
    "setup": 20,
    "nodes": 21,
    "ray head": 22,
    "ray watch": 30,
    "no step": 31,
    "ray worker": 23,
    "node": 24,
    "reward server": 25,
    "prepare": 26,
    "merge": 27,
    "head": 28,
    "reward outage": 29,
    "cancelled": 143,
}

# The last line that matches the first of these wins: what names a cause, then what sounds like one.
_TELLING = (
    re.compile(r"\b\w+(Error|Exception)\b: .|^Could not override|out of memory|oom-kill|NCCL WARN", re.IGNORECASE),
    re.compile(r"error(?!=1)|exception|fatal|killed|refused|no such|abort|not found", re.IGNORECASE),
    re.compile(r""),
)
_TAIL_BYTES = 65536


@dataclass(frozen=True)
class Evidence:
    """The log line that tells most: file, line number (1-based, null for a long log), text."""

    file: str
    line: Optional[int]
    text: str


@dataclass(frozen=True)
class Failure:
    """The first thing that failed."""

    component: str
    node: str
    cause: str
    exit_code: int
    evidence: Optional[Evidence] = None

    def line(self) -> str:
        """One line for a person."""
        where = f"; {self.evidence.file}: {self.evidence.text}" if self.evidence else ""
        return f"{self.component} on {self.node} failed: {self.cause} (exit code {self.exit_code}){where}"


class SetupError(RuntimeError):
    """This node cannot take part: no address, no ports, too few GPUs."""


class JobFailed(RuntimeError):
    """Raised where a failure is found; carries it up to the one place that ends the job."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line())
        self.failure = failure


def find_evidence(log: Path) -> Optional[Evidence]:
    """The last line of a log that speaks of an error, else its last line; None for an empty or missing log."""
    try:
        size = log.stat().st_size
        with log.open("rb") as stream:
            stream.seek(max(0, size - _TAIL_BYTES))
            tail = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    whole = size <= _TAIL_BYTES
    # Colours, NULs and other control characters are for terminals, not for a verdict.
    clean = [re.sub(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f]", "", text).strip() for text in tail]
    filled = [(number, text) for number, text in enumerate(clean, 1) if text]
    if not filled:
        return None
    number, text = next(item for pattern in _TELLING for item in reversed(filled) if pattern.search(item[1]))
    return Evidence(str(log), number if whole else None, text[:500])


def read_failure(data: Dict[str, Any]) -> Failure:
    """The inverse of `dataclasses.asdict` on a Failure, for what came over the wire."""
    evidence = data.get("evidence")
    return Failure(
        component=str(data["component"]),
        node=str(data["node"]),
        cause=str(data["cause"]),
        exit_code=int(data["exit_code"]),
        evidence=Evidence(**evidence) if evidence else None,
    )


def note_failure(run_dir: Path, failure: Failure) -> None:
    """Leave a failure of a node that has no line to the head (yet) where the head looks."""
    write_json(run_dir / f"failed-{failure.node}.json", asdict(failure))


def noted_failures(run_dir: Path) -> List[Failure]:
    """What nodes left with `note_failure`, in the order of their names."""
    return [read_failure(json.loads(file.read_text())) for file in sorted(run_dir.glob("failed-*.json"))]


def write_json(path: Path, data: Dict[str, Any], mode: int = 0o644) -> None:
    """Write a JSON file so that a reader sees the old one or the whole new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
    part.replace(path)


def write_verdict(
    run_dir: Path,
    *,
    state: str,
    started: float,
    failure: Optional[Failure],
    training: Dict[str, Union[int, str, None]],
) -> None:
    """Write RUN_DIR/verdict.json.

    Args:
        state: completed, failed or cancelled.
        started: Unix seconds.
        failure: the first failure, or None.
        training: steps_done, last_checkpoint, hf_model: what there is to show, also after a failure.
    """
    stamp = "%Y-%m-%dT%H:%M:%S%z"
    told: Dict[str, Any] = asdict(failure) if failure else {}
    write_json(
        run_dir / "verdict.json",
        {
            "state": state,
            "component": told.get("component"),
            "node": told.get("node"),
            "cause": told.get("cause"),
            "evidence": told.get("evidence"),
            "exit_code": failure.exit_code if failure else 0,
            "started": time.strftime(stamp, time.localtime(started)),
            "ended": time.strftime(stamp),
            **training,
        },
    )
