"""What nobody foresaw, on a node or at the end of a job: it is told, has a verdict, and the others hear of it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from launch.supervisor import head, outcome
from launch.supervisor.parts import Parts, failure_of, say
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.training_log import read_training
from launch.supervisor.verdict import Failure, JobFailed

pytestmark = pytest.mark.usefixtures("ends_its_own_only")

ROOT = Path(__file__).resolve().parents[2]

# A supervisor whose part raises what it may not.
SUPERVISOR = """
import sys
import launch.node as node
def role(settings):
    raise RuntimeError("something nobody foresaw")
node._role = role
node.Settings.with_address = lambda settings: settings
sys.exit(node.main(sys.argv[1:]))
"""


def words(run_dir: Path, nodes: int = 2) -> list[str]:
    return [
        "--run-dir", str(run_dir), "--checkpoint-dir", str(run_dir / "c"), "--nodes", str(nodes),
        "--ray-gpus-head", "1", "--ray-gpus-other", "1", "--ray-cpus", "2", "::trainer", "true",
    ]  # fmt: skip


def slurm(rank: int, nodes: int = 2) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(nodes),
        "SLURMD_NODENAME": f"n{rank}",
    }  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings(words(tmp_path), slurm(0))


def supervise(run_dir: Path, rank: int, out: str | None = None) -> subprocess.CompletedProcess[str]:
    with Path(out or os.devnull).open("w") as stream:
        return subprocess.run(
            [sys.executable, "-c", SUPERVISOR, *words(run_dir, 1 if rank == 0 else 2)],
            env={**os.environ, **slurm(rank, 1 if rank == 0 else 2), "PYTHONPATH": str(ROOT)},
            stdout=stream, stderr=stream if out else subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip


def test_the_heads_own_mistake_is_told_and_has_a_verdict(tmp_path: Path):
    done = supervise(tmp_path, 0)
    assert done.returncode == 28
    assert "Traceback" in done.stderr
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert (verdict["component"], verdict["cause"]) == ("head", "RuntimeError: something nobody foresaw")


def test_another_nodes_own_mistake_is_noted_for_the_head(tmp_path: Path):
    done = supervise(tmp_path, 1)
    assert done.returncode == 24
    assert "Traceback" in done.stderr
    assert json.loads((tmp_path / "failed-n1.json").read_text())["exit_code"] == 24
    assert not (tmp_path / "verdict.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this machine")
def test_an_output_that_takes_nothing_changes_neither_code_nor_verdict(tmp_path: Path):
    assert supervise(tmp_path, 0, "/dev/full").returncode == 28
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_code"] == 28


class Ended:
    """A head whose job failed; what it is asked at the end is in `asked`."""

    hf_model = None
    oom_kills_elsewhere = 0
    asked: ClassVar[list[object]] = []

    def __init__(self, *_: object) -> None:
        Ended.asked = []

    def run(self) -> None:
        raise JobFailed(Failure("trainer", "n0", "ended with 42", 42))

    def record(self) -> None:
        self.asked.append("record")
        raise ValueError("a manifest that nobody can write")

    def close(self, exit_code: int) -> None:
        self.asked.append(exit_code)


@pytest.mark.parametrize("broken", ["diagnose", "decide", "steps_done", "write_verdict"])
def test_whatever_goes_wrong_with_the_verdict_the_other_nodes_are_told_the_code(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, broken: str
):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(head, "Head", Ended)
    monkeypatch.setattr(outcome, broken, fail)
    assert head.run_head(settings, lambda: None) == 42
    assert Ended.asked == ["record", 42]


def test_no_secret_outlives_a_head_that_could_not_begin(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """Its port was taken in the last moment, say; and a file that cannot be removed does not save the others."""

    def begin(*_: object) -> None:
        first, *others = settings.secret_files
        first.mkdir()
        for file in others:
            file.write_text("a token")
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(head, "Head", begin)
    assert head.run_head(settings, lambda: None) in (28, 35)
    assert [file.exists() for file in settings.secret_files] == [True, False, False]


def test_what_other_nodes_kernels_killed_counts(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    """A worker of verl that n2's kernel killed ends the trainer on the head, where no kill is on record."""
    settings.logs.mkdir()
    settings.log("trainer").write_text("ray.exceptions.ActorDiedError: The actor died unexpectedly\n")
    monkeypatch.setattr(head, "Head", Ended)
    monkeypatch.setattr(Ended, "oom_kills_elsewhere", 1)
    monkeypatch.setattr(Ended, "run", lambda _: fail_plainly())
    assert head.run_head(settings, lambda: None) == 32
    assert json.loads((settings.run_dir / "verdict.json").read_text())["kind"] == "out-of-memory"


def fail_plainly() -> None:
    raise JobFailed(Failure("trainer", "n0", "ended with 1", 1))


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "full"), BrokenPipeError(), ValueError("closed")])
def test_a_line_that_nobody_takes_is_no_failure(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, problem: Exception
):
    def write(_: str) -> None:
        raise problem

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="ascii", write=write, flush=lambda: None))
    say(settings, "text")


def test_a_line_is_written_whatever_its_letters(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="ascii", write=written.append, flush=lambda: None))
    say(settings, "é \udcff")
    assert "".join(written).endswith("n0] \\xe9 \\udcff\n")


@pytest.mark.parametrize(
    ("code", "cause"), [(255, "ended with 255"), (137, "killed by signal 9"), (3, "ended with 3")]
)
def test_only_a_signals_code_is_called_one(tmp_path: Path, code: int, cause: str):
    part = SimpleNamespace(name="trainer", exit_code=code, log=tmp_path / "log")
    assert failure_of(part, "n1", 1).cause == cause  # type: ignore[arg-type]


def test_hashes_that_cannot_be_made_fail_no_job(settings: Settings, capsys: pytest.CaptureFixture[str]):
    parts = Parts(settings)
    parts.start_aside("hashes", ["/nonexistent/python"], {})
    assert "the job goes on without" in capsys.readouterr().out
    parts.start_aside("hashes", ["true"], dict(os.environ))
    for _ in range(500):
        parts.collect()
        if not parts.aside:
            return
        subprocess.run(["sleep", "0.01"], check=True)
    pytest.fail("a part that has ended was not collected")


def test_a_run_directory_with_any_bytes_in_its_name_has_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_dir = tmp_path / os.fsdecode(b"run \xff")
    (run_dir / "c").mkdir(parents=True)
    (run_dir / "c" / "latest_checkpointed_iteration.txt").write_text("7")
    monkeypatch.setattr(head, "Head", Ended)
    assert head.run_head(read_settings(words(run_dir), slurm(0)), lambda: None) == 42
    verdict = json.loads((run_dir / "verdict.json").read_text())
    assert verdict["last_checkpoint"] == str(run_dir / "c" / "global_step_7")


def test_a_number_of_thousands_of_digits_is_no_step(tmp_path: Path):
    """Python refuses to read one, and a trainer may print anything."""
    log = tmp_path / "log"
    log.write_text(f"step:7 - a:1\nstep:{'9' * 5000} - a:1\nTotal training steps: {'9' * 5000}\n")
    found = read_training(log)
    assert ([step.number for step in found.steps], found.total) == ([7], None)
