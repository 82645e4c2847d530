"""The files beside the weights: from the checkpoint's `huggingface` folder, what it lacks from the base
model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from converters.errors import ConvertError

CONFIG = "config.json"
# What transformers' save_pretrained of tokenizers, processors and generation configs writes. Not code, not
# weights.
_KEPT = re.compile(
    r"generation_config\.json|tokenizer[\w.-]*\.json|tokenizer\.model[\w.-]*|vocab\.(json|txt)|merges\.txt"
    r"|special_tokens_map\.json|added_tokens\.json|chat_template\.(jinja|json)|(pre|video_pre)?processor_config\.json"
    r"|preprocessor_config\.json|spiece\.model|sentencepiece[\w.-]*\.model"
)
_KEPT_FOLDERS = ("additional_chat_templates",)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def config_folder(checkpoint: Path | None, base_model: Path | None, where: Path) -> Path:
    """The folder whose config.json describes the checkpoint: its own, else the base model.

    Raises:
        ConvertError: neither has one.
    """
    for folder in (checkpoint, base_model):
        if folder is not None and (folder / CONFIG).is_file():
            return folder
    if base_model is not None:
        raise ConvertError(f"{base_model / CONFIG}: missing: --base_model must be a Hugging Face model folder")
    raise ConvertError(
        f"{where}: the checkpoint has no config.json (verl 0.9.1 with use_dist_checkpointing leaves "
        "model/huggingface empty). Add --base_model DIR, the model that the training started from."
    )


def companions(folders: list[Path]) -> dict[str, Path]:
    """File name in the output -> where it is taken from; the first folder that has a file wins.

    All tokenizer files come from one folder, the first that has a tokenizer, for they belong together.
    """
    chosen: dict[str, Path] = {}
    tokenizer_from = next((f for f in folders if any((f / name).is_file() for name in _TOKENIZERS)), None)
    for folder in folders:
        for path in sorted(folder.iterdir()):
            of_tokenizer = path.name != "generation_config.json"
            if of_tokenizer and folder != tokenizer_from:
                continue
            if path.is_file() and _KEPT.fullmatch(path.name):
                chosen.setdefault(path.name, path)
            if path.is_dir() and path.name in _KEPT_FOLDERS:
                for inner in sorted(path.glob("*.jinja")):
                    chosen.setdefault(f"{path.name}/{inner.name}", inner)
    return chosen


def has_tokenizer(files: dict[str, Path]) -> bool:
    return any(name in files for name in _TOKENIZERS)


def copy(files: dict[str, Path], directory: Path) -> None:
    """Copy contents byte for byte; the modes are those of new files."""
    for name, source in files.items():
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
