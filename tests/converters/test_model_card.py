"""README.md and run_manifest.json of the output: what is known of the run, nothing of the place where it ran."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from converters.checkpoint import run_manifest
from converters.checkpoint.locate import Checkpoint
from converters.writing.model_card import model_card, plain
from launch.config import Job
from launch.supervisor import manifest
from launch.supervisor.hash_files import HASHES
from launch.supervisor.ports import port_plan
from launch.supervisor.settings import Settings, read_settings

SECRET = "hf_" + "A1b2C3d4E5" * 3
CONFIG = {"architectures": ["Qwen3ForCausalLM"]}


@pytest.fixture
def run(tmp_path: Path) -> Settings:
    """A run of the launcher, as its supervisor describes it, with a checkpoint of step 7."""
    folder = tmp_path / "outputs" / "secret-project" / "run-77"
    folder.mkdir(parents=True)
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    job = Job(name="secret-project").model_dump(mode="json")
    job["model"]["path"] = "/home/somebody/models/Qwen3-4B"
    job["overrides"] = [f"trainer.key={SECRET}"]
    (folder / "job.json").write_text(json.dumps(job))
    words = f"""--run-dir {folder} --checkpoint-dir {folder.parent}/checkpoints --nodes 1 --ray-gpus-head 1
        --ray-gpus-other 1 --ray-cpus 1 --data {tmp_path}/train.parquet --job-file {folder}/job.json
        --note image_sha256={"ab" * 32} --image {tmp_path}/train.parquet ::trainer true""".split()
    weights = folder.parent / "checkpoints" / "global_step_7" / "actor" / "dist_ckpt"
    weights.mkdir(parents=True)
    (weights / ".metadata").write_bytes(b"")
    os.utime(weights / ".metadata", (1_700_000_000, 1_700_000_000))
    (weights / "common.txt").write_bytes(b"copied later")
    environ = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "node-4711"}
    return read_settings(words, environ)


def _actor(run: Settings) -> Path:
    return run.checkpoint_dir / "global_step_7" / "actor"


def _checkpoint(root: Path, **values: Any) -> Checkpoint:
    return Checkpoint(**{
        "root": root, "step": 7, "backend": "megatron", "layout": "v1", "weights": root / "dist_ckpt",
        "huggingface": None, **values,
    })  # fmt: skip


def _card(root: Path, config: dict[str, Any] | None = None, **values: Any) -> str:
    facts: dict[str, Any] = {"tensors": 3, "total_bytes": 12_345, "dtypes": ("BF16",), **values}
    return model_card(_checkpoint(root), config or CONFIG, **facts)


def _front(card: str) -> dict[str, Any]:
    _, front, _ = card.split("---\n", 2)
    loaded: dict[str, Any] = yaml.safe_load(front)
    return loaded


def test_what_the_launcher_writes_is_found_and_what_is_private_stays(run: Settings) -> None:
    manifest.write_manifest(run, port_plan(77))
    described = manifest.read_manifest(run.run_dir)
    data = {"path": described["data"][0]["path"], "size": 4, "mtime": described["data"][0]["mtime"]}
    hashes = {data["path"]: {"size": data["size"], "mtime": data["mtime"], "sha256": "cd" * 32}}
    os.mkfifo(run.run_dir / HASHES)
    assert "data" not in run_manifest.find(_actor(run))[0]
    (run.run_dir / HASHES).unlink()
    (run.run_dir / HASHES).write_text(json.dumps(hashes))
    told, notes = run_manifest.find(_actor(run))
    assert notes == []
    assert told["toolkit"] == described["toolkit"]
    assert told["engines"]["torch"] == described["engines"]["torch"]
    assert told["image"] == {"sha256": "ab" * 32}
    assert told["data"] == [{"sha256": "cd" * 32}]
    assert told["job"]["template"] == "grpo"
    assert told["job"]["model"] == "Qwen3-4B"
    assert told["job"]["algorithm"]["clip_ratio_high"] == Job().algorithm.clip_ratio_high
    assert told["job"]["engine"] == {"verl": "0.9.1", "mode": "one_step_off"}
    card = _card(_actor(run), run=told)
    for text in (json.dumps(told), card):
        for private in (SECRET, "somebody", "node-4711", "secret-project", str(run.run_dir), "77"):
            assert private not in re.sub(r"[0-9a-f.]{12,}", "", text), private
    assert f"| data (SHA-256) | {'cd' * 32} |" in card
    assert re.search(r"^\| versions \| .*torch ", card, re.MULTILINE)
    assert "| algorithm | grpo |" in card
    assert "# Qwen3\\-4B, trained with verl" in card
    assert "saved on 2023-11-14" in card  # not when the manifest was written, at the start of the run


def test_without_a_run_nothing_is_invented(tmp_path: Path) -> None:
    root = tmp_path / "global_step_7" / "actor"
    (root / "dist_ckpt").mkdir(parents=True)
    (root / "dist_ckpt" / ".metadata").write_bytes(b"")
    os.utime(root / "dist_ckpt" / ".metadata", (1_700_000_000, 1_700_000_000))
    assert run_manifest.find(root) == ({}, [])
    card = _card(root)
    assert _front(card) == {"library_name": "transformers"}
    assert "saved on 2023-11-14" in card
    assert "| tensors | 3 |\n| size | 12.3 kB |\n| type | BF16 |" in card
    for unknown in ("versions", "algorithm", "trained from", "run_manifest", "None"):
        assert unknown not in card


def test_the_run_that_was_going_on_is_taken(run: Settings) -> None:
    """Three jobs that went on from each other's checkpoints, and one that wrote elsewhere."""
    saved = time.time()
    os.utime(_actor(run) / "dist_ckpt" / ".metadata", (saved, saved))
    for number, ended, folder in ((1, -9, None), (2, 5, None), (3, 900, None), (4, 1, "/elsewhere/checkpoints")):
        other = run.run_dir.parent / f"run-{number}"
        other.mkdir()
        written = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(saved + ended))
        told = {"written": written, "checkpoint_dir": folder or str(run.checkpoint_dir), "toolkit": f"0.{number}"}
        (other / "manifest.json").write_text(json.dumps(told))
    assert run_manifest.find(_actor(run))[0]["toolkit"] == "0.2"
    os.utime(_actor(run) / "dist_ckpt" / ".metadata", (saved + 1000, saved + 1000))
    assert run_manifest.find(_actor(run))[0]["toolkit"] == "0.3"


