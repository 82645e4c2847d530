"""Every static check, one after the other: `make lint`. Exits with 1 when one of them finds something."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What the default job leaves out of its script.
_JOB_SETTINGS = (
    'cluster.modules=["apptainer/1.3"]',
    'container.binds=["/data:/data:ro"]',
    "cluster.cpus_per_node=64",
)


def shell_scripts() -> list[str]:
    """Tracked and new files that are bash: by name or by first line."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [name for name in listed if _is_bash(ROOT / name)]


def _is_bash(path: Path) -> bool:
    if path.suffix == ".sh":
        return path.is_file()
    if path.suffix or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().rstrip() == b"#!/bin/bash"


def _passes(what: str, command: Sequence[str]) -> bool:
    done = subprocess.run(command, cwd=ROOT, check=False)
    print(f"lint: {what}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    return done.returncode == 0


def _rendered(folder: Path) -> list[str]:
    """Scripts as a user gets them: a job, with every optional part of the script, and a rehearsal.

    They are rendered in an empty folder: a job whose models and image are not there yet is rendered with warnings.
    """
    python, written = [sys.executable, "-m", "launch.render", "--template", "grpo"], []
    job = [word for setting in _JOB_SETTINGS for word in ("--set", setting)]
    for name, options in (("job", job), ("rehearsal", ["--rehearse"])):
        path = folder / f"{name}.sh"
        command = [*python, *options, "-o", path.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"lint: cannot render {name}:\n{done.stdout}{done.stderr}")
        written.append(str(path))
    return written


def main() -> int:
    """Run the checks; returns the exit code."""
    tool = Path(sys.executable).parent
    results = [
        _passes("ruff check", [str(tool / "ruff"), "check", "--quiet", "."]),
        _passes("ruff format", [str(tool / "ruff"), "format", "--check", "--quiet", "."]),
        _passes("mypy", [str(tool / "mypy")]),
    ]
    if shutil.which("shellcheck") is None:
        print("lint: shellcheck: SKIPPED, it is not installed and only root on a Debian can install it by make")
    else:
        with tempfile.TemporaryDirectory() as folder:
            scripts = [*shell_scripts(), *_rendered(Path(folder))]
            results.append(_passes(f"shellcheck of {len(scripts)} scripts", ["shellcheck", "-x", *scripts]))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
