"""The command line: what it takes, what it refuses, what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from merge_jobs import Recorded

from converters.merge import main


def test_arguments_of_verls_merger(unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["merge", "--backend", "megatron", "--use_cpu_initialization", f"--local-dir={unpacked.actor}"]
    assert main([*arguments, f"--target_dir={tmp_path / 'out_with_dashes-and_underscores'}"]) == 0
    out = capsys.readouterr().out
    assert "25 tensors, " in out
    assert "step 3" in out
    assert (tmp_path / "out_with_dashes-and_underscores" / "config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--trust-remote-code"], "executed"),
        (["--hf_upload_path", "me/model"], "uploaded"),
        (["--private"], "uploaded"),
        (["--is_value_model"], "value heads"),
        (["--backend", "zarr"], "invalid choice"),
        (["--max-shard-size", "big"], "is no size"),
        (["--step", "x"], "invalid int"),
        (["--tie", "--unknown"], "unrecognized"),
    ],
)
def test_usage_errors(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], match: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out"), *arguments])
    assert caught.value.code == 2
    assert match in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tie_flag_on_an_untied_model(
    unpacked: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--local_dir", str(unpacked.run), "--target_dir", str(tmp_path / "out")]
    assert main([*arguments, "--tie-word-embedding"]) == 1
    assert "the model is not tied" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("base", ["nothing", "empty"])
def test_base_model_that_is_none(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str
) -> None:
    (tmp_path / "empty").mkdir()
    (recorded.actor / "huggingface" / "config.json").unlink()
    arguments = ["--local_dir", str(recorded.run), "--target_dir", str(tmp_path / "out")]
    assert main([*arguments, "--base_model", str(tmp_path / base)]) == 1
    assert str(tmp_path / base) in capsys.readouterr().err


def test_as_a_module(unpacked: Recorded, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "converters.merge", "--local_dir", str(tmp_path / "no"), "--target_dir", "x"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"converters.merge: error: {tmp_path / 'no'}: does not exist\n"
