"""A merge that fails or is cut off: the verdict and the status tell of it, and of the training that went well."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.run_record import read_run
from launch.slurm_queue import QueueState
from launch.status import table
from launch.supervisor import merging
from launch.supervisor.outcome import conclude
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.verdict import Evidence, Failure

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose trainer did 40 steps and saved the last."""
    run = tmp_path / "out puts" / "run-77"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "n0-trainer.log").write_text("step:40 - critic/score/mean:1\n")
    saved(run, 40)
    return run


def saved(run: Path, step: int) -> None:
    (run / "c" / f"global_step_{step}").mkdir(parents=True)
    (run / "c" / "latest_checkpointed_iteration.txt").write_text(str(step))


def job(run: Path, attempt: int = 0, *, merge: bool = True, requeue: bool = True) -> Settings:
    words = ["--run-dir", str(run), "--checkpoint-dir", str(run / "c"), "--nodes", "1", "--ray-gpus-head", "1"]
    words += ["--ray-gpus-other", "0", "--ray-cpus", "9", *(["--max-restarts", "3"] if requeue else [])]
    words += ["::trainer", "t"]
    if merge:
        words += ["::merge", sys.executable, "-m", "converters.merge", "--local_dir", str(run / "c")]
        words += ["--target_dir", str(run / "hf_model"), "--base_model", "models/a b", "--force"]
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}
    slurm |= {"SLURM_JOB_NODELIST": "n0", "SLURM_RESTART_COUNT": str(attempt)}
    return read_settings(words, slurm)


def verdict(run: Path) -> dict:
    return json.loads((run / "verdict.json").read_text())


def screen(run: Path) -> str:
    return table(read_run(run, lambda _: QueueState("FAILED", ended=True)))


def merge_failed(run: Path) -> Failure:
    log = run / "logs" / "n0-merge.log"
    log.write_text("error: x.distcp: missing\n")
    return Failure("merge", "n0", "ended with 1", 27, Evidence(str(log), 1, "error: x.distcp: missing"))


