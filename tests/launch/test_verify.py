"""The check that runs in the job: installed verl, real environment, readable files; no torch, no Ray."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from verl_sources import command, job

from launch.engines import verify as verify_module
from launch.engines.verify import main, verify
from launch.supervisor.symptoms import said_kind
from singularity.installed import installed_packages
from singularity.stack import load_stack


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder with a model, data and a reward function, and the variables that the supervisor sets."""
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for name in ("train.parquet", "val 1.parquet", "reward.py"):
        (tmp_path / name).write_text("x")
    return tmp_path


def arguments(folder: Path, *overrides: str) -> list[str]:
    given = job(
        "0.9.1",
        f"model.path={folder}/model",
        f"data.train=[{folder}/train.parquet]",
        f"data.val=['{folder}/val 1.parquet']",
        "reward.kind=function",
        f"reward.function={folder}/reward.py",
    )
    return ["--verl", "0.9.1", "--", *command(given, *overrides).arguments]


def test_a_good_command(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(arguments(run)) == 0
    assert capsys.readouterr().out == "verl 0.9.1: the trainer's configuration composes\n"


def test_another_version_is_installed(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--verl", "0.8.0", *arguments(run)[2:]]) == 1
    assert "this image has verl 0.9.1, the job was rendered for 0.8.0" in capsys.readouterr().err


def test_the_packages_of_a_stack(run: Path, capsys: pytest.CaptureFixture[str]):
    """.venv is made from the list of the stack cpu."""
    assert main(["--stack", "cpu", *arguments(run)]) == 0, capsys.readouterr().err


def test_a_package_of_another_version_and_one_that_is_missing(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    real = installed_packages()
    wanted = load_stack("cpu").pins
    there = {name: version for name, version in real.items() if name != "mbridge"} | {"ray": "2.9.0"}
    monkeypatch.setattr(verify_module, "installed_packages", lambda: there)
    assert main(["--stack", "cpu", *arguments(run)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: stack-package: ")] == lines
    assert f"this image has no mbridge; stack cpu has {wanted['mbridge']}; build it again" in lines[0]
    assert f"this image has ray 2.9.0; stack cpu has {wanted['ray']}; build it again" in lines[1]
    assert said_kind(lines[0]) == "image"


def test_no_verl_at_all(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(run)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "verl", raising=False)  # another test may have imported it
    (found,) = verify("0.9.1", command(job()))
    assert found.message == "this image has no verl, the job was rendered for 0.9.1"


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("train.parquet", "data.train_files"),
        ("val 1.parquet", "data.val_files"),
        ("reward.py", "reward.custom_reward_function.path"),
        ("model/config.json", "actor_rollout_ref.model.path"),
    ],
)
def test_files_that_are_not_there(run: Path, harm: str, told: str, capsys: pytest.CaptureFixture[str]):
    (run / harm).unlink()
    assert main(arguments(run)) == 1
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert f"error: unreadable: {told}: {run}/{harm}: No such file" in said
    assert "container.binds" in said


def test_an_empty_file(run: Path, capsys: pytest.CaptureFixture[str]):
    (run / "train.parquet").write_text("")
    assert main(arguments(run)) == 1
    assert "it is empty" in capsys.readouterr().err


def test_what_the_job_makes_itself_need_not_be_there_yet(run: Path):
    made = [
        "actor_rollout_ref.model.path=${oc.env:RUN_DIR}/rehearsal/policy",
        "data.train_files=[${oc.env:RUN_DIR}/t]",
    ]
    assert main(arguments(run, *made)) == 0


def test_a_name_on_the_hub(run: Path, monkeypatch: pytest.MonkeyPatch):
    given = arguments(run, "actor_rollout_ref.model.path=Qwen/Qwen3-4B")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert main(given) == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(given) == 1


def test_the_variables_must_be_set(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("CHECKPOINT_DIR")
    assert main(arguments(run)) == 1
    assert "the environment variable CHECKPOINT_DIR is not set" in capsys.readouterr().err


def test_wrong_keys_and_types_are_told_at_once(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(arguments(run, "trainer.nodes=2", "trainer.nnodes=abc")) == 1
    said = capsys.readouterr().err
    assert "unknown-key" in said
    assert "value-type" in said


@pytest.mark.parametrize("tail", [[], ["--"], ["--", "trainer.nnodes=1"], ["--", "-m", "verl.trainer.main_ppo"]])
def test_usage(tail: list[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--verl", "0.9.1", *tail])
    assert ended.value.code == 2


def test_as_a_command_without_torch(run: Path):
    code = "import sys; from launch.engines.verify import main; code = main(sys.argv[1:]); " + (
        "assert not {'torch', 'verl', 'ray'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments(run)], env=os.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    bad = subprocess.run(
        [sys.executable, "-m", "launch.engines.verify", *arguments(run, "data.train_batch_size=few")],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert bad.returncode == 1
    assert bad.stderr.startswith("error: value-type: data.train_batch_size=few")
