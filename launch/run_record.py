"""What is known of a run, from its directory and from Slurm. Reads only; survives whatever lies there.

A run directory holds verdict.json (verdict.N.json of earlier attempts), manifest.json with hashes.json, job.json,
heartbeat, failed-NODE.json, logs/ (logs.N/ of attempt N). Any of them may be missing, half-written or foreign.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.slurm_queue import QueueState
from launch.supervisor.causes import CAUSES
from launch.supervisor.log_tail import printable
from launch.supervisor.manifest import earlier_attempts, read_manifest, read_object
from launch.supervisor.merging import TRAINED
from launch.supervisor.training_log import (
    SCORE,
    STEP_SECONDS,
    Step,
    TrainingLog,
    join_attempts,
    latest_checkpoint,
    read_training,
)
from launch.supervisor.verdict import EXIT_CODES, read_evidence

# The head touches RUN_DIR/heartbeat every 10 s; shared file systems show it late.
SILENT_S = 60.0
# From the script's start to the head's first sign: images come from slow disks.
STARTING_S = 900.0
_RECENT_STEPS = 10
# What no clock, no step and no count of a real job comes to, and no date can be told of.
_ENDLESS_S = 1e11
_MOST = 10**15
# A file may be nested deeper than Python's stack.
_DEPTH = 10
_OF_SLURM = {"TIMEOUT": "timeout", "CANCELLED": "cancelled", "COMPLETED": "ended"}
_ENDED = ("completed", "failed", "cancelled", "timeout", "ended")


@dataclass
class RunRecord:
    """One run, ready to be shown. Times in seconds, dates as Unix seconds unless they are texts.

    Attributes:
        state: pending, starting, running, silent, requeued, completed, failed, cancelled, timeout, or ended (no
            verdict).
        why: what the state is concluded from, where that is not plain.
        training: how it ended, with state, step and checkpoint; None: it has not, or a verdict does not tell.
        merge: how that of its checkpoint ended, with state, path, cause, evidence and command; None: likewise.
        rewards: mean score of each step, over all attempts.
        lost_steps: steps that an attempt did after its last checkpoint, and another did again.
        fits: whether the remaining steps end before the allocation does; None when it cannot be told.
        problems: files of the run that could not be read, and why.
    """

    run_dir: str
    state: str = "running"
    why: str = ""
    job: str | None = None
    attempt: int = 0
    attempts: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    component: str | None = None
    node: str | None = None
    kind: str | None = None
    meaning: str | None = None
    cause: str | None = None
    evidence: dict[str, Any] | None = None
    what_to_do: str | None = None
    requeue_why: str | None = None
    started: str | None = None
    ended: str | None = None
    nodes: list[dict[str, Any]] = field(default_factory=list)
    nodes_expected: int | None = None
    steps: int = 0
    total_steps: int | None = None
    lost_steps: int = 0
    seconds_per_step: float | None = None
    seconds_left: float | None = None
    ends_at: float | None = None
    fits: bool | None = None
    steps_that_fit: int | None = None
    rewards: list[float] = field(default_factory=list)
    reward_first: float | None = None
    reward_last: float | None = None
    last_checkpoint: str | None = None
    training: dict[str, Any] | None = None
    merge: dict[str, Any] | None = None
    hf_model: str | None = None
    heartbeat_age: float | None = None
    queue: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen without the user."""
        return self.state in _ENDED


def read_run(run_dir: Path, ask: Callable[[str], QueueState | None] = lambda _: None) -> RunRecord:
    """Everything about a run.

    Args:
        ask: Slurm's state of a job id; not called for a run that has its last verdict.
    """
    record = RunRecord(str(run_dir))
    verdict = _object(run_dir / "verdict.json", record)
    unread = False
    try:
        manifest = read_manifest(run_dir)
    except (OSError, ValueError) as error:
        manifest, unread = {}, True
        record.problems.append(f"{run_dir / 'manifest.json'} cannot be read: {printable(str(error))}")
    match = re.fullmatch(r"run-(\d+)", run_dir.absolute().name)
    record.job = match.group(1) if match else None
    record.attempt = _whole(verdict.get("attempt")) or _whole(manifest.get("attempt")) or 0
    record.attempts = [_clean(one) for one in earlier_attempts(run_dir)]
    if record.attempts and not verdict:  # the manifest may still be of the attempt before
        record.attempt = max(record.attempt, record.attempts[-1]["attempt"] + 1)
    _add_verdict(record, verdict or _noted(run_dir, record))
    _add_phases(record, verdict, run_dir)
    _add_nodes(record, manifest)
    _add_state(record, verdict, ask)
    if unread and (record.state, record.why, record.heartbeat_age) == ("running", "", None):
        record.why = "as far as is known: its manifest.json cannot be read, and there is no heartbeat"
    _add_training(record, run_dir, manifest)
    _add_time(record, manifest)
    return record