def test_a_merge_that_failed_does_not_hide_the_training(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    settings = job(run_dir)
    merging.note_trained(settings)
    assert conclude(settings, merge_failed(run_dir), 0.0) == 27
    told = verdict(run_dir)
    assert (told["state"], told["component"], told["exit_code"], told["requeue"]) == ("failed", "merge", 27, False)
    last = str(run_dir / "c" / "global_step_40")
    assert told["training"] == {"state": "completed", "step": 40, "checkpoint": last}
    assert (told["merge"]["state"], told["merge"]["cause"]) == ("failed", "ended with 1")
    assert "x.distcp: missing" in told["merge"]["evidence"]["text"]
    assert told["what_to_do"].startswith("the training is complete (step 40): do not repeat it; mend what")
    out = capsys.readouterr().out
    assert f"the training is complete: step 40, {last}" in out
    assert told["merge"]["command"] in out
    shown = screen(run_dir)
    assert "state      failed\n" in shown
    assert "training   completed at step 40\nmerge      failed: ended with 1\n" in shown
    assert f"by hand    {told['merge']['command']}\n" in shown


def test_the_command_by_hand_names_the_step_and_whole_paths(run_dir: Path):
    command = merging.by_hand(job(run_dir), run_dir / "c" / "global_step_40")
    assert command is not None
    folder, words = command.split(" && ")
    assert (Path(shlex.split(folder)[1]) / "converters" / "merge.py").is_file()
    assert shlex.split(words) == [
        sys.executable, "-m", "converters.merge", "--local_dir", str(run_dir / "c"),
        "--target_dir", str(run_dir / "hf_model"), "--base_model", str(run_dir / "models/a b"), "--force",
        "--step", "40",
    ]  # fmt: skip
    assert merging.by_hand(job(run_dir), None) is None
    assert merging.by_hand(job(run_dir, merge=False), run_dir / "c" / "global_step_40") is None


def test_the_command_by_hand_runs_where_the_image_is_not(run_dir: Path):
    """container.toolkit=image: a login node has the toolkit elsewhere than the container."""
    settings = replace(job(run_dir), host_toolkit=Path("/home/me/my toolkit"))
    command = merging.by_hand(settings, run_dir / "c" / "global_step_40")
    assert str(command).startswith("cd '/home/me/my toolkit' && ")


def test_the_command_by_hand_is_one_that_bash_and_the_merge_take(run_dir: Path):
    """Up to what the checkpoint lacks: nothing is in it."""
    (run_dir / "models" / "a b").mkdir(parents=True)
    command = merging.by_hand(job(run_dir), run_dir / "c" / "global_step_40", resume=True)
    done = subprocess.run(["bash", "-c", str(command)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "error: " in done.stderr) == (1, True), done.stderr
    assert "global_step_40" in done.stderr


@pytest.mark.parametrize(
    ("kind", "state", "code"), [("wall-time", "requeued", 47), ("cancelled", "cancelled", 143)]
)
def test_a_merge_that_was_cut_off(run_dir: Path, kind: str, state: str, code: int):
    settings = job(run_dir)
    merging.note_trained(settings)
    assert conclude(settings, Failure("job", "n0", "out of time", code, kind=kind), 0.0) == code
    told = verdict(run_dir)
    assert (told["state"], told["training"]["state"], told["merge"]["state"]) == (
        state,
        "completed",
        "interrupted",
    )
    assert told["merge"]["command"].endswith("--step 40 --resume")
    if state == "requeued":
        assert told["requeue_why"].endswith("only its merge is left")
    else:
        assert "training   completed at step 40" in screen(run_dir)
        assert "merge      interrupted: out of time" in screen(run_dir)


def test_an_attempt_after_a_merge_that_was_cut_off_only_merges(run_dir: Path):
    merging.note_trained(job(run_dir))
    done = merging.only_to_merge(job(run_dir, 1))
    assert done is not None
    assert (done.step, done.attempt) == (40, 0)
    assert merging.only_to_merge(job(run_dir, 0)) is None, "its own"
    assert merging.only_to_merge(job(run_dir, 1, merge=False)) is None
    merging.forget_trained(job(run_dir, 1))
    assert merging.only_to_merge(job(run_dir, 1)) is not None
    # The attempt that only merged has a log of no step; one more that comes no further is not made.
    (run_dir / "verdict.0.json").write_text(
        json.dumps({"steps_done": 40, "last_checkpoint": str(run_dir / "c" / "global_step_40")})
    )
    assert conclude(job(run_dir, 1), Failure("job", "n0", "out of time", 47, kind="wall-time"), 0.0) == 47
    told = verdict(run_dir)
    assert (told["steps_done"], told["training"]["step"], told["requeue"]) == (40, 40, False)
    (run_dir / "hf_model").mkdir()
    assert merging.only_to_merge(job(run_dir, 1)) is None, "a user has started a job again that was done"
    (run_dir / "hf_model").rmdir()
    assert merging.only_to_merge(job(run_dir, 1)) is not None
    # The marker has moved: somebody trained on.
    saved(run_dir, 41)
    assert merging.only_to_merge(job(run_dir, 1)) is None


def test_an_earlier_run_in_the_directory_is_forgotten(run_dir: Path):
    merging.note_trained(job(run_dir))
    merging.forget_trained(job(run_dir))
    assert merging.read_trained(job(run_dir)) is None
    merging.forget_trained(job(run_dir))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": "x"}', "[" * 100_000, '{"step": 1, "attempt": 9}'])
def test_a_damaged_note_is_none(run_dir: Path, text: str):
    (run_dir / merging.TRAINED).write_text(text)
    assert merging.read_trained(job(run_dir)) is None
    assert "by hand" not in screen(run_dir)


def test_a_training_that_failed_says_how_its_last_step_is_merged(run_dir: Path):
    assert conclude(job(run_dir), Failure("trainer", "n0", "ended with 42", 42), 0.0) == 42
    told = verdict(run_dir)
    assert told["training"]["state"] == "failed"
    assert told["merge"]["state"] == "not run"
    assert told["merge"]["command"].endswith("--force --step 40")
    assert "merge      not run: the training has not come to its end\nby hand    cd " in screen(run_dir)


def test_a_training_that_never_began(tmp_path: Path):
    (tmp_path / "logs").mkdir()
    conclude(job(tmp_path), Failure("prepare", "n0", "ended with 1", 26), 0.0)
    told = verdict(tmp_path)
    assert told["training"] == {"state": "not started", "step": 0, "checkpoint": None}
    assert (told["merge"]["state"], told["merge"]["command"]) == ("not run", None)


def test_a_job_that_went_well_and_one_without_a_merge(run_dir: Path):
    settings = job(run_dir)
    merging.note_trained(settings)
    assert conclude(settings, None, 0.0, hf_model=run_dir / "hf_model") == 0
    told = verdict(run_dir)
    assert (told["training"]["state"], told["merge"]["state"]) == ("completed", "completed")
    assert told["merge"]["path"] == str(run_dir / "hf_model")
    assert "training" not in screen(run_dir)
    assert conclude(job(run_dir, merge=False), None, 0.0) == 0
    assert verdict(run_dir)["merge"] is None


def test_where_no_head_lived_to_tell_the_note_of_the_training_does(run_dir: Path):
    """The script's own verdict knows of no phases: the head node went while it merged."""
    merging.note_trained(job(run_dir))
    (run_dir / "verdict.json").write_text(
        json.dumps({"state": "failed", "component": "node", "node": "n0", "cause": "node lost", "exit_code": 24})
    )
    shown = screen(run_dir)
    assert "training   completed at step 40\nmerge      interrupted: node lost\nby hand    cd " in shown


def test_a_full_disk_does_not_fail_a_training(run_dir: Path):
    """The note cannot be written: the run directory is gone."""
    merging.note_trained(replace(job(run_dir), run_dir=run_dir / "gone"))


def test_the_supervisor_of_such_an_attempt_merges_without_ray_and_trainer(run_dir: Path):
    merging.note_trained(job(run_dir))
    (run_dir / "verdict.0.json").write_text('{"state": "requeued", "attempt": 0, "steps_done": 40}')
    number = str(os.getpid())
    slurm = {"SLURM_JOB_ID": number, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "launch" / "node.py"), "--run-dir", str(run_dir), "--checkpoint-dir",
            str(run_dir / "c"), "--nodes", "1", "--ray-gpus-head", "2", "--ray-gpus-other", "0", "--ray-cpus", "4",
            "--logical-gpus", "--max-restarts", "3", "::check", "false", "::resume", "false",
            "::merge", sys.executable, "-c", "print('merged')", "::trainer", "false",
        ],
        env={**os.environ, **slurm, "SLURM_RESTART_COUNT": "1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 0 completed the training at step 40: only the merge is left" in done.stdout
    assert [log.name for log in (run_dir / "logs.1").iterdir()] == ["n0-merge.log"]
    told = verdict(run_dir)
    assert (told["state"], told["attempt"], told["steps_done"]) == ("completed", 1, 40)
    assert (told["training"]["state"], told["merge"]["state"]) == ("completed", "completed")
