"""The process above the supervisor, when the supervisor is killed: run as a program, for it forks."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, signal, sys
from launch.supervisor.guard import guarded
from launch.supervisor.settings import read_settings

run_dir = sys.argv[1]
words = f"--run-dir {run_dir} --checkpoint-dir {run_dir} --nodes 1 --ray-gpus-head 1 --ray-gpus-other 0"
settings = read_settings([*words.split(), "--ray-cpus", "1", "::trainer", "t"], {})

def supervise():
    if len(sys.argv) > 2:
        with open(os.path.join(run_dir, "verdict.json"), "w") as stream:
            json.dump({"exit_code": int(sys.argv[2])}, stream)
    os.kill(os.getpid(), signal.SIGBUS)

sys.exit(guarded(settings, supervise, ()))
"""


def run(run_dir: Path, *verdict: str) -> int:
    words = [sys.executable, "-c", PROGRAM, str(run_dir), *verdict]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=False, timeout=60).returncode


def test_what_the_head_has_judged_stands(tmp_path: Path):
    """srun ends the image's file system with the step, and the head with it, after its verdict."""
    assert run(tmp_path, "20") == 20
    assert (tmp_path / ".over-0").read_text() == "20\n"
    assert not list(tmp_path.glob("failed-*.json"))


def test_a_head_that_said_nothing_is_told_of(tmp_path: Path):
    assert run(tmp_path) == 28
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert (verdict["component"], verdict["cause"]) == ("head", "the supervisor was killed by signal 7")
