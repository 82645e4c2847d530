"""A sequence classifier with one label, loaded by transformers onto one device."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from reward.backends.options import ModelOptions
from reward.errors import ModelDirError

log = logging.getLogger("reward.backends.checkpoint")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_devices(options: ModelOptions) -> list[torch.device]:
    """The CPU, or one GPU for each replica.

    Raises:
        ModelDirError: there is no GPU, or there are fewer than replicas.
    """
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.device == "cuda" and not visible:
        raise ModelDirError("--device cuda: torch finds no CUDA device here; use --device auto or cpu.")
    if options.device == "cpu" or not visible:
        return [torch.device("cpu")]
    replicas = options.replicas or visible
    if replicas > visible:
        raise ModelDirError(
            f"--replicas {replicas}: one model a GPU, and {visible} are visible (CUDA_VISIBLE_DEVICES); "
            f"use --replicas {visible} or fewer."
        )
    return [torch.device("cuda", index) for index in range(replicas)]


def choose_dtype(options: ModelOptions, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations."""
    if options.dtype != "auto":
        return _DTYPES[options.dtype]
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def load_classifier(options: ModelOptions, device: torch.device, dtype: torch.dtype) -> Any:
    """The model of ``options.model`` in evaluation mode, with a padding token as its checkpoint has it.

    Nothing is fetched. Safetensors are preferred; pickled weights are read by torch's weights_only reader,
    which runs no code of theirs.

    Raises:
        ModelDirError: transformers cannot load it, or weights are missing.
    """
    path = options.model
    if options.attention == "flash_attention_2" and (device.type == "cpu" or dtype == torch.float32):
        raise ModelDirError(
            f"--attention flash_attention_2 on {device.type} in {dtype}: needs CUDA and bfloat16 or float16; "
            "use --attention auto."
        )
    transformers_logging.disable_progress_bar()
    common: dict[str, Any] = {"trust_remote_code": options.trust_remote_code, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(path, **common)
        attention = options.attention
        if attention == "auto" and getattr(config.get_text_config(), "attn_logit_softcapping", None):
            # transformers' sdpa leaves the soft cap out without a word (4.56 and 5.10, sdpa_attention.py).
            attention = "eager"
        if attention != "auto":
            common["attn_implementation"] = attention
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            path, config=config, dtype=dtype, weights_only=True, output_loading_info=True, **common
        )
    except Exception as error:
        # Whatever a broken checkpoint makes of transformers, torch and safetensors: it cannot be served.
        raise ModelDirError(f"{path}: transformers cannot load it: {type(error).__name__}: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelDirError(f"{path}: the weights lack {', '.join(missing)}; they would be random")
    if unused := sorted(loading["unexpected_keys"]):
        log.warning(
            "%s: %d weights are not part of %s: %s ...", path, len(unused), type(model).__name__, unused[0]
        )
    if model.config.num_labels != 1:
        raise ModelDirError(f"{path}: the classifier has {model.config.num_labels} labels, a reward model has 1.")
    # No second forward pass follows that could use the keys and values of the first.
    model.config.get_text_config().use_cache = model.config.use_cache = False
    try:
        return model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise ModelDirError(f"{path}: the weights do not fit on {device} in {dtype}: {error}") from error


def check_positions(config: Any, max_length: int) -> None:
    """Refuse pairs so long that their positions would depend on the other pairs of a batch.

    Rotary embeddings of type "dynamic" and "longrope" change for a whole batch as soon as one position in it is
    beyond the original length (transformers 4.56 and 5.10, modeling_rope_utils.py, dynamic_rope_update).

    Raises:
        ModelDirError: ``max_length`` is above that length.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for each in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if each.get("rope_type", each.get("type")) not in ("dynamic", "longrope"):
            continue
        original = (
            each.get("original_max_position_embeddings")
            or getattr(text, "original_max_position_embeddings", None)
            or text.max_position_embeddings
        )
        if max_length > original:
            raise ModelDirError(
                f"--max-length {max_length}: beyond {original} tokens the positions of this model ({each}) depend "
                f"on the longest pair of a batch, so would the scores; use --max-length {original} or less."
            )


def padding_token(model: Any, tokenizers: int) -> int:
    """The token id to pad with, set in the model's configuration where that has none.

    Decoders score the last token that is not the configuration's padding token, so the configuration wins
    over the tokenizer: a pair scores as it does alone in transformers.

    Args:
        tokenizers: the tokenizer's choice.

    Raises:
        ModelDirError: the model has no such token.
    """
    config = model.config.get_text_config()
    own = config.pad_token_id
    if isinstance(own, int) and 0 <= own < config.vocab_size:
        return own
    if tokenizers >= config.vocab_size:
        raise ModelDirError(
            f"the tokenizer's padding token is {tokenizers}, and the model has {config.vocab_size} tokens; set "
            "pad_token_id in config.json to one of them."
        )
    config.pad_token_id = model.config.pad_token_id = tokenizers
    return tokenizers


def describe(path: Path, model: Any) -> dict[str, Any]:
    """What ``GET /info`` tells about a loaded model."""
    return {
        "model": str(path),
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "attention": model.config._attn_implementation,
    }
