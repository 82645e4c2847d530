"""What config.json tells about a model directory before torch is imported (about two seconds)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from reward.errors import ModelDirError
from reward.weight_files import check_weights

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# PretrainedConfig's default where neither num_labels nor id2label is written (transformers 4.56 and 5.10).
_DEFAULT_LABELS = 2


def check_model_dir(path: Path, *, weights: bool = True, trust_remote_code: bool = False) -> dict[str, Any]:
    """The parsed config.json of a one-label sequence classifier.

    Args:
        path: directory that ``save_pretrained`` wrote, tokenizer included.
        weights: False where another server has the model, and only its tokenizer is used here.
        trust_remote_code: whether Python code in the directory may be executed later; nothing is executed here.

    Raises:
        ModelDirError: the directory, config.json, weights or tokenizer is missing or damaged; the architecture is
            not ``*ForSequenceClassification``; it has another number of labels than 1; it needs code of its own.
    """
    config_file = _config_file(path)
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelDirError(f"{config_file}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelDirError(f"{config_file}: expected a JSON object, got {type(config).__name__}")
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    if not any(str(name).endswith("ForSequenceClassification") for name in names):
        raise ModelDirError(
            f"{config_file}: architectures is {architectures}; a reward model is a "
            "*ForSequenceClassification (AutoModelForSequenceClassification with num_labels=1)."
        )
    labels = _labels(config)
    if labels != 1:
        raise ModelDirError(f"{config_file}: the classifier has {labels} labels, a reward model has 1.")
    if "auto_map" in config:
        _check_code(path, config_file, config["auto_map"], trust_remote_code)
    if weights:
        check_weights(path)
    if not any((path / name).is_file() for name in _TOKENIZER):
        raise ModelDirError(f"{path}: no tokenizer ({' or '.join(_TOKENIZER)}); save it beside the model.")
    return config


def _config_file(path: Path) -> Path:
    if not path.is_dir():
        raise ModelDirError(_no_directory(path))
    if not (path / "config.json").is_file():
        if (path / "adapter_config.json").is_file():
            raise ModelDirError(
                f"{path}: a LoRA adapter (adapter_config.json), not a model; merge it into its base model "
                "(merge_and_unload of peft) and save the result."
            )
        raise ModelDirError(f"{path / 'config.json'}: missing. Give --model what save_pretrained wrote.")
    return path / "config.json"


def _no_directory(path: Path) -> str:
    if path.exists():
        return f"{path}: is a file, not a directory. Give --model the directory that save_pretrained wrote."
    told = f"{path}: no such directory. Give --model what save_pretrained wrote."
    if _HUB_NAME.fullmatch(str(path)) and not path.parent.exists():
        told += (
            f" If {path} is a name on the Hugging Face hub: nothing is downloaded here; run hf download {path} "
            f"--local-dir models/{path.name}, and give --model models/{path.name}."
        )
    return told


def _labels(config: dict[str, Any]) -> Any:
    if isinstance(config.get("id2label"), dict):
        return len(config["id2label"])
    return config.get("num_labels", _DEFAULT_LABELS)


def _check_code(path: Path, config_file: Path, auto_map: Any, trusted: bool) -> None:
    if not trusted:
        raise ModelDirError(
            f"{config_file}: auto_map names code inside the checkpoint, which is not executed unless "
            "--trust-remote-code is given; read it first, or serve a model whose architecture is part of "
            "transformers."
        )
    for name in auto_map.values() if isinstance(auto_map, dict) else ():
        # [REPOSITORY--]MODULE.CLASS
        module = str(name).rpartition(".")[0]
        file = path / f"{module.rpartition('--')[2]}.py"
        if "--" in module or not file.is_file():
            raise ModelDirError(
                f"{config_file}: auto_map names {name}, and there is no {file}; put the code there, and "
                "MODULE.CLASS into auto_map: nothing is downloaded."
            )
