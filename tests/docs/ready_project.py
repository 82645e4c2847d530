"""A project that has what the pages speak of, in small: models, data, labelled images, a site, a failed run."""

import json
from pathlib import Path

from doc_shell import ROOT, code_block
from model_folders import QWEN3_4B, QWEN3_REWARD, model_folder
from recorded_sites import put_programs
from sif_files import with_labels

from data_prep import convert
from singularity import checksum, labels
from singularity.stack import load_stack


def image(path: Path, stack_name: str) -> None:
    """An image with the labels of a stack, and its checksum; nothing is in it."""
    stack = load_stack(stack_name)
    told = {labels.STACK: stack.name, labels.STACK_CONTENT: stack.content}
    told |= {f"{labels.PACKAGE}{name}": version for name, version in stack.pins.items()}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(with_labels(told))
    checksum.record(path)


def ready_project(folder: Path) -> Path:
    """Everything that the ready jobs name, and the ready jobs themselves."""
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    model_folder(folder / "models" / "Qwen3-4B-Thinking-2507", QWEN3_4B)
    for name in ("Unsafe-Reward-Qwen3-1.7B", "my-reward-model"):
        model_folder(folder / "models" / name, QWEN3_REWARD)
    (folder / "job.yaml").write_text(code_block(ROOT / "README.md", "yaml"))
    code = convert.main(["sample:gsm8k", "--ground-truth", "question", "--out", str(folder / "data")])
    assert code == 0
    put_programs(folder / "site", ("sinfo", "scontrol", "sacctmgr"))
    image(folder / "images" / "verl-0.6.1.sif", "verl-0.6.1")
    image(folder / "images" / "verl-0.9.1.sif", "verl-0.9.1")
    image(folder / "images" / "verl-cpu.sif", "cpu")
    run = folder / "outputs" / "my-grpo" / "run-1234"
    run.mkdir(parents=True)
    failure = {
        "component": "trainer",
        "node": "n1",
        "kind": "missing-path",
        "cause": "ended with 1",
        "exit_code": 1,
    }
    (run / "verdict.json").write_text(json.dumps({"state": "failed", **failure, "what_to_do": "correct the path"}))
    return folder