def _add_verdict(record: RunRecord, told: dict[str, Any]) -> None:
    for name in ("component", "node", "kind", "what_to_do", "requeue_why", "started", "ended", "hf_model"):
        setattr(record, name, _text(told.get(name)))
    record.cause = _text(told.get("cause"))
    record.exit_code = _whole(told.get("exit_code"))
    evidence = read_evidence(told.get("evidence"))
    record.evidence = {"file": evidence.file, "line": evidence.line, "text": evidence.text} if evidence else None
    row = CAUSES.get(record.kind or "")
    record.meaning = row.meaning if row else None
    record.last_checkpoint = _text(told.get("last_checkpoint"))
    record.state = _text(told.get("state")) or ("failed" if record.cause else "running")


def _add_phases(record: RunRecord, verdict: dict[str, Any], run_dir: Path) -> None:
    """Training and merge, each with its own end. Where no head lived to tell, the note of the training tells."""
    told = {name: verdict.get(name) for name in ("training", "merge")}
    if not isinstance(told["training"], dict):
        noted = _object(run_dir / TRAINED, record)
        if noted.get("state") == "completed":
            told["training"] = {name: noted.get(name) for name in ("state", "step", "checkpoint")}
            if verdict and noted.get("merge_command"):
                cause, command = verdict.get("cause"), noted["merge_command"]
                told["merge"] = {"state": "interrupted", "cause": cause, "command": command}
    for name, phase in told.items():
        setattr(record, name, _clean(phase) if isinstance(phase, dict) else None)


def _add_nodes(record: RunRecord, manifest: dict[str, Any]) -> None:
    nodes, expected = manifest.get("nodes"), manifest.get("nodes_expected")
    if isinstance(nodes, list):
        record.nodes = [_clean(node) for node in nodes if isinstance(node, dict)]
    elif isinstance(manifest.get("head"), dict):  # as the first manifests had it
        record.nodes = [_clean({"rank": 0, **manifest["head"]})]
        expected = nodes
    record.nodes_expected = _whole(expected)


def _add_state(record: RunRecord, verdict: dict[str, Any], ask: Callable[[str], QueueState | None]) -> None:
    record.heartbeat_age = _age(Path(record.run_dir) / "heartbeat")
    if verdict and record.state != "requeued":
        if record.kind == "wall-time" and record.state == "failed":
            record.state = "timeout"
        return
    queue = ask(record.job) if record.job else None
    if queue is not None:
        record.queue = {name: getattr(queue, name) for name in ("state", "reason", "start", "end", "ended")}
    if record.state == "requeued" and queue is not None and queue.ended:
        record.state = _OF_SLURM.get(queue.state, "failed")
        record.why = f"Slurm says {queue.state}; it did not start the job again"
        return
    if record.state == "requeued" or record.cause is not None:
        record.why = waiting(queue) if queue and queue.state == "PENDING" else ""
        return
    damaged = (Path(record.run_dir) / "verdict.json").exists() and not verdict
    # The script writes it at the start of each attempt.
    begun = _age(Path(record.run_dir) / "job.json")
    record.state, record.why = _living(queue, record.heartbeat_age, begun, damaged)


def _age(file: Path) -> float | None:
    try:
        return max(0.0, time.time() - file.stat().st_mtime)
    except OSError:
        return None


def _living(queue: QueueState | None, age: float | None, begun: float | None, damaged: bool) -> tuple[str, str]:
    """State of a run without a verdict, or with one that cannot be read.

    Args:
        age: since the head's last sign of life, maybe in an earlier attempt.
        begun: since the script of this attempt began.
    """
    left = "its verdict is damaged" if damaged else "it left no verdict"
    if queue is not None and queue.state == "PENDING":
        return "pending", waiting(queue)
    if queue is not None and queue.ended:
        return _OF_SLURM.get(queue.state, "failed"), f"Slurm says {queue.state}; {left}"
    if damaged:
        return "ended", left
    if begun is not None and begun < STARTING_S and (age is None or age > begun):
        return "starting", f"began {duration(begun)} ago, no sign of the head yet"
    if age is not None and age > SILENT_S:
        what = "the supervisor of the head node or the node itself was killed, or their file system hangs"
        return "silent", f"no sign of life of the head for {duration(age)}: {what}"
    return "running", ""


def waiting(queue: QueueState) -> str:
    """Why a job waits and when it is expected to start."""
    reason = f": {queue.reason}" if queue.reason else ""
    return f"waits in the queue{reason}; expected start: {queue.start or 'not known yet'}"


