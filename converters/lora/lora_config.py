"""Settings of a LoRA adapter: which of them can be merged, and by which scale.

Two files say them. `adapter_config.json` (PEFT; verl 0.6.1 writes it to `lora_adapter/` beside an actor's shards)
says all; `lora_train_meta.json` (verl 0.9.1 `utils/checkpoint/fsdp_checkpoint_manager.py`: _save_lora_train_meta)
says rank and alpha only. Where neither is, as with verl 0.6.1's critics, verl's own merger writes an alpha of 0,
which switches the adapter off; here that is an error. Sources: peft 0.21 `tuners/lora/config.py`,
`tuners/lora/layer.py` (update_layer), `utils/other.py` (get_pattern_key).
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.errors import ConvertError, listing
from converters.hf.names import ADAPTER_CONFIG
from converters.json_file import read_json

META, FOLDER = "lora_train_meta.json", "lora_adapter"
Settings = Mapping[str, Any]

_NOT_A_PRODUCT = "the weight is not W + scale * B @ A"
_REFUSED = {
    "use_dora": f"DoRA: {_NOT_A_PRODUCT}, its rows are scaled",
    "use_qalora": f"QALoRA: {_NOT_A_PRODUCT}",
    "use_bdlora": f"BD-LoRA: {_NOT_A_PRODUCT}",
    "kasa_config": f"KaSA: {_NOT_A_PRODUCT}",
    "monteclora_config": f"MonteCLoRA: {_NOT_A_PRODUCT}",
    "arrow_config": "Arrow chooses among adapters for each token",
    "alora_invocation_tokens": "activated LoRA works on some tokens only",
    "layer_replication": "the layers are not those of the base model",
    "target_parameters": "parameters of fused experts are adapted",
    "trainable_token_indices": "single rows of the embeddings are trained",
    "lora_bias": "lora_B has a bias",
    "fan_in_fan_out": "the weights are transposed (Conv1D of GPT-2), which no family here has",
}
# Do not change what the adapter adds to the base's weights.
_HARMLESS = frozenset(
    {
        "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "r",
        "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "bias", "use_rslora", "modules_to_save",
        "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
        "megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
        "runtime_config", "qalora_group_size", "peft_version", "ensure_weight_tying", "velora_config",
    }
)  # fmt: skip
_INIT_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Python's matching goes back: time grows by a power of the repeats, and without bound where a group is repeated.
_TAME = re.compile(r"(?:[\w.|^$-]|\\[.dw]|\[\^?[\w-]+\]|\((?!\?)|\)(?![*+?{])|[*+?])*")
_MOST_BRANCHES, _LONGEST_PATTERN, _LONGEST_NAME = 3, 1000, 200
_REMEDY = "Merge it with PEFT itself (merge_and_unload)."
DEFAULTS: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "inference_mode": True,
    "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
    "init_lora_weights": True, "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": None,
}  # fmt: skip


def read_config(path: Path, alpha: float | None = None) -> dict[str, Any]:
    """adapter_config.json, checked.

    Args:
        alpha: `--lora-alpha`; where the file says another one, that is an error.

    Raises:
        ConvertError: it is missing or damaged, or a setting is one that is not merged here.
    """
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise ConvertError(f"{path}: peft_type {reprlib.repr(config.get('peft_type'))}, not LORA. {_REMEDY}")
    problems = [f"{key}: {why}" for key, why in _REFUSED.items() if config.get(key)]
    problems += [
        f"{key} is {reprlib.repr(value)}: not a setting that is known here"
        for key, value in config.items()
        if value and key not in _HARMLESS and key not in _REFUSED
    ]
    for key in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(key) or {}
        if not isinstance(pattern, dict) or not all(_positive(value) for value in pattern.values()):
            problems.append(f"{key} is {reprlib.repr(pattern)}: numbers by module name are expected")
    if problems:
        raise listing(f"{path}: not an adapter that is merged here", problems, _REMEDY)
    return {**config, "r": _rank(config, path), "lora_alpha": _alpha(config, path, alpha)}


def of_checkpoint(root: Path, alpha: float | None = None) -> tuple[dict[str, Any], Path]:
    """Settings of the adapter whose matrices lie in the shards of `root`, and the file that says them.

    `lora_train_meta.json` does not say `use_rslora` or patterns; verl itself sets neither.

    Raises:
        ConvertError: no file says alpha and `alpha` is not given, or two of them disagree.
    """
    meta_path, config_path = root / META, root / FOLDER / ADAPTER_CONFIG
    meta = read_json(meta_path) if meta_path.is_file() else None
    if config_path.is_file():
        config = read_config(config_path, alpha)
        for key in ("r", "lora_alpha"):
            if meta is not None and _positive(meta.get(key)) and meta[key] != config[key]:
                raise ConvertError(
                    f"{meta_path}: {key} is {meta[key]}, in {config_path} {config[key]}: not of one adapter. "
                    "Take the file away that is not of this step."
                )
        return config, config_path
    if meta is None and alpha is None:
        raise ConvertError(
            f"{meta_path}: missing, and no {FOLDER}/{ADAPTER_CONFIG} either: nothing says the alpha of the LoRA "
            "matrices in the shards. Give --lora-alpha N with the lora_alpha of the training (verl: "
            "model.lora_alpha)."
        )
    said = meta or {}
    config = {**DEFAULTS, "lora_alpha": _alpha(said, meta_path, alpha)}
    if said.get("task_type") is not None:
        config["task_type"] = said["task_type"]
    if "r" in said:
        config["r"] = _rank(said, meta_path)
    return config, meta_path if meta is not None else Path("--lora-alpha")


def scale(config: Settings, module: str, rank: int, where: Path) -> float:
    """What B @ A of `module` is multiplied with: alpha / r, or alpha / sqrt(r) with `use_rslora`.

    Raises:
        ConvertError: the matrices have another rank than the settings say.
    """
    said = _by_pattern(config.get("rank_pattern") or {}, module, config.get("r"), where)
    if said is not None and said != rank:
        raise ConvertError(
            f"{where}: r is {said:g}, the matrices of {module} have rank {rank}: not of one adapter. Put the "
            f"{ADAPTER_CONFIG} of the training into {FOLDER}/."
        )
    alpha = float(_by_pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"], where))
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def needs_own_base(config: Settings) -> str | None:
    """Why the adapter fits the weights beside it only, not the model that the training began with."""
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_INIT_CHANGES_BASE):
        return f"init_lora_weights={init} changed the base's weights at the start of the training"
    return None


def trains_base(config: Settings) -> bool:
    """Whether weights beside the matrices were trained: biases, or modules as a whole."""
    return config.get("bias", "none") != "none" or bool(config.get("modules_to_save"))


def _by_pattern(patterns: Settings, module: str, default: Any, where: Path) -> Any:
    """As `peft.utils.other.get_pattern_key`: the first pattern that the end of the name matches."""
    for pattern, value in patterns.items():
        _check_tame(pattern, module, where)
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error as error:
            raise ConvertError(
                f"{where}: {reprlib.repr(pattern)} is no pattern of module names ({error})"
            ) from error
    return default


def _check_tame(pattern: str, module: str, where: Path) -> None:
    """A pattern comes out of the checkpoint: only those are tried that come to an end soon."""
    branches = sum(pattern.count(mark) for mark in "*+?(")
    if not _TAME.fullmatch(pattern) or branches > _MOST_BRANCHES or len(pattern) > _LONGEST_PATTERN:
        raise ConvertError(
            f"{where}: the pattern {reprlib.repr(pattern)} of module names is not one that is read: names, "
            f"\\., |, [] and at most {_MOST_BRANCHES} of *, + and groups, no group repeated. "
            "Write the names of the modules."
        )
    if branches and len(module) > _LONGEST_NAME:
        raise ConvertError(f"{where}: {reprlib.repr(module)} is too long a name for {reprlib.repr(pattern)}")


def _alpha(said: Settings, path: Path, given: float | None) -> float:
    alpha: Any = said.get("lora_alpha")
    if not _positive(alpha):
        if given is None:
            raise ConvertError(
                f"{path}: lora_alpha is {reprlib.repr(alpha)}, a positive number is expected. Give "
                f"--lora-alpha N with the lora_alpha of the training (verl: model.lora_alpha; {META} keeps it)."
            )
        return given
    if given is not None and given != alpha:
        raise ConvertError(f"{path}: lora_alpha is {alpha}, --lora-alpha is {given:g}. Leave the option out.")
    return float(alpha) if isinstance(alpha, float) else int(alpha)


def _rank(said: Settings, path: Path) -> int:
    rank = said.get("r")
    if not isinstance(rank, int) or not _positive(rank):
        raise ConvertError(
            f"{path}: r is {reprlib.repr(rank)}, a positive whole number is expected. Copy the file again."
        )
    return rank


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
