"""Show what a job is doing, or how it ended and why.

    python -m launch.status                      the newest run below ./outputs
    python -m launch.status 1234                 the run of Slurm job 1234 below ./outputs
    python -m launch.status outputs/x/run-1234   a run directory

Exit codes: 0 shown; 1 there is no such run; 2 usage.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.supervisor.training_log import Step, latest_checkpoint, read_steps
from launch.supervisor.verdict import EXIT_CODES

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


class NoRunError(LookupError):
    """There is no run directory to show."""


def find_run(what: str | None, below: Path) -> Path:
    """The run directory that `what` names: a path, a job id, or nothing for the newest.

    Raises:
        NoRunError: naming what was looked for and where.
    """
    if what is not None and Path(what).is_dir():
        if not any(
            any(Path(what).glob(name)) for name in ("manifest.json", "verdict.json", "logs", "failed-*.json")
        ):
            raise NoRunError(f"{what} is not a run directory, or its job has not started: no manifest.json in it")
        return Path(what)
    pattern = "*/run-*" if what is None else f"*/run-{what}"
    runs = sorted(below.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not runs:
        named = f"no run directory or job {what!r}" if what else "no run"
        raise NoRunError(f"{named}: looked for {below}/{pattern}; name a run directory")
    return runs[-1]


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values as bars between their lowest and highest; means of neighbours where there are more than `width`."""
    if not values:
        return ""
    size = max(1, -(-len(values) // width))
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(group) / len(group) for group in groups]
    low, span = min(means), max(means) - min(means)
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1))] if span else _BARS[0] for mean in means)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a run, or {} when there is no such file.

    Raises:
        NoRunError: the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NoRunError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise NoRunError(f"{path}: not a JSON object")
    return data


def _noted(run_dir: Path) -> dict[str, Any]:
    """A failure that a node noted where the head could not even begin; {} without one."""
    notes = [_read_json(file) for file in sorted(run_dir.glob("failed-*.json"))]
    causes = [note for note in notes if note.get("exit_code") != EXIT_CODES["cancelled"]]
    return {"state": "failed", **(causes or notes)[0]} if notes else {}


def summarize(run_dir: Path) -> dict[str, Any]:
    """State, steps and rewards of a run: from its verdict when it ended, else from what nodes noted and the
    trainer's log.

    `reward_first` and `reward_last` are means over the first and last tenth of the steps (at least one step).
    """
    verdict = _read_json(run_dir / "verdict.json") or _noted(run_dir)
    manifest = _read_json(run_dir / "manifest.json")
    logs = sorted(Path(manifest.get("logs", run_dir / "logs")).glob("*-trainer.log"))
    steps: list[Step] = read_steps(logs[0]) if logs else []
    rewards = [step.reward for step in steps if step.reward is not None]
    part = max(1, len(rewards) // 10)
    checkpoint = verdict.get("last_checkpoint") or latest_checkpoint(
        Path(manifest.get("checkpoint_dir", run_dir / "checkpoints"))
    )
    return {
        "run_dir": str(run_dir),
        "state": verdict.get("state", "running"),
        "exit_code": verdict.get("exit_code"),
        "component": verdict.get("component"),
        "node": verdict.get("node"),
        "cause": verdict.get("cause"),
        "evidence": verdict.get("evidence"),
        "steps": steps[-1].number if steps else 0,
        "rewards": rewards,
        "reward_first": sum(rewards[:part]) / part if rewards else None,
        "reward_last": sum(rewards[-part:]) / part if rewards else None,
        "last_checkpoint": str(checkpoint) if checkpoint else None,
        "hf_model": verdict.get("hf_model"),
    }


def table(told: dict[str, Any]) -> str:
    """One screen for a person."""
    rows = [("run", told["run_dir"]), ("state", told["state"])]
    if told["cause"] is not None:
        rows.append(("failed", f"{told['component']} on {told['node']}: {told['cause']}"))
        rows.append(("exit code", str(told["exit_code"])))
        evidence = told["evidence"]
        if isinstance(evidence, dict):
            rows.append(("evidence", f"{evidence.get('file')}: {evidence.get('text')}"))
    rows.append(("steps", str(told["steps"])))
    if told["rewards"]:
        rows.append(("reward", f"{told['reward_first']:.4f} -> {told['reward_last']:.4f}"))
        rows.append(("", sparkline(told["rewards"])))
    rows.append(("checkpoint", told["last_checkpoint"] or "none"))
    rows.append(("HF model", told["hf_model"] or "none"))
    return "\n".join(f"{name:<11}{text}" for name, text in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.status",
        description="Show what a job is doing, or how it ended and why.",
        epilog="example: python -m launch.status outputs/qwen3-4b-grpo/run-1234 --json",
    )
    parser.add_argument("run", nargs="?", help="job id or run directory [the newest below ./outputs]")
    parser.add_argument("--json", action="store_true", help="as JSON, with the reward of every step")
    args = parser.parse_args(argv)
    try:
        told = summarize(find_run(args.run, Path("outputs")))
    except NoRunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=2, ensure_ascii=False) if args.json else table(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
