"""What is taken from which folder, and what is said where nothing can be."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from merge_helpers import edit_json, snapshot
from merge_jobs import Recorded

from converters.checkpoint import torch_dist
from converters.checkpoint.locate import TRACKER, locate
from converters.errors import ConvertError


@pytest.fixture
def v2(recorded: Recorded) -> Path:
    """The recorded checkpoint in the layout of verl 0.9, with no config in it."""
    actor = recorded.actor
    (actor / "model").mkdir()
    (actor / "dist_ckpt").rename(actor / "model" / "dist_ckpt")
    (actor / "huggingface").rename(actor / "model" / "huggingface")
    return actor


@pytest.fixture
def written_v2(tmp_path: Path) -> Path:
    """The dist_ckpt of optimizer and RNG, as far as its tables go."""
    folder = _dcp(tmp_path / "optimizer", {"optimizer.state.a": torch.zeros(2), "rng_state/shard_0.0_1.1": [1]})
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    torch.save({}, folder / "common.pt")
    return folder


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


def test_a_newer_whole_step_is_told(recorded: Recorded) -> None:
    step = recorded.run / "global_step_3"
    for number in (1, 10, 12):
        shutil.copytree(step, recorded.run / f"global_step_{number}")
    (recorded.run / "global_step_12" / "actor" / "dist_ckpt" / ".metadata").unlink()
    found = locate(recorded.run)
    assert found.step == 3
    assert any("a newer step 10 is there: --step 10" in note for note in found.notes)
    (recorded.run / TRACKER).write_text("10")
    assert not any("newer" in note for note in locate(recorded.run).notes)


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


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ConvertError, match=rf"below: does not exist; {tmp_path} has there"):
        locate(tmp_path / "nothing" / "below")
    (tmp_path / "file").touch()
    with pytest.raises(ConvertError, match=rf"not a folder. Give the folder that it lies in: {tmp_path}"):
        locate(tmp_path / "file")
    with pytest.raises(ConvertError, match="no weights"):
        locate(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(ConvertError, match=r"a link to .*gone, which does not exist"):
        locate(tmp_path / "dangling")


# ---- steps


def test_a_step_of_the_tracker_that_is_not_whole_is_told_with_others(recorded: Recorded) -> None:
    for number in (10, 20):
        shutil.copytree(recorded.run / "global_step_3", recorded.run / f"global_step_{number}")
    (recorded.run / TRACKER).write_text("20")
    (recorded.run / "global_step_20" / "actor" / "dist_ckpt" / "__1_0.distcp").unlink()
    with pytest.raises(ConvertError) as told:
        locate(recorded.run)
    assert f"{TRACKER} names step 20, which cannot be taken" in str(told.value)
    assert "__1_0.distcp: missing" in str(told.value)
    assert str(told.value).endswith("Whole steps here: 3, 10; take one with --step N.")
    for number in (3, 10):
        shutil.rmtree(recorded.run / f"global_step_{number}")
    with pytest.raises(ConvertError, match="No other step here is whole"):
        locate(recorded.run)


@pytest.mark.parametrize(
    "tracker", [b"", b"\n", b"\0\0", b"-3", "\u0663".encode(), b"9" * 5000, b"3 3", b"\xff\xfe"]
)
def test_junk_in_the_tracker(recorded: Recorded, tracker: bytes) -> None:
    (recorded.run / TRACKER).write_bytes(tracker)
    with pytest.raises(ConvertError, match=r"is no step number. Name a step: --step N, N one of 3$"):
        locate(recorded.run)


def test_a_tracker_alone(tmp_path: Path) -> None:
    (tmp_path / TRACKER).write_text("5")
    with pytest.raises(ConvertError, match="No global_step_N is there either"):
        locate(tmp_path)


def test_links_are_followed(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (recorded.run / "global_step_3").rename(tmp_path / "disk" / "global_step_3")
    (recorded.run / "global_step_3").symlink_to(tmp_path / "disk" / "global_step_3")
    (recorded.run / "latest").symlink_to("global_step_3")
    assert locate(recorded.run).step == 3
    found = locate(recorded.run / "latest")
    assert (found.step, found.role) == (3, "actor")
    monkeypatch.chdir(recorded.run / "global_step_3" / "actor" / "dist_ckpt")
    for path in (".", "..", "../", "../../actor/", "../../"):
        found = locate(Path(path))
        assert (found.step, found.role, found.backend) == (3, "actor", "megatron"), path


# ---- roles


def test_a_critic_alone_is_taken_and_told(recorded: Recorded) -> None:
    step = recorded.run / "global_step_3"
    (step / "actor").rename(step / "critic")
    for path in (recorded.run, step, step / "critic", step / "critic" / "dist_ckpt"):
        assert locate(path).role == "critic"
    assert "has no actor: its critic is taken" in locate(step).notes[0]
    assert locate(step, role="critic").notes == ()
    with pytest.raises(ConvertError, match="--role actor: no such folder; found critic"):
        locate(step, role="actor")
    with pytest.raises(ConvertError, match="--role actor: this is the critic's folder"):
        locate(step / "critic" / "dist_ckpt", role="actor")


def test_a_critic_beside_an_actor(recorded: Recorded) -> None:
    step = recorded.run / "global_step_3"
    shutil.copytree(step / "actor", step / "critic")
    assert locate(recorded.run).role == "actor"
    assert locate(recorded.run, role="critic").weights == step / "critic" / "dist_ckpt"


def test_a_role_that_no_step_has_is_no_matter_of_being_whole(recorded: Recorded) -> None:
    step = recorded.run / "global_step_3"
    for remove in (lambda: None, (recorded.run / TRACKER).unlink):
        remove()
        with pytest.raises(
            ConvertError, match=r"--role critic: no step of this run has a critic; found actor"
        ) as told:
            locate(recorded.run, role="critic")
        assert "whole" not in str(told.value)
    shutil.copytree(step / "actor", recorded.run / "global_step_1" / "critic")
    assert locate(recorded.run, role="critic").step == 1


def test_the_sft_trainer_has_no_roles(recorded: Recorded) -> None:
    step = recorded.run / "global_step_3"
    (step / "actor").rename(recorded.run / "x")
    step.rmdir()
    (recorded.run / "x").rename(step)
    found = locate(recorded.run)
    assert (found.weights, found.role, found.step) == (step / "dist_ckpt", None, 3)
    with pytest.raises(ConvertError, match=r"--role critic: no step .* found no folder of a role"):
        locate(recorded.run, role="critic")


# ---- layouts


def test_the_model_folder_of_v2(v2: Path) -> None:
    found = locate(v2 / "model")
    assert (found.layout, found.weights) == ("v2", v2 / "model" / "dist_ckpt")
    assert found.transformer_config == v2 / "transformer_config.json"


def test_a_save_that_did_not_come_to_its_end_is_told(v2: Path) -> None:
    assert "ckpt_contents.json is missing: the save did not come to its end" in locate(v2).notes[0]
    (v2 / "ckpt_contents.json").write_text("{}")
    assert locate(v2).notes == ()


def test_what_async_save_leaves(v2: Path) -> None:
    dist = v2 / "model" / "dist_ckpt"
    (dist / "metadata.json").unlink()
    with pytest.raises(ConvertError, match=r"metadata\.json: missing.*written last.*--step N"):
        torch_dist.read_index(dist)
    (dist / ".metadata").rename(dist / ".metadata.tmp")
    with pytest.raises(ConvertError, match=r"names step 3.*\n.*metadata\.json: missing"):
        locate(v2.parents[1])
    (dist / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (dist / "common.pt").rename(dist / "x")
    with pytest.raises(ConvertError, match=r"common\.pt: missing|metadata: missing"):
        torch_dist.read_index(dist)


def test_the_optimizer_alone_is_no_model(written_v2: Path) -> None:
    with pytest.raises(
        ConvertError, match=r"no weight in it, only optimizer, rng_state. Give the folder of the role"
    ):
        torch_dist.read_index(written_v2)


def test_both_present_are_told(v2: Path, unpacked: Recorded) -> None:
    (v2 / "ckpt_contents.json").write_text("{}")
    shutil.copy(unpacked.hf / "model.safetensors", v2 / "model" / "huggingface")
    (note,) = locate(v2).notes
    assert note.startswith(f"weights are also in {v2 / 'model' / 'huggingface'}")
    (v2 / "model" / "dist_ckpt" / ".metadata").unlink()
    with pytest.raises(ConvertError, match=r"Or take the Hugging Face weights in .*: --backend hf"):
        locate(v2)
    assert locate(v2, backend="hf").backend == "hf"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ('{"sharded_backend": "zarr", "sharded_backend_version": 1}', "sharded_backend is 'zarr', version 1"),
        ('{"sharded_backend": "torch_dist", "sharded_backend_version": 2}', "'torch_dist', version 2"),
        ("[]", r"metadata\.json: list where an object is expected"),
        ("[" * 10000, r"metadata\.json: no JSON \(nested too deeply"),
        ("", r"metadata\.json: no JSON"),
    ],
)
def test_metadata_json(recorded: Recorded, config: str, match: str) -> None:
    (recorded.actor / "dist_ckpt" / "metadata.json").write_text(config)
    with pytest.raises(ConvertError, match=match):
        torch_dist.read_index(recorded.actor / "dist_ckpt")


# ---- adapters


def _adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_an_adapter_exported_by_megatron_bridge(v2: Path) -> None:
    """Its shards lie in dist_ckpt, config and tokenizer in huggingface."""
    (v2 / "ckpt_contents.json").write_text('{"backend": {"peft": true}}')
    with pytest.raises(ConvertError, match=r"shards of a LoRA adapter in .*hf_model in checkpoint.save_contents"):
        locate(v2)
    adapter = _adapter(v2 / "model" / "huggingface" / "adapter")
    for path in (v2, v2 / "model", v2.parent):
        found = locate(path)
        assert (found.backend, found.weights, found.adapter) == ("lora", adapter, adapter)
        assert found.huggingface == v2 / "model" / "huggingface"
    shutil.rmtree(v2 / "model" / "dist_ckpt")
    assert locate(v2, backend="lora").weights == adapter
    found = locate(adapter)
    assert (found.backend, found.layout, found.step, found.role) == ("lora", "adapter", 3, "actor")


def test_an_adapter_beside_fsdp_shards(tmp_path: Path) -> None:
    root = tmp_path / "global_step_1" / "actor"
    adapter = _adapter(root / "lora_adapter")
    (root / "model_world_size_1_rank_0.pt").touch()
    found = locate(root)
    assert (found.backend, found.weights, found.adapter) == ("fsdp", root, adapter)


# ---- what others write


def _dcp(folder: Path, state: dict) -> Path:
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no process group
        checkpoint.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def test_torchs_own_distributed_checkpoint(tmp_path: Path) -> None:
    folder = _dcp(tmp_path / "x", {"lm_head.weight": torch.zeros(2)})
    found = locate(folder)
    with pytest.raises(ConvertError, match=r"metadata\.json: missing.*torch\.distributed\.checkpoint itself"):
        torch_dist.read_index(found.weights)


def test_megatron_fsdp(tmp_path: Path) -> None:
    actor = tmp_path / "global_step_1" / "actor"
    _dcp(actor / "model" / "dist_ckpt", {"model": {"module.decoder.weight": torch.zeros(2)}})
    with pytest.raises(ConvertError, match=r"Megatron-FSDP \(use_megatron_fsdp=True\).*hf_model"):
        locate(tmp_path)


@pytest.mark.parametrize(
    ("file", "match"),
    [
        ("mp_rank_00/model_optim_rng.pt", "Megatron's legacy format"),
        ("dist_ckpt/mp_rank_00_000/model_optim_rng.pt", "Megatron's legacy format"),
        ("decoder.final_layernorm.weight/.zarray", "zarr format"),
        ("model/dist_ckpt/a/.zarray", "zarr format"),
        ("adapter_checkpoint/adapter_rank_0.pt", "LoRA adapter as verl 0.7"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, file: str, match: str) -> None:
    root = tmp_path / "global_step_5" / "actor"
    (root / file).parent.mkdir(parents=True)
    (root / file).touch()
    with pytest.raises(ConvertError, match=match):
        locate(tmp_path)


def test_a_run_folder_of_megatron_lm(tmp_path: Path) -> None:
    (tmp_path / TRACKER).write_text("20")
    (tmp_path / "iter_0000020").mkdir()
    with pytest.raises(ConvertError, match=r"a run folder of Megatron-LM \(iter_0000020\)"):
        locate(tmp_path)


def test_vision_language_models_are_named(v2: Path, unpacked: Recorded) -> None:
    config = v2 / "model" / "huggingface" / "config.json"
    edit_json(config, vision_config={}, architectures=["Qwen3VLForConditionalGeneration"])
    with pytest.raises(ConvertError, match=r"vision-language model \(Qwen3VL.*use_mbridge=True"):
        locate(v2)
    shutil.copy(unpacked.hf / "model.safetensors", v2 / "model" / "huggingface")
    assert locate(v2, backend="hf").backend == "hf"
