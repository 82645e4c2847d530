"""What is this checkpoint: which step, role and layout, where are the weights. Reads, never writes.

Layouts of verl (checked against 0.6.1 and 0.9.1, `utils/checkpoint/*_checkpoint_manager.py`):

    RUN/latest_checkpointed_iteration.txt      written after a step is saved
    RUN/global_step_N/{actor,critic}/          the SFT trainer has no folder of a role in it
        v1     dist_ckpt/ (model, optimizer, RNG together)  huggingface/
        v2     model/dist_ckpt/  model/huggingface/  optimizer/  extra/  ckpt_contents.json (written last)
        hf     huggingface/ or model/huggingface/ with weights and no model in a dist_ckpt (mbridge)
        fsdp   model_world_size_W_rank_R.pt  fsdp_config.json  huggingface/
        lora   model/huggingface/adapter/ (Megatron-Bridge), lora_adapter/ (FSDP, beside its shards)

Where shards and a Hugging Face copy of them lie side by side, the shards are taken, for they are what the trainer
goes on from; `backend="hf"` takes the copy. verl's own merger looks into model/huggingface (Megatron) and
huggingface (FSDP) only (`_default_hf_model_config_path`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from converters.checkpoint import foreign, fsdp, torch_dist
from converters.errors import ConvertError
from converters.hf import hf_model
from converters.hf.names import ADAPTER_CONFIG
from converters.json_file import read_json
from converters.printing import one_line

TRACKER = "latest_checkpointed_iteration.txt"
BACKENDS = ("auto", "megatron", "fsdp", "hf", "lora")
ROLES = ("actor", "critic")
_CONTENTS = "ckpt_contents.json"
_STEP = re.compile(r"global_step_(\d+)")
_BELOW_A_ROLE = ("dist_ckpt", "huggingface", "model", "adapter", "lora_adapter")
_LONGEST_NUMBER = 19


@dataclass(frozen=True)
class Checkpoint:
    """What was found.

    Attributes:
        root: the folder of one role (`.../actor`), or of the weights themselves.
        step: of `global_step_N`, if the path has one.
        backend: "megatron", "fsdp", "hf" or "lora": only an adapter is there, the base model is elsewhere.
        layout: "v1", "v2", "fsdp", "hf", "dist_ckpt" or "adapter", with "hf in v1" and the like, for messages.
        weights: the folder to read weights from.
        huggingface: the folder that may hold config.json and tokenizer.
        transformer_config: what Megatron trained, if it was saved.
        role: "actor" or "critic", if the path has one.
        adapter: folder of a LoRA adapter in peft's form (adapter_config.json), beside `weights` or equal to it.
        notes: choices that were made, for a person.
    """

    root: Path
    step: int | None
    backend: str
    layout: str
    weights: Path
    huggingface: Path | None
    transformer_config: Path | None = None
    role: str | None = None
    adapter: Path | None = None
    notes: tuple[str, ...] = ()


def locate(path: Path, step: int | None = None, backend: str = "auto", role: str | None = None) -> Checkpoint:
    """Find the weights at or below `path`.

    Args:
        path: a run folder, `global_step_N`, a role's folder, `model`, `dist_ckpt`, an adapter or a Hugging Face
            folder; links are followed.
        step: of a run folder; default: that of verl's tracker, without one the latest that is whole.
        backend: one of BACKENDS; with "auto" sharded weights go before a Hugging Face copy of them.
        role: one of ROLES; default: the actor, where there is none the critic.

    Raises:
        ConvertError: nothing is there, or not what was asked for, or not whole.
    """
    if not path.is_dir():
        raise ConvertError(no_folder(path))
    run = checkpoints_of(path)
    steps = steps_in(run)
    if (run / TRACKER).is_file() or steps:
        foreign.refuse_run(run, steps)
        return _of_run(run, steps, step, backend, role)
    if step is not None:
        raise ConvertError(f"{path}: --step {step}: no run folder (no global_step_* and no {TRACKER} in it)")
    return _of_step(path, backend, role)


def checkpoints_of(path: Path) -> Path:
    """The folder of checkpoints that `path` is, or has in it, as a run folder has."""
    return path / "checkpoints" if steps_in(path / "checkpoints") else path


def steps_in(run: Path) -> dict[int, Path]:
    """The folders global_step_N of a run, by N."""
    if not run.is_dir():
        return {}
    matches = ((_STEP.fullmatch(p.name), p) for p in run.iterdir() if p.is_dir())
    return {int(match[1]): p for match, p in matches if match and len(match[1]) < _LONGEST_NUMBER}


def no_folder(path: Path) -> str:
    """What is at or above `path`, which is no folder."""
    if path.exists():
        return f"{path}: not a folder. Give the folder that it lies in: {path.absolute().parent}"
    if path.is_symlink():
        return f"{path}: a link to {path.readlink()}, which does not exist"
    above = next((p for p in path.absolute().parents if p.is_dir()), None)
    if above is None:
        return f"{path}: does not exist"
    there = sorted(one_line(p.name) for p in above.iterdir())[:20]
    return f"{path}: does not exist; {above} has {', '.join(there) if there else 'nothing in it'}"


# ---- which step


def _of_run(run: Path, steps: dict[int, Path], step: int | None, backend: str, role: str | None) -> Checkpoint:
    """The step asked for, or that of the tracker, or without one the latest that is whole."""
    _check_role(run, steps, role)
    if step is not None:
        if step not in steps:
            raise ConvertError(f"{run}: no global_step_{step}; steps here: {_numbers(steps)}")
        return _of_step(steps[step], backend, role)
    tracker = run / TRACKER
    if not tracker.is_file():
        # Killed before the first tracker was written, or async_save of 0.9.1 that never came to its end.
        return _latest_whole(run, steps, backend, role)
    # A file that was cut may hold anything.
    text = tracker.read_bytes()[:200].decode(errors="replace").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER):
        raise ConvertError(f"{tracker}: {text[:40]!r} is no step number. {_name_one(steps)}")
    if int(text) not in steps:
        raise ConvertError(f"{tracker} names step {int(text)}, which is not there. {_name_one(steps)}")
    found, reason = _try(steps[int(text)], backend, role)
    if found is not None:
        return replace(found, notes=(*found.notes, *_newer(steps, int(text), backend, role)))
    others = {n: p for n, p in steps.items() if n != int(text) and _try(p, backend, role)[0] is not None}
    remedy = (
        f"Whole steps here: {_numbers(others)}; take one with --step N."
        if others
        else "No other step here is whole."
    )
    raise ConvertError(
        f"{tracker} names step {int(text)}, which cannot be taken:\n  {reason}\n{remedy}"
    ) from reason


def _newer(steps: dict[int, Path], taken: int, backend: str, role: str | None) -> Iterator[str]:
    """A note if a later step than the tracker's is whole: killed before the tracker was written, or copied."""
    for number in sorted(steps, reverse=True):
        if number > taken and _try(steps[number], backend, role)[0] is not None:
            yield f"step {taken} is taken, as {TRACKER} names it; a newer step {number} is there: --step {number}"
            return


