"""Checkpoints and models that are recognised and not converted: each with its name and the way out."""

from __future__ import annotations

import re
from pathlib import Path

from converters.errors import ConvertError
from converters.hf.names import ADAPTER_CONFIG
from converters.json_file import read_json

_ITERATION = re.compile(r"iter_\d{7,}|release")
_RANK = re.compile(r"mp_rank_\d\d.*")


def refuse_run(run: Path, steps: dict[int, Path]) -> None:
    """A run folder of Megatron-LM has a tracker of the same name.

    Raises:
        ConvertError: naming its folders.
    """
    found = sorted(p for p in run.iterdir() if p.is_dir() and _ITERATION.fullmatch(p.name))
    if steps or not found:
        return
    raise ConvertError(
        f"{run}: a run folder of Megatron-LM ({found[-1].name}), not of verl. Give the folder of one iteration, "
        f"for torch_dist checkpoints: {found[-1]}"
    )


def refuse(root: Path) -> None:
    """Say what `root` holds, when it is a known kind that is not read.

    Raises:
        ConvertError: naming the files, what wrote them and what to do.
    """
    for folder in (root, root / "model", root / "model" / "dist_ckpt", root / "dist_ckpt"):
        if not folder.is_dir():
            continue
        names = sorted(path.name for path in folder.iterdir())
        legacy = next((name for name in names if _RANK.fullmatch(name) and (folder / name).is_dir()), None)
        if legacy is not None:
            raise ConvertError(
                f"{folder / legacy}: shards of Megatron's legacy format (torch, one file a rank), which is not "
                "read: it names no global tensor. Convert it with Megatron-LM (--ckpt-convert-format torch_dist), "
                "or save with verl 0.6 or later."
            )
        if any((folder / name / ".zarray").is_file() for name in names[:1000]):
            raise ConvertError(
                f"{folder}: a checkpoint in zarr format, which megatron-core removed and which is not read. "
                "Convert it with Megatron-LM up to 0.13 (--ckpt-convert-format torch_dist)."
            )
    if (root / "adapter_checkpoint").is_dir():
        raise ConvertError(
            f"{root / 'adapter_checkpoint'}: a LoRA adapter as verl 0.7 and 0.8 saved it with Megatron (one file "
            "a rank), which is not read. Save again with verl 0.9 and hf_model in checkpoint.save_contents, which "
            f"exports {ADAPTER_CONFIG}."
        )


def refuse_vision(config: Path) -> None:
    """A vision-language model: its config.json keeps the dimensions in `text_config`.

    Raises:
        ConvertError: it is one. No file: nothing to say.
    """
    if not config.is_file():
        return
    raw = read_json(config)
    if isinstance(raw.get("vision_config"), dict) or ("text_config" in raw and "num_hidden_layers" not in raw):
        named = ", ".join(map(str, raw.get("architectures") or [])) or str(raw.get("model_type"))
        raise ConvertError(
            f"{config}: a vision-language model ({named}), which is not merged from shards. Let the trainer write "
            "Hugging Face weights: use_mbridge=True with use_dist_checkpointing=False, or hf_model in "
            "checkpoint.save_contents; these are copied and checked."
        )