def _add_training(record: RunRecord, run_dir: Path, manifest: dict[str, Any]) -> None:
    logs = [_read_log(folder, record) for folder in _log_folders(run_dir, manifest)]
    steps, record.lost_steps = join_attempts(logs)
    resolved = manifest.get("resolved_job")
    wanted = resolved.get("algorithm", {}) if isinstance(resolved, dict) else {}
    planned = wanted.get("total_steps") if isinstance(wanted, dict) else None
    record.total_steps = _whole(next((log.total for log in reversed(logs) if log.total), None)) or _whole(planned)
    record.steps = steps[-1].number if steps else 0
    record.rewards = [step.reward for step in steps if step.reward is not None]
    part = max(1, len(record.rewards) // 10)
    if record.rewards:
        record.reward_first = sum(record.rewards[:part]) / part
        record.reward_last = sum(record.rewards[-part:]) / part
    if record.last_checkpoint is None:
        folder = _text(manifest.get("checkpoint_dir"))
        saved = latest_checkpoint(Path(folder) if folder else run_dir / "checkpoints")
        record.last_checkpoint = printable(str(saved), 4096) if saved else None
    record.seconds_per_step = _recent_seconds(steps)
    for log in logs:
        if log.skipped:
            record.problems.append(f"{log.skipped / 1e9:.1f} GB in the middle of a trainer's log were not read")


def _log_folders(run_dir: Path, manifest: dict[str, Any]) -> list[Path]:
    """logs, logs.1, ...: a folder a attempt, in their order; where the manifest names another, that at the end."""
    numbered = {0: run_dir / "logs"}
    for folder in run_dir.glob("logs.*"):
        number = folder.name.partition(".")[2]
        if number.isascii() and number.isdigit():
            numbered[int(number)] = folder
    found = [numbered[number] for number in sorted(numbered)]
    named = manifest.get("logs")
    if isinstance(named, str) and Path(named).absolute().parent != run_dir.absolute() and Path(named).is_dir():
        found.append(Path(named))
    return found


def _read_log(folder: Path, record: RunRecord) -> TrainingLog:
    try:
        log = next(iter(sorted(folder.glob("*-trainer.log"))), None)
        return read_training(log, (SCORE, STEP_SECONDS)) if log else TrainingLog([], None)
    except OSError as error:
        record.problems.append(f"{folder} cannot be read: {printable(str(error))}")
        return TrainingLog([], None)


def _recent_seconds(steps: list[Step]) -> float | None:
    recent = [step.seconds for step in steps[-_RECENT_STEPS:] if step.seconds and 0 < step.seconds < _ENDLESS_S]
    return statistics.median(recent) if recent else None


def _add_time(record: RunRecord, manifest: dict[str, Any]) -> None:
    ends_at = manifest.get("ends_at")
    if isinstance(ends_at, (int, float)) and not isinstance(ends_at, bool) and 0 < ends_at < _ENDLESS_S:
        record.ends_at = float(ends_at)
    if record.over or record.seconds_per_step is None or not record.total_steps:
        return
    left = max(0, record.total_steps - record.steps)
    record.seconds_left = left * record.seconds_per_step
    if record.ends_at is not None:
        fit = (record.ends_at - time.time()) / record.seconds_per_step
        record.steps_that_fit = int(min(left, max(0.0, fit)))
        record.fits = record.steps_that_fit == left


def _noted(run_dir: Path, record: RunRecord) -> dict[str, Any]:
    """A failure that a node noted where the head could not even begin; {} without one."""
    notes = [note for file in sorted(run_dir.glob("failed-*.json")) if (note := _object(file, record))]
    causes = [note for note in notes if note.get("exit_code") != EXIT_CODES["cancelled"]]
    return {"state": "failed", **(causes or notes)[0]} if notes else {}


def _object(path: Path, record: RunRecord) -> dict[str, Any]:
    """The object in a JSON file; {} for no file, and for a damaged one, which is noted."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        record.problems.append(f"{path} cannot be read: {printable(str(error))}")
        return {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST else None


def _text(value: Any) -> str | None:
    return (
        None if value is None else printable(value if isinstance(value, str) else json.dumps(_clean(value)), 4096)
    )


def _clean(value: Any, depth: int = 0) -> Any:
    if isinstance(value, (dict, list)) and depth > _DEPTH:
        return "..."
    if isinstance(value, dict):
        return {printable(str(key)): _clean(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner, depth + 1) for inner in value]
    return printable(value, 4096) if isinstance(value, str) else value


def duration(seconds: float) -> str:
    """A length of time for people: 45 s, 12 min, 3 h 20 min, 2 d 4 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