def _check_role(run: Path, steps: dict[int, Path], role: str | None) -> None:
    """A role that no step has is not one that a save did not come to."""
    if role is None or not steps or any((step / role).is_dir() for step in steps.values()):
        return
    names = [name for name in ROLES if any((step / name).is_dir() for step in steps.values())]
    there = ", ".join(names) or "no folder of a role"
    raise ConvertError(
        f"{run}: --role {role}: no step of this run has a {role}; found {there}. "
        "Leave --role out to take what is there."
    )


def _latest_whole(run: Path, steps: dict[int, Path], backend: str, role: str | None) -> Checkpoint:
    reasons = []
    for number in sorted(steps, reverse=True):
        found, reason = _try(steps[number], backend, role)
        if found is not None:
            return found
        reasons.append(str(reason))
    raise ConvertError(f"{run}: no {TRACKER}, and no step is whole:\n" + "\n".join(f"  - {r}" for r in reasons))


def _try(step: Path, backend: str, role: str | None) -> tuple[Checkpoint | None, ConvertError | None]:
    """The weights of a step if their tables are whole, else why not."""
    try:
        found = _of_step(step, backend, role)
        reader = {"megatron": torch_dist, "fsdp": fsdp, "hf": hf_model, "lora": hf_model}[found.backend]
        reader.read_index(found.weights)
    except ConvertError as error:
        return None, error
    return found, None


