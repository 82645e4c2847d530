"""Hugging Face -> checkpoint (written by verl and Megatron) -> Hugging Face: the same bits, the same logits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from merge_helpers import assert_same_tensors, edit_json, snapshot
from merge_jobs import JOBS, JOBS_061

from converters.merge import main, merge

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", JOBS)
def test_round_trip_is_exact(
    name: str, written: dict[str, Path], hf_models: dict[str, Path], tmp_path: Path
) -> None:
    import torch
    import transformers
    from transformers import AutoTokenizer

    source, actor, out = hf_models[name.rsplit("-", 1)[0]], written[name], tmp_path / "out"
    job = JOBS[name][1]
    before = snapshot(actor)
    # use_dist_checkpointing of 0.9.1 leaves model/huggingface empty; FSDP brings all of its own.
    base = None if "fsdp" in name else _base_model(source, job, tmp_path / "base")
    result = merge(actor, out, base_model=base)
    assert snapshot(actor) == before

    trained = torch.float32 if job.get("dtype", "float32") == "float32" and "fsdp" in name else None
    assert_same_tensors(source, out, trained)
    assert result.total_bytes == sum(p.nbytes for p in _tensors(out))
    architecture = json.loads((source / "config.json").read_text())["architectures"][0]
    head = next(head for head in AUTO if architecture.endswith(head))
    auto = getattr(transformers, AUTO[head])
    model, info = auto.from_pretrained(out, output_loading_info=True)
    assert type(model).__name__ == architecture
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == (trained or torch.bfloat16)
    ids = torch.randint(0, 300, (2, 17), generator=torch.Generator().manual_seed(3))
    reference = auto.from_pretrained(source, dtype=model.dtype)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, reference(ids).logits)
    assert AutoTokenizer.from_pretrained(out).chat_template == AutoTokenizer.from_pretrained(source).chat_template
    if head == "ForCausalLM":
        assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}


def _base_model(source: Path, job: dict, folder: Path) -> Path:
    """The model that training started from: for a critic a language model, whose config.json knows no labels."""
    if job.get("value") != "critic":
        return source
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    edit_json(folder / "config.json", architectures=[job["like"]], id2label=None, label2id=None)
    return folder


def _tensors(folder: Path) -> list:
    from merge_helpers import load

    return list(load(folder).values())


@pytest.mark.parametrize("name", JOBS_061)
def test_round_trip_of_verl_061_is_exact(name: str, written_by_061: Path, tmp_path: Path) -> None:
    source, actor = written_by_061 / "hf" / name.rsplit("-", 1)[0], written_by_061 / name / "actor"
    before, job = snapshot(actor), JOBS_061[name]
    assert main(["--local_dir", str(actor), "--target_dir", str(tmp_path / "out"), "--verify", "--quiet"]) == 0
    assert snapshot(actor) == before
    assert b"optimizer" in (actor / "dist_ckpt" / ".metadata").read_bytes() or not job.get("v1")
    assert_same_tensors(source, tmp_path / "out")
    architectures = [
        json.loads((side / "config.json").read_text())["architectures"] for side in (source, tmp_path / "out")
    ]
    assert architectures[0] == architectures[1] or ("like" in job and "value" not in job)


def test_command_on_each_layout(written: dict[str, Path], hf_models: dict[str, Path], tmp_path: Path) -> None:
    """The lines that a launcher runs."""
    arguments = ["--local_dir", str(written["qwen3-pp2"]), "--target_dir", str(tmp_path / "a")]
    assert main([*arguments, "--base_model", str(hf_models["qwen3"])]) == 0
    assert main(["--local_dir", str(written["qwen3_odd-fsdp2"]), "--target_dir", str(tmp_path / "b")]) == 0


def test_empty_huggingface_folder_asks_for_base_model(
    written: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--local_dir", str(written["qwen3-tp1"]), "--target_dir", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert "--base_model DIR" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_base_model_is_refused(
    written: dict[str, Path], hf_models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for base in ("qwen2", "qwen3_odd", "llama"):
        arguments = ["--local_dir", str(written["qwen3-tp2"]), "--target_dir", str(tmp_path / base)]
        assert main([*arguments, "--base_model", str(hf_models[base])]) == 1
        assert str(hf_models[base]) in capsys.readouterr().err
        assert not (tmp_path / base).exists()
