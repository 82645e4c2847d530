"""What is this checkpoint: which step, which layout, where are the weights. Reads, never writes.

Layouts of verl (checked against 0.6.1 and 0.9.1, `utils/checkpoint/*_checkpoint_manager.py`):

    RUN/latest_checkpointed_iteration.txt      written after a step is saved
    RUN/global_step_N/{actor,critic}/
        v1     dist_ckpt/ (model, optimizer, RNG together)  huggingface/
        v2     model/dist_ckpt/  model/huggingface/  optimizer/  extra/  ckpt_contents.json (written last)
        hf     huggingface/ or model/huggingface/ with weights and no model in a dist_ckpt (mbridge)
        fsdp   model_world_size_W_rank_R.pt  fsdp_config.json  huggingface/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from converters import fsdp, hf_model, torch_dist
from converters.errors import ConvertError
from converters.hf_config import read_json

TRACKER = "latest_checkpointed_iteration.txt"
BACKENDS = ("auto", "megatron", "fsdp", "hf")
_STEP = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """What was found.

    Attributes:
        root: the folder of one role (`.../actor`), or of the weights themselves.
        step: of `global_step_N`, if the path has one.
        backend: "megatron", "fsdp" or "hf".
        layout: "v1", "v2", "fsdp", "hf" or "dist_ckpt", for messages.
        weights: the folder to read weights from.
        huggingface: the folder that may hold config.json and tokenizer.
        transformer_config: what Megatron trained, if it was saved.
    """

    root: Path
    step: int | None
    backend: str
    layout: str
    weights: Path
    huggingface: Path | None
    transformer_config: Path | None = None


def locate(path: Path, step: int | None = None, backend: str = "auto") -> Checkpoint:
    """Find the weights at or below `path`.

    Args:
        path: a run folder, `global_step_N`, `actor`, `dist_ckpt` or a Hugging Face folder.
        step: of a run folder; default: the latest that is whole.
        backend: one of BACKENDS; with "auto" sharded weights go before a Hugging Face copy of them.

    Raises:
        ConvertError: nothing is there, or not what was asked for, or not whole.
    """
    if not path.is_dir():
        raise ConvertError(f"{path}: {'not a folder' if path.exists() else 'does not exist'}")
    run = path / "checkpoints" if steps_in(path / "checkpoints") else path
    if (run / TRACKER).is_file() or steps_in(run):
        path = run / f"global_step_{_choose_step(run, step, backend)}"
    elif step is not None:
        raise ConvertError(f"{path}: --step {step}: no run folder (no global_step_* and no {TRACKER} in it)")
    if not path.is_dir():
        raise ConvertError(f"{path}: does not exist; steps here: {sorted(steps_in(run)) or 'none'}")
    if (path / "actor").is_dir():
        path = path / "actor"
    elif _STEP.fullmatch(path.name):
        raise ConvertError(f"{path}: no actor folder; found {sorted(p.name for p in path.iterdir())}")
    return _role(path, _step_of(path), backend)


def steps_in(run: Path) -> dict[int, Path]:
    """The folders global_step_N of a run, by N."""
    if not run.is_dir():
        return {}
    matches = ((_STEP.fullmatch(p.name), p) for p in run.iterdir() if p.is_dir())
    return {int(match[1]): p for match, p in matches if match}


def _step_of(path: Path) -> int | None:
    for part in reversed(path.absolute().parts):
        match = _STEP.fullmatch(part)
        if match:
            return int(match[1])
    return None


def _choose_step(run: Path, step: int | None, backend: str) -> int:
    """The step asked for, or that of the tracker, or without one the latest that is whole."""
    steps = steps_in(run)
    if step is not None:
        if step not in steps:
            raise ConvertError(f"{run}: no global_step_{step}; steps here: {sorted(steps) or 'none'}")
        return step
    tracker = run / TRACKER
    if tracker.is_file():
        text = tracker.read_text().strip()
        if not text.isdecimal():
            raise ConvertError(
                f"{tracker}: {text[:40]!r} is no step number. Name a step: --step N, N in {sorted(steps)}"
            )
        if int(text) not in steps:
            raise ConvertError(
                f"{tracker} names step {text}, which is not there. Name one: --step N, N in {sorted(steps)}"
            )
        return int(text)
    # Killed before the first tracker was written, or async_save of 0.9.1 that never came to its end.
    reasons = []
    for number in sorted(steps, reverse=True):
        actor = steps[number] / "actor"
        try:
            if not actor.is_dir():
                raise ConvertError(f"{steps[number]}: no actor folder")
            found = _role(actor, number, backend)
            _read(found)
        except ConvertError as error:
            reasons.append(str(error))
        else:
            return number
    raise ConvertError(f"{run}: no {TRACKER}, and no step is whole:\n" + "\n".join(f"  - {r}" for r in reasons))


def _read(found: Checkpoint) -> None:
    reader = {"megatron": torch_dist, "fsdp": fsdp, "hf": hf_model}[found.backend]
    reader.read_index(found.weights)


def _role(root: Path, step: int | None, backend: str) -> Checkpoint:
    """The weights in one role's folder."""
    found = _candidates(root, step, backend)
    if backend != "auto":
        chosen = [c for c in found if c.backend == backend]
        if not chosen:
            there = ", ".join(f"{c.backend} in {c.weights}" for c in found) or "nothing"
            raise ConvertError(f"{root}: --backend {backend}: no such weights; found {there}")
        return chosen[0]
    if not found:
        raise ConvertError(
            f"{root}: no weights: no dist_ckpt or model/dist_ckpt with shards, no model_world_size_*.pt, "
            f"no *.safetensors in it or its huggingface folder; found {sorted(p.name for p in root.iterdir())}"
        )
    return found[0]


def _candidates(root: Path, step: int | None, backend: str) -> list[Checkpoint]:
    """Every set of weights in `root`, the first to be preferred: shards are what the trainer goes on from."""
    found = []
    config = root / "transformer_config.json"
    for layout, top in (("v2", root / "model"), ("v1", root)):
        dist, hf = top / "dist_ckpt", top / "huggingface"
        # With mbridge a v1 dist_ckpt holds optimizer and RNG only; 0.9.1's helpers leave empty folders behind.
        if backend != "hf" and dist.is_dir() and any(dist.iterdir()) and _holds_model(root, dist, hf):
            found.append(Checkpoint(root, step, "megatron", layout, dist, hf if hf.is_dir() else None, config))
        if hf_model.has_weights(hf):
            found.append(Checkpoint(root, step, "hf", f"hf in {layout}", hf, hf))
    if any(root.glob("model_world_size_*_rank_*.pt")):
        hf = root / "huggingface"
        found.insert(0, Checkpoint(root, step, "fsdp", "fsdp", root, hf if hf.is_dir() else None))
    if (root / ".metadata").is_file():
        beside = root.parent / "huggingface"
        above = root.parent.parent if root.parent.name == "model" else root.parent
        found.append(
            Checkpoint(
                root, step, "megatron", "dist_ckpt", root, beside if beside.is_dir() else None,
                above / "transformer_config.json",
            )
        )  # fmt: skip
    if hf_model.has_weights(root):
        found.append(Checkpoint(root, step, "hf", "hf", root, root))
    return found


def _holds_model(root: Path, dist: Path, hf: Path) -> bool:
    contents = root / "ckpt_contents.json"
    if contents.is_file() and (read_json(contents).get("backend") or {}).get("peft"):
        raise ConvertError(f"{contents}: the checkpoint holds a LoRA adapter (peft); adapters are not merged yet")
    return not hf_model.has_weights(hf) or bool(torch_dist.read_index(dist))