def _numbers(steps: dict[int, Path]) -> str:
    return ", ".join(map(str, sorted(steps))) or "none"


def _name_one(steps: dict[int, Path]) -> str:
    if not steps:
        return "No global_step_N is there either: is this the run's folder of checkpoints?"
    return f"Name a step: --step N, N one of {_numbers(steps)}"


# ---- which role


def _of_step(path: Path, backend: str, role: str | None) -> Checkpoint:
    """Weights in `global_step_N`, or in what lies in it."""
    there = [name for name in ROLES if (path / name).is_dir()]
    if there:
        chosen = role or there[0]
        if chosen not in there:
            raise ConvertError(f"{path}: --role {chosen}: no such folder; found {', '.join(there)}")
        alone = role is None and chosen != ROLES[0]
        notes = (f"{path} has no actor: its {chosen} is taken",) if alone else ()
        return _weights(path / chosen, chosen, backend, notes)
    named = _role_of(path)
    if role is not None and role != named:
        raise ConvertError(
            f"{path}: --role {role}: this is the {named}'s folder"
            if named
            else f"{path}: --role {role}: no such folder; found {_listed(path)}"
        )
    return _weights(path, named, backend, ())


def _role_of(path: Path) -> str | None:
    """Of the folder of a role, or of one that verl makes in it."""
    for whole in (path.absolute(), path.resolve()):
        for part in reversed(whole.parts):
            if part in ROLES:
                return part
            if part not in _BELOW_A_ROLE:
                break
    return None


def _step_of(path: Path) -> int | None:
    for whole in (path.absolute(), path.resolve()):
        for part in reversed(whole.parts):
            match = _STEP.fullmatch(part)
            if match and len(match[1]) < _LONGEST_NUMBER:
                return int(match[1])
    return None


def _listed(folder: Path) -> str:
    names = sorted(one_line(p.name) for p in folder.iterdir())
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "nothing"


# ---- which weights


def _weights(root: Path, role: str | None, backend: str, notes: tuple[str, ...]) -> Checkpoint:
    """The weights in one role's folder, or in its `model` (layout v2)."""
    if root.absolute().name == "model" and any((root / name).is_dir() for name in ("dist_ckpt", "huggingface")):
        root = root.absolute().parent
    found = list(_candidates(root, role, backend))
    chosen = [c for c in found if backend in ("auto", c.backend)]
    if not chosen:
        foreign.refuse(root)
        if backend != "auto":
            there = ", ".join(f"{c.backend} in {c.weights}" for c in found) or "nothing"
            raise ConvertError(f"{root}: --backend {backend}: no such weights; found {there}")
        raise ConvertError(
            f"{root}: no weights: no dist_ckpt or model/dist_ckpt with shards, no model_world_size_*.pt, "
            f"no *.safetensors in it or its huggingface folder; found {_listed(root)}"
        )
    first = chosen[0]
    others = [c for c in chosen[1:] if c.weights != first.weights]
    if others:
        notes += (
            f"weights are also in {', '.join(str(c.weights) for c in others)}; taken are those that the trainer "
            f"goes on from, in {first.weights}"
            + (" (--backend hf takes the others)" if backend == "auto" else ""),
        )
    if first.layout == "v2" and not (root / _CONTENTS).is_file():
        notes += (f"{root / _CONTENTS} is missing: the save did not come to its end; only weights are checked",)
    if first.backend == "fsdp" and not (root / fsdp.CONFIG).is_file():
        notes += (f"{root / fsdp.CONFIG} is missing: the number of ranks is that in the names of the shards",)
    if first.backend != "hf" and first.huggingface is not None:
        foreign.refuse_vision(first.huggingface / "config.json")
    return Checkpoint(**{**vars(first), "notes": notes})


