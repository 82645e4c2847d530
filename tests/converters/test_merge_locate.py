"""What is taken from which folder, and what is said where nothing can be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from merge_helpers import snapshot
from merge_jobs import Recorded

from converters.errors import ConvertError
from converters.locate import TRACKER, locate


@pytest.fixture
def v2(recorded: Recorded) -> Path:
    """The recorded checkpoint in the layout of verl 0.9, with no config in it."""
    actor = recorded.actor
    (actor / "model").mkdir()
    (actor / "dist_ckpt").rename(actor / "model" / "dist_ckpt")
    (actor / "huggingface").rename(actor / "model" / "huggingface")
    return actor


@pytest.mark.parametrize("below", ["", "global_step_3", "global_step_3/actor", "global_step_3/actor/dist_ckpt"])
def test_every_level_of_a_run_folder(unpacked: Recorded, below: str) -> None:
    before = snapshot(unpacked.run)
    found = locate(unpacked.run / below)
    assert found.weights == unpacked.actor / "dist_ckpt"
    assert found.huggingface == unpacked.actor / "huggingface"
    assert (found.backend, found.step) == ("megatron", 3)
    assert found.transformer_config is not None
    assert found.transformer_config.is_file()
    assert snapshot(unpacked.run) == before


def test_run_directory_with_checkpoints_below(recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    recorded.run.rename(tmp_path / "job" / "checkpoints")
    assert locate(tmp_path / "job").step == 3


def test_v2(v2: Path) -> None:
    found = locate(v2)
    assert (found.layout, found.weights) == ("v2", v2 / "model" / "dist_ckpt")
    assert found.huggingface == v2 / "model" / "huggingface"
    assert locate(v2 / "model" / "dist_ckpt").transformer_config == v2 / "transformer_config.json"


def test_tracker_decides(recorded: Recorded) -> None:
    shutil.copytree(recorded.run / "global_step_3", recorded.run / "global_step_10")
    assert locate(recorded.run).step == 3
    assert locate(recorded.run, step=10).step == 10
    (recorded.run / TRACKER).write_text("10")
    assert locate(recorded.run).step == 10


def test_without_a_tracker_the_latest_whole_step(recorded: Recorded) -> None:
    shutil.copytree(recorded.run / "global_step_3", recorded.run / "global_step_10")
    (recorded.run / "global_step_20" / "critic").mkdir(parents=True)
    (recorded.run / TRACKER).unlink()
    assert locate(recorded.run).step == 10
    (recorded.run / "global_step_10" / "actor" / "dist_ckpt" / ".metadata").unlink()
    assert locate(recorded.run).step == 3
    (recorded.run / "global_step_3" / "actor" / "dist_ckpt" / "__0_0.distcp").unlink()
    with pytest.raises(ConvertError, match=r"(?s)no step is whole.*metadata.*__0_0\.distcp: missing"):
        locate(recorded.run)


@pytest.mark.parametrize(
    ("tracker", "match"), [("7", "names step 7, which is not there"), ("x", "is no step number"), ("", "no step")]
)
def test_tracker_that_is_wrong(recorded: Recorded, tracker: str, match: str) -> None:
    (recorded.run / TRACKER).write_text(tracker)
    with pytest.raises(ConvertError, match=match):
        locate(recorded.run)


def test_step_that_is_not_there(recorded: Recorded) -> None:
    with pytest.raises(ConvertError, match=r"no global_step_4; steps here: 3"):
        locate(recorded.run, step=4)
    with pytest.raises(ConvertError, match="no run folder"):
        locate(recorded.actor, step=3)


def test_hf_only_with_empty_dist_ckpt_left_over(v2: Path, unpacked: Recorded) -> None:
    """verl's own merger leaves an empty model/dist_ckpt behind before it fails."""
    shutil.rmtree(v2 / "model" / "dist_ckpt")
    (v2 / "model" / "dist_ckpt").mkdir()
    shutil.copy(unpacked.hf / "model.safetensors", v2 / "model" / "huggingface")
    found = locate(v2)
    assert (found.backend, found.weights) == ("hf", v2 / "model" / "huggingface")


def test_both_present_takes_the_shards_unless_told(v2: Path, unpacked: Recorded) -> None:
    shutil.copy(unpacked.hf / "model.safetensors", v2 / "model" / "huggingface")
    assert locate(v2).backend == "megatron"
    assert locate(v2, backend="hf").weights == v2 / "model" / "huggingface"


def test_backend_that_is_not_there(unpacked: Recorded) -> None:
    with pytest.raises(ConvertError, match=r"--backend fsdp: no such weights; found megatron"):
        locate(unpacked.run, backend="fsdp")


def test_neither_shards_nor_weights(v2: Path) -> None:
    shutil.rmtree(v2 / "model" / "dist_ckpt")
    with pytest.raises(ConvertError, match=r"no weights.*found model, transformer_config.json"):
        locate(v2)


def test_lora_checkpoint_is_told(v2: Path) -> None:
    (v2 / "ckpt_contents.json").write_text('{"backend": {"peft": true}}')
    with pytest.raises(ConvertError, match="LoRA"):
        locate(v2)


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="does not exist"):
        locate(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(ConvertError, match="not a folder"):
        locate(tmp_path / "file")
    with pytest.raises(ConvertError, match="no weights"):
        locate(tmp_path)
