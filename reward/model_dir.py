"""What config.json tells about a model directory before torch is imported (about two seconds)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reward.errors import ModelDirError

_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
# PretrainedConfig's default where neither num_labels nor id2label is written (transformers 4.56 and 5.10).
_DEFAULT_LABELS = 2


def _labels(config: dict[str, Any]) -> int:
    if isinstance(config.get("id2label"), dict):
        return len(config["id2label"])
    return int(config.get("num_labels", _DEFAULT_LABELS))


def check_model_dir(path: Path) -> dict[str, Any]:
    """The parsed config.json of a one-label sequence classifier.

    Raises:
        ModelDirError: the directory, config.json, weights or tokenizer is missing; the architecture is not
            ``*ForSequenceClassification``; it has another number of labels than 1; it needs code of its own.
    """
    if not path.is_dir():
        raise ModelDirError(f"{path}: no such directory. Give --model what save_pretrained wrote.")
    config_file = path / "config.json"
    if not config_file.is_file():
        raise ModelDirError(f"{config_file}: missing. Give --model what save_pretrained wrote.")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelDirError(f"{config_file}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelDirError(f"{config_file}: expected a JSON object, got {type(config).__name__}")
    architectures = config.get("architectures") or []
    if not any(str(name).endswith("ForSequenceClassification") for name in architectures):
        raise ModelDirError(
            f"{config_file}: architectures is {architectures}; a reward model is a "
            "*ForSequenceClassification (AutoModelForSequenceClassification with num_labels=1)."
        )
    labels = _labels(config)
    if labels != 1:
        raise ModelDirError(f"{config_file}: the classifier has {labels} labels, a reward model has 1.")
    if "auto_map" in config:
        raise ModelDirError(
            f"{config_file}: auto_map names code inside the checkpoint, which is never executed; "
            "serve a model whose architecture is part of transformers."
        )
    if not any((path / name).is_file() for name in _WEIGHTS):
        raise ModelDirError(f"{path}: no weights ({' or '.join(_WEIGHTS)}).")
    if not any((path / name).is_file() for name in _TOKENIZER):
        raise ModelDirError(f"{path}: no tokenizer ({' or '.join(_TOKENIZER)}).")
    return config