def _candidates(root: Path, role: str | None, backend: str) -> Iterator[Checkpoint]:
    """Every set of weights in `root`, the first to be preferred: shards are what the trainer goes on from."""
    step = _step_of(root)
    if any(root.glob("model_world_size_*_rank_*.pt")):
        adapter = _adapter(root / "lora_adapter")
        yield Checkpoint(root, step, "fsdp", "fsdp", root, _folder(root / "huggingface"), None, role, adapter)
    for layout, top in (("v2", root / "model"), ("v1", root)):
        yield from _of_layout(root, layout, top, step, role, backend)
    if (root / ".metadata").is_file() or (root / torch_dist.CONFIG).is_file():
        above = root.parent.parent if root.parent.name == "model" else root.parent
        config = above / "transformer_config.json"
        beside = _folder(root.parent / "huggingface")
        yield Checkpoint(root, step, "megatron", "dist_ckpt", root, beside, config, role)
    if _adapter(root):
        yield Checkpoint(root, step, "lora", "adapter", root, _folder(root.parent), None, role, root)
    elif hf_model.has_weights(root):
        yield Checkpoint(root, step, "hf", "hf", root, root, None, role)


def _of_layout(
    root: Path, layout: str, top: Path, step: int | None, role: str | None, backend: str
) -> Iterator[Checkpoint]:
    """Megatron's layouts: dist_ckpt and huggingface in `top`."""
    dist, hf = top / "dist_ckpt", top / "huggingface"
    config = root / "transformer_config.json"
    adapter = _adapter(hf / "adapter")
    # 0.9.1's helpers make folders while they look, so an empty one says nothing.
    filled = dist.is_dir() and any(dist.iterdir())
    if adapter is not None and (_trained_adapter(root) or not filled):
        # What lies in dist_ckpt are the same adapter's shards.
        yield Checkpoint(root, step, "lora", layout, adapter, _folder(hf), config, role, adapter)
    elif backend not in ("hf", "lora") and filled:
        if _trained_adapter(root):
            raise ConvertError(
                f"{root / _CONTENTS}: the checkpoint holds the shards of a LoRA adapter in {dist} and no "
                f"{hf / 'adapter' / ADAPTER_CONFIG}. Save again with hf_model in checkpoint.save_contents, which "
                "exports the adapter."
            )
        if _holds_model(dist, hf):
            yield Checkpoint(root, step, "megatron", layout, dist, _folder(hf), config, role, adapter)
    if hf_model.has_weights(hf):
        yield Checkpoint(root, step, "hf", f"hf in {layout}", hf, hf, None, role, adapter)


def _holds_model(dist: Path, hf: Path) -> bool:
    """With mbridge a dist_ckpt of v1 holds optimizer and RNG only."""
    if not hf_model.has_weights(hf):
        return True
    try:
        return torch_dist.holds_model(dist)
    except ConvertError as error:
        raise ConvertError(f"{error}\nOr take the Hugging Face weights in {hf}: --backend hf.") from error


def _trained_adapter(root: Path) -> bool:
    contents = root / _CONTENTS
    written = read_json(contents).get("backend") if contents.is_file() else None
    return isinstance(written, dict) and bool(written.get("peft"))


def _adapter(folder: Path) -> Path | None:
    return folder if (folder / ADAPTER_CONFIG).is_file() else None


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None
