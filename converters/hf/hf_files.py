"""The files beside the weights: from the checkpoint's `huggingface` folder, what it lacks from the base model."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from converters.errors import ConvertError, listing
from converters.json_file import read_json

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
# What save_pretrained of tokenizers, processors and generation configs of transformers 4 and 5 writes, and what
# tokenizers of published models of the known families bring along. Not code, not weights.
_KEPT = re.compile(
    r"generation_config\.json|tokenizer[\w.-]*\.json|tokenizer\.model[\w.-]*|vocab\.(json|txt|bpe)|merges\.txt"
    r"|special_tokens_map\.json|added_tokens\.json|chat_template\.(jinja|json)"
    r"|((pre|video_pre)?processor|audio_tokenizer|speech_tokenizer)_config\.json"
    r"|spiece\.model|sentencepiece[\w.-]*\.model|(tiktoken|spm)\.model|tekken\.json"
)
_TEMPLATES = "additional_chat_templates"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model", "tekken.json")
_LFS = b"version https://git-lfs"
_MAY_BE_EMPTY = ("merges.txt",)


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


def kept_files(folder: Path) -> dict[str, Path]:
    """Name in a model folder -> file, for what belongs to tokenizer, templates, processor and generation.

    A link to a file counts as the file (the hub's cache is made of them), one to a folder does not.

    Raises:
        ConvertError: a link of such a name leads nowhere.
    """
    found: dict[str, Path] = {}
    templates = folder / _TEMPLATES
    inner = sorted(templates.glob("*.jinja")) if templates.is_dir() and not templates.is_symlink() else []
    for name, path in [
        *((path.name, path) for path in sorted(folder.iterdir()) if _KEPT.fullmatch(path.name)),
        *((f"{_TEMPLATES}/{path.name}", path) for path in inner),
    ]:
        if path.is_symlink() and not path.exists():
            raise ConvertError(f"{path}: a link to {path.readlink()}, which is not there. Copy the file itself.")
        if path.is_file():
            found[name] = path
    return found


def is_kept(name: str) -> bool:
    """Whether a file of this name in a model folder is one of those."""
    inner = name.removeprefix(f"{_TEMPLATES}/")
    return _KEPT.fullmatch(name) is not None or (inner != name and "/" not in inner and inner.endswith(".jinja"))


def refuse_leaving(folder: Path, paths: Iterable[Path]) -> None:
    """A checkpoint may come from anybody: a link in it must not bring a file of this machine into the model.

    Raises:
        ConvertError: one of `paths` leads out of `folder`, and not to its repository's blobs in the hub's cache.
    """
    inside = folder.resolve()
    blobs = inside.parents[1] / "blobs" if inside.parent.name == "snapshots" else None
    problems = [
        f"{path}: a link to {path.resolve()}, out of the folder"
        for path in paths
        if not path.resolve().is_relative_to(inside) and path.resolve().parent != blobs
    ]
    if problems:
        raise listing(
            "files beside the weights are not in the checkpoint",
            problems,
            "Copy the files themselves there if they belong to the model, else remove the links.",
        )


def companions(folders: list[Path], own: Path | None = None) -> dict[str, Path]:
    """File name in the output -> where it is taken from; the first folder that has a file wins.

    All tokenizer files come from one folder, the first that has a tokenizer, for they belong together.

    Args:
        own: folder of the user, where links may lead anywhere.

    Raises:
        ConvertError: a file to take is empty, cut or a Git LFS pointer, or a link out of a checkpoint; every such
            file is listed.
    """
    chosen: dict[str, Path] = {}
    kept = [kept_files(folder) for folder in folders]
    for folder, files in zip(folders, kept, strict=True):
        if folder != own:
            refuse_leaving(folder, files.values())
    tokenizer_from = next((files for files in kept if has_tokenizer(files)), {})
    for files in kept:
        for name, path in files.items():
            if name == GENERATION_CONFIG or files is tokenizer_from:
                chosen.setdefault(name, path)
    problems = [problem for path in chosen.values() if (problem := _damage(path)) is not None]
    if problems:
        raise listing(
            "files beside the weights are damaged",
            problems,
            "Copy them again. To take them from --base_model, move them out of the checkpoint's folder.",
        )
    return chosen


def code_files(path: Path) -> list[str]:
    """Files of Python that `auto_map` of a JSON file names beside it; none of them is copied.

    A value is a class (`modeling_x.Model`), or for tokenizers a list of two, and `repository--modeling_x.Model` is
    code of the hub. Source: transformers 5 `dynamic_module_utils.py` (get_class_from_dynamic_module).
    """
    named = read_json(path).get("auto_map")
    values = list(named.values()) if isinstance(named, dict) else [named]
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return sorted({f"{one.split('.')[0]}.py" for one in flat if isinstance(one, str) and one and "--" not in one})


def tokenizer_code(files: Mapping[str, Path]) -> list[str]:
    """A note, if the tokenizer needs code: it is not copied."""
    path = files.get(TOKENIZER_CONFIG)
    code = code_files(path) if path is not None else []
    told = f"{TOKENIZER_CONFIG} names code that is not copied: {', '.join(code)}"
    return [f"{told}; copy it yourself if you trust it"] if code else []


def _damage(path: Path) -> str | None:
    """What is wrong with a file, as far as that shows without its library."""
    size = path.stat().st_size
    if size == 0:
        return None if path.name in _MAY_BE_EMPTY else f"{path}: empty"
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            return f"{path}: a Git LFS pointer, not the file: run `git lfs pull`"
    if path.suffix != ".json":
        return None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"{path}: {size} bytes, no JSON ({error})"
    return None if isinstance(value, dict) else f"{path}: {type(value).__name__} where an object is expected"


def has_tokenizer(files: dict[str, Path]) -> bool:
    return any(name in files for name in TOKENIZERS)


def copy(files: dict[str, Path], directory: Path) -> None:
    """Copy contents byte for byte; the modes are those of new files."""
    for name, source in files.items():
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)


def write_json(path: Path, value: object) -> None:
    """A JSON file as transformers writes it, flushed to disk."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold and UTF-8 cannot
        data = json.dumps(value, indent=2).encode()
    with path.open("wb") as file:
        file.write(data + b"\n")
        file.flush()
        os.fsync(file.fileno())
