# PYTHON_ARGCOMPLETE_OK
"""Show what a job is doing, or how it ended and why, on one screen.

python -m launch.status                      the newest run below ./outputs
python -m launch.status 1234                 the run of Slurm job 1234 below ./outputs
python -m launch.status outputs/x/run-1234   a run directory
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from singularity.command_line import CommandParser, fail, filled, quiet_imports, run

if __name__ == "__main__":
    quiet_imports()

from launch.run_record import RunRecord, duration, read_run, waiting
from launch.slurm_queue import ask
from launch.supervisor.log_tail import printable

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_SHOWN_NODES = 8
_NOTES = """\
states: pending (in the queue), starting (no sign of the head node yet), running, silent (no sign of life of the \
head node), requeued, completed, failed, cancelled, timeout (the time limit ended it: its verdict says "failed", \
kind "wall-time"), ended (without a verdict).
"""
_FILES = ("manifest.json", "verdict.json", "job.json")  # of a run directory, as completed by a shell
_EXAMPLES = (
    "python -m launch.status",
    "python -m launch.status 1234 --watch 10",
    "python -m launch.status outputs/qwen3-4b-grpo/run-1234 --json",
)
_EXIT_CODES = {
    0: 'shown, whatever became of the job (its own code is "exit_code" of --json); Ctrl-C of --watch',
    1: "there is no such run",
    2: "usage",
}


class NoRunError(LookupError):
    """There is no run directory to show."""


def find_run(what: str | None, below: Path) -> Path:
    """The run directory that `what` names: a path, a job id, or nothing for the newest.

    Raises:
        NoRunError: naming what was looked for and where.
    """
    if what is not None and not Path(what).is_dir() and "/" not in what:
        what = what.removeprefix("run-")
    if what is not None and Path(what).is_file() and Path(what).name in _FILES:
        what = str(Path(what).parent)
    if what is not None and Path(what).is_dir():
        try:
            os.scandir(what).close()  # glob says of a folder that one may not read that it is empty
        except OSError as error:
            raise NoRunError(f"{what}: {error.strerror}") from error
        marks = ("manifest.json", "verdict.json", "logs", "failed-*.json", "job.json", "heartbeat")
        if not any(any(Path(what).glob(name)) for name in marks):
            raise NoRunError(f"{what} is not a run directory, or its job has not started: no manifest.json in it")
        return Path(what)
    # Earlier runs of the same number are renamed to run-N.before-DATE.
    names = "run-*" if what is None else f"run-{_glob_quoted(what)}"
    runs = sorted((path for path in below.glob(f"*/{names}") if ".before-" not in path.name), key=_age)
    if not runs:
        named = f"no run directory or job {what!r}" if what else "no run"
        raise NoRunError(
            f"{named}: looked for {below}/*/run-{'*' if what is None else what} in {Path.cwd()}; call it in the "
            "job's project folder, or name a run directory"
        )
    return runs[-1]


def _glob_quoted(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # removed meanwhile


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values as bars between their lowest and highest; means of neighbours where there are more than `width`.

    A value that is no finite number is a dot.
    """
    finite = [value for value in values if value - value == 0]
    if not finite:
        return "·" * min(width, len(values))
    size = max(1, -(-len(values) // width))
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(group) / len(group) for group in groups]
    shown = [mean for mean in means if mean - mean == 0] or finite
    low = min(shown) / 2  # halves: the difference of two finite numbers may be none
    span = max(shown) / 2 - low

    def bar(mean: float) -> str:
        if mean - mean != 0:
            return "·"
        return _BARS[round((mean / 2 - low) / span * (len(_BARS) - 1))] if span else _BARS[0]

    return "".join(map(bar, means))


def summarize(run_dir: Path) -> dict[str, Any]:
    """What `--json` prints: the fields of `launch.run_record.RunRecord`."""
    return asdict(read_run(run_dir, ask))


def table(run: RunRecord) -> str:
    """One screen for a person; every text in it is printable."""
    return "\n".join(f"{name:<11}{printable(text, 1000)}" for name, text in _rows(run))


def _rows(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "run", run.run_dir
    yield "state", run.state + (f": {run.why}" if run.why else "")
    if run.nodes:
        yield "nodes", _nodes(run)
    yield from _failure(run)
    yield "steps", _steps(run)
    if run.ends_at is not None and not run.over:
        yield "time limit", _limit(run)
    if run.reward_first is not None and run.reward_last is not None:
        yield "reward", f"{run.reward_first:.4f} -> {run.reward_last:.4f}"
        yield "", sparkline(run.rewards)
    yield "checkpoint", run.last_checkpoint or "none"
    yield from _phases(run)
    if run.hf_model or run.over:
        yield "HF model", run.hf_model or "none"
    for number, one in enumerate(run.attempts):
        yield "" if number else "attempts", _attempt(one)
    if run.attempts:
        yield "", f"{run.attempt}: {run.state}, this one"
    for problem in run.problems:
        yield "note", problem


def _nodes(run: RunRecord) -> str:
    names = [f"{node.get('node')} ({node.get('address')})" for node in run.nodes[:_SHOWN_NODES]]
    more = [f"{len(run.nodes) - _SHOWN_NODES} more"] if len(run.nodes) > _SHOWN_NODES else []
    known = run.nodes_expected or len(run.nodes)
    return f"{len(run.nodes)} of {known} joined: {', '.join(names + more)}"


def _failure(run: RunRecord) -> Iterator[tuple[str, str]]:
    if run.cause is None:
        return
    label = run.state if run.state in ("cancelled", "timeout") else "failed"
    if run.component == "job":  # no part of it has failed
        yield label, f"{run.cause.removeprefix('cancelled: ')}, on {run.node}"
    else:
        yield label, f"{run.component} on {run.node}: {run.cause}"
    if run.kind and run.kind != run.state:
        yield "cause", run.kind + (f": {run.meaning}" if run.meaning else "")
    if run.evidence:
        line = f":{run.evidence['line']}" if run.evidence["line"] else ""
        yield "evidence", f"{run.evidence['file']}{line}: {run.evidence['text']}"
    if run.what_to_do:
        yield "to do", run.what_to_do
    if run.requeue_why:
        yield "restart", run.requeue_why
    yield "exit code", str(run.exit_code)


def _phases(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Training and merge where one of them ended otherwise than the job."""
    training, merge = run.training or {}, run.merge or {}
    if training.get("state") == "completed" and run.state != "completed":
        step = f" at step {training['step']}" if training.get("step") else ""
        yield "training", f"completed{step}" + ("" if run.over or merge else "; its merge may be running")
    if merge.get("state") in ("failed", "interrupted", "not run"):
        cause = f": {merge['cause']}" if merge.get("cause") else ""
        yield "merge", f"{merge['state']}{cause}"
        if merge.get("command"):
            yield "by hand", str(merge["command"])


def _steps(run: RunRecord) -> str:
    parts = [f"{run.steps} of {run.total_steps}" if run.total_steps else str(run.steps)]
    if run.seconds_per_step is not None:
        parts.append(f"{run.seconds_per_step:.3g} s a step")
    if run.seconds_left is not None:
        parts.append(f"{duration(run.seconds_left)} left")
    if run.lost_steps:
        parts.append(f"{run.lost_steps} lost at restarts")
    return ", ".join(parts)


def _limit(run: RunRecord) -> str:
    ends_at = run.ends_at or 0.0
    left = ends_at - time.time()
    text = time.strftime("%Y-%m-%d %H:%M", time.localtime(ends_at))
    text += f", in {duration(left)}" if left > 0 else ", which is over"
    if run.fits is None or run.total_steps is None:
        return text
    if run.fits:
        return f"{text}: the remaining steps fit"
    return f"{text}: {run.steps_that_fit} of the {run.total_steps - run.steps} remaining steps fit"


def _attempt(one: dict[str, Any]) -> str:
    part = f"{one['component']} on {one['node']}: " if one.get("component") else ""
    cause = f", {part}{one['cause']}" if one.get("cause") else ""
    code = f" (exit code {one['exit_code']})" if one.get("exit_code") else ""
    return f"{one.get('attempt')}: {one.get('state')} after step {one.get('steps_done') or 0}{cause}{code}"


def _read(what: str | None) -> RunRecord:
    """The run that `what` names, or what Slurm says of a job that has no run directory yet."""
    try:
        return read_run(find_run(what, Path("outputs")), ask)
    except NoRunError as error:
        queue = ask(what) if what else None
        if queue is None:
            raise
        states = {"PENDING": "pending", "RUNNING": "running", "CONFIGURING": "pending"}
        why = waiting(queue) if queue.state == "PENDING" else f"Slurm says {queue.state}; {error}"
        return RunRecord("none yet", states.get(queue.state, "ended"), why, job=what)


def _shown(run: RunRecord, as_json: bool) -> str:
    # ASCII, so that no character of a log can act on a terminal.
    return (
        json.dumps(_finite(asdict(run)), indent=2, ensure_ascii=True, allow_nan=False) if as_json else table(run)
    )


def _finite(value: Any) -> Any:
    """`value` with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.5 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give 0.5 to 86400")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = CommandParser(
        "launch.status",
        "Show what a job is doing, or how it ended and why.",
        notes=_NOTES,
        examples=_EXAMPLES,
        exit_codes=_EXIT_CODES,
    )
    parser.add_argument(
        "run", nargs="?", type=filled, metavar="RUN", help="job id or run directory [the newest below ./outputs]"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON, with the reward of every step"
    )
    parser.add_argument(
        "--watch", type=_seconds, metavar="S", help="show it again every S seconds, until the job is over"
    )
    args = parser.parse_args(argv)
    clear = "\x1b[H\x1b[2J" if args.watch and not args.json and sys.stdout.isatty() else ""
    while True:
        try:
            found = _read(args.run)
            print(clear + _shown(found, args.json), flush=True)
            if args.watch is None or found.over:
                return 0
            time.sleep(args.watch)
        except NoRunError as error:
            return fail(printable(str(error), 1000), as_json=args.json)
        except KeyboardInterrupt:
            if args.watch is None:
                raise
            return 0  # the way out


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # bars, in a locale that has none
    sys.exit(run(main))