def test_checkpoints_inside_the_run(tmp_path: Path) -> None:
    root = tmp_path / "run" / "checkpoints" / "global_step_7" / "actor"
    root.mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_text('{"toolkit": "0.1.0"}')
    assert run_manifest.find(root)[0] == {"toolkit": "0.1.0"}


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"toolkit"', b"[" * 100_000, b"\xff\xfe"])
def test_a_damaged_manifest_is_told_and_does_no_harm(tmp_path: Path, content: bytes) -> None:
    root = tmp_path / "run" / "checkpoints" / "global_step_7" / "actor"
    root.mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_bytes(content)
    told, notes = run_manifest.find(root)
    assert told == {}
    assert len(notes) == 1
    assert str(tmp_path / "run" / "manifest.json") in notes[0]


@pytest.mark.parametrize("value", [None, [], "x", 1, {"a": None}, [{"sha256": 1}], {"estimator": {"x": 1}}])
def test_any_type_at_any_place_of_a_manifest(tmp_path: Path, value: Any) -> None:
    keys = ("toolkit", "written", "engines", "image", "data", "resolved_job", "python")
    job = dict.fromkeys(("template", "engine", "actor", "data", "algorithm", "model", "rollout"), value)
    for told in (dict.fromkeys(keys, value), {"resolved_job": job}):
        card = _card(_with_weights(tmp_path), run=run_manifest.harmless(told))
        assert card.startswith("---\nlibrary_name")


def _with_weights(folder: Path) -> Path:
    (folder / "dist_ckpt").mkdir(exist_ok=True)
    (folder / "dist_ckpt" / "x").write_bytes(b"")
    return folder


INJECTION = "](http://x) <img src=x> |\n# head\n---\nlicense: mit\n`code` **b** \x1b[31m"


def test_values_make_no_markdown(tmp_path: Path) -> None:
    root = _with_weights(tmp_path)
    config = {"architectures": [INJECTION], "_name_or_path": INJECTION}
    run = {"job": {"template": INJECTION, "model": INJECTION}, "engines": {"verl": INJECTION}}
    card = _card(root, config, run=run)
    assert set(_front(card)) == {"library_name"}
    assert "\x1b" not in card
    assert not re.search(r"(?<!\\)[<\]](?!\w*$)", card.split("## How")[0])
    assert [line for line in card.splitlines() if line.startswith("#")] == [
        line for line in card.splitlines() if re.match(r"(# .*, trained with verl|## How to load)$", line)
    ]
    for line in card.splitlines():
        if line.startswith("| arch"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3


def test_markdown_shows_escaped_text_as_it_was() -> None:
    assert plain("a_b*c") == r"a\_b\*c"
    assert plain("x\n\n  y") == "x y"
    assert len(plain("x" * 1000)) < 250


@pytest.mark.parametrize(
    ("name_or_path", "base", "in_front"),
    [
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", True),
        ("/home/me/models/Qwen3-4B", "Qwen3-4B", False),
        ("models/Qwen3-4B", "Qwen3-4B", False),
        ("/c/hub/models--Qwen--Qwen3-4B/snapshots/abc123", "Qwen/Qwen3-4B", True),
        ("../x/My Model", None, False),
        ("", None, False),
    ],
)
def test_base_model_is_named_where_it_is_one_of_the_hub(
    tmp_path: Path, name_or_path: str, base: str | None, in_front: bool
) -> None:
    card = _card(_with_weights(tmp_path), {**CONFIG, "_name_or_path": name_or_path})
    assert _front(card).get("base_model") == (base if in_front else None)
    assert (f"| trained from | {plain(base)} |" in card) if base else "trained from" not in card
    assert "/home/me" not in card


def test_a_path_that_is_there_is_not_a_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "Qwen3-4B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    card = _card(_with_weights(tmp_path), {**CONFIG, "_name_or_path": "mine/Qwen3-4B"})
    assert "base_model" not in _front(card)


@pytest.mark.parametrize(
    ("architecture", "loader"),
    [
        ("Qwen3ForCausalLM", "AutoModelForCausalLM"),
        ("Qwen3ForTokenClassification", "AutoModelForTokenClassification"),
        ("LlamaForSequenceClassification", "AutoModelForSequenceClassification"),
        ("SomethingElse", "AutoModel"),
    ],
)
def test_how_to_load(tmp_path: Path, architecture: str, loader: str) -> None:
    card = _card(_with_weights(tmp_path), {"architectures": [architecture]}, has_tokenizer=False)
    assert f"from transformers import {loader}\n" in card
    assert "AutoTokenizer" not in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    compile(code, "card", "exec")


def test_the_example_loads_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import merge_models
    import torch

    folder = merge_models.make("qwen2_tied", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (code,) = re.findall(r"```python\n(.*?)```", _card(_with_weights(folder.parent), config), re.DOTALL)
    monkeypatch.chdir(folder)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert next(scope["model"].parameters()).dtype == torch.bfloat16
    assert scope["tokenizer"].eos_token == "<|im_end|>"
