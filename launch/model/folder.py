"""What a Hugging Face model folder must hold before a job may start from it: weights, tokenizer, chat template.

Only headers are read. What a broken download leaves behind (a file that is empty, cut off or a Git LFS pointer, a
missing shard) would otherwise be found by the trainer, hours later.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from launch.model.config_json import LFS_MAGIC, ShapeError, read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# Their vocab.json is half of a byte-level BPE: transformers 4.56 and 5.10 refuse it without merges.txt, where
# there is no tokenizer.json. Other tokenizers (Wav2Vec2's, Speech2Text's) have a vocab.json, too, and no merges.
_WITH_MERGES = frozenset(
    f"{name}Tokenizer"
    for name in (
        "Bart", "Blenderbot", "CLIP", "CodeGen", "Deberta", "GPT2", "LED", "Longformer", "Mvp", "Qwen2", "Roberta",
        "Whisper",
    )
)  # fmt: skip
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
# Of a safetensors header; the format's own limit is 100 MB.
_HEADER_LIMIT = 100_000_000


def weight_problems(folder: Path) -> Iterator[str]:
    """What is wrong with the weights of `folder`; each line names the file."""
    if (folder / _INDEX).exists():
        try:
            index = read_json(folder / _INDEX).get("weight_map")
        except ShapeError as error:
            yield str(error)
            return
        if not isinstance(index, dict) or not index:
            yield f"{folder / _INDEX}: no weight_map"
            return
        shards: dict[str, set[str]] = {}
        for tensor, name in index.items():
            shards.setdefault(str(name), set()).add(tensor)
        for name, tensors in sorted(shards.items()):
            if name != os.path.basename(name) or name in ("", ".", ".."):  # noqa: PTH119
                yield f"{folder / _INDEX}: names the shard {name!r}, which is no file name"
                continue
            yield from _shard_problems(folder / name, tensors)
    elif (folder / _SINGLE).exists():
        yield from _shard_problems(folder / _SINGLE, set())
    elif not any((folder / name).exists() for name in _PICKLES):
        yield f"{folder}: no weights ({_SINGLE}, {_INDEX} or {_PICKLES[0]})"


def only_pickles(folder: Path) -> bool:
    """Whether the weights are pytorch_model.bin and nothing else."""
    safe = (folder / _INDEX).exists() or (folder / _SINGLE).exists()
    return not safe and any((folder / name).exists() for name in _PICKLES)


def file_problem(path: Path) -> str | None:
    """Why `path` cannot be what its name says: absent, a folder, empty, a Git LFS pointer, unreadable."""
    if not path.exists():
        return f"{path}: does not exist"
    if not path.is_file():
        return f"{path}: is no file"
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_MAGIC))
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror or error}"
    if not start:
        return f"{path}: is empty"
    if start == LFS_MAGIC:
        return f"{path}: a Git LFS pointer, not the file: run `git lfs pull` there"
    return None


def _shard_problems(path: Path, tensors: set[str]) -> Iterator[str]:
    problem = file_problem(path)
    if problem is not None:
        yield problem
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(_HEADER_LIMIT, size - 8):
            yield f"{path}: is no safetensors file, or its {size} bytes are cut off within the header"
            return
        text = file.read(length)
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        yield f"{path}: its safetensors header cannot be read"
        return
    if size < expected:
        yield f"{path}: holds {size} of {expected} bytes; the download was cut off"
    missing = sorted(tensors - header.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield f"{path}: lacks {missing[0]}{more}, which {_INDEX} expects there"


def tokenizer_problems(folder: Path) -> Iterator[str]:
    """What is wrong with the tokenizer files of `folder`."""
    present = [name for name in _TOKENIZERS if (folder / name).exists()]
    if not present:
        yield f"{folder}: no tokenizer ({', '.join(_TOKENIZERS)})"
    for name in present:
        problem = file_problem(folder / name)
        if problem is not None:
            yield problem
    config = folder / "tokenizer_config.json"
    if config.exists():
        try:
            named = read_json(config).get("tokenizer_class")
        except ShapeError as error:
            yield str(error)
            return
        if str(named).removesuffix("Fast") in _WITH_MERGES and not (folder / "tokenizer.json").exists():
            yield from _merges_problems(folder, str(named))


def _merges_problems(folder: Path, name: str) -> Iterator[str]:
    """What keeps vocab.json, where it is there, from being a byte-level BPE."""
    merges = folder / "merges.txt"
    if not (folder / "vocab.json").exists():
        return
    if not merges.exists():
        yield f"{merges}: missing; {name} needs it beside vocab.json, or tokenizer.json in place of both"
    elif (problem := file_problem(merges)) is not None:
        yield problem


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer knows how to write a conversation (transformers 4.56 and 5.10: either place).

    A broken tokenizer_config.json counts as one that has none.
    """
    if any((folder / name).is_file() for name in _TEMPLATES) or (folder / "additional_chat_templates").is_dir():
        return True
    try:
        return bool(read_json(folder / "tokenizer_config.json").get("chat_template"))
    except ShapeError:
        return False
