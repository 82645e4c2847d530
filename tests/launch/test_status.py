"""What launch.status shows of a run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.status import NoRunError, find_run, sparkline, summarize, table
from launch.supervisor.verdict import Evidence, Failure, write_verdict


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "outputs" / "job" / "run-17"
    (run / "logs").mkdir(parents=True)
    lines = [f"(T pid=1) step:{n} - critic/score/mean:{n / 10} - timing_s/step:1" for n in range(1, 21)]
    (run / "logs" / "n1-trainer.log").write_text("\n".join(lines) + "\n")
    return run


def test_a_running_job(run_dir: Path):
    told = summarize(run_dir)
    assert (told["state"], told["steps"]) == ("running", 20)
    assert (told["reward_first"], told["reward_last"]) == (pytest.approx(0.15), pytest.approx(1.95))
    assert "reward     0.1500 -> 1.9500" in table(told)


def test_a_failed_job_says_why(run_dir: Path):
    failure = Failure("ray worker", "n2", "Ray lost the node", 23, Evidence("/log", 1, "boom"))
    training = {"steps_done": 20, "last_checkpoint": "/c/global_step_20", "hf_model": None}
    write_verdict(run_dir, state="failed", started=time.time(), failure=failure, training=training)
    shown = table(summarize(run_dir))
    assert "failed     ray worker on n2: Ray lost the node" in shown
    assert "evidence   /log: boom" in shown
    assert "checkpoint /c/global_step_20" in shown


def test_a_job_whose_head_could_not_begin(tmp_path: Path):
    """The script's own note of a path that a node lacks, without a verdict."""
    for node, code in (("n1", 143), ("n2", 20)):
        note = {"component": "setup", "node": node, "cause": "no /x on this node", "exit_code": code}
        (tmp_path / f"failed-{node}.json").write_text(json.dumps(note))
    shown = table(summarize(find_run(str(tmp_path), tmp_path)))
    assert "state      failed" in shown
    assert "failed     setup on n2: no /x on this node" in shown


def test_runs_are_found_by_path_job_id_or_age(run_dir: Path, tmp_path: Path):
    outputs = tmp_path / "outputs"
    assert find_run(str(run_dir), outputs) == run_dir
    assert find_run("17", outputs) == run_dir
    assert find_run(None, outputs) == run_dir
    with pytest.raises(NoRunError, match="job '18'"):
        find_run("18", outputs)


@pytest.mark.parametrize("text", ['{"state":', "\0\xff", "[1]", '{"cause": "x", "evidence": {"foo": 1}}'])
def test_a_damaged_verdict_is_no_traceback(run_dir: Path, text: str):
    (run_dir / "verdict.json").write_text(text)
    command = [sys.executable, "-m", "launch.status", str(run_dir)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert result.returncode == (0 if "cause" in text else 1)
    assert "verdict.json" in result.stderr or result.returncode == 0


def test_any_other_folder_is_no_run(tmp_path: Path):
    with pytest.raises(NoRunError, match="not a run directory"):
        find_run(str(tmp_path), tmp_path)


def test_a_run_without_steps(tmp_path: Path):
    assert summarize(tmp_path)["rewards"] == []
    assert "steps      0" in table(summarize(tmp_path))


@pytest.mark.parametrize(("values", "bars"), [([], ""), ([1.0, 1.0], "▁▁"), ([0.0, 0.5, 1.0], "▁▅█")])
def test_sparkline(values: list[float], bars: str):
    assert sparkline(values).replace("▄", "▅") == bars


def test_sparkline_is_never_wider():
    assert len(sparkline([float(n) for n in range(1000)], width=60)) <= 60


def test_the_command(run_dir: Path, tmp_path: Path):
    def status(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launch.status", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert json.loads(status("17", "--json").stdout)["steps"] == 20
    missing = status("99")
    assert missing.returncode == 1
    assert "outputs/*/run-99" in missing.stderr
