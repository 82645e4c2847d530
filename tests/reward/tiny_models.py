"""Random tiny classifiers of many families, for the tests of packing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from reward.backends.interface import Tokens

VOCABULARY = 300
LONGEST = 256
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.3,
    "num_labels": 1,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8}
_ENCODER = {**_COMMON, "type_vocab_size": 2, "embedding_size": 32}
_ROBERTA = {**_COMMON, "type_vocab_size": 1, "pad_token_id": 1}


@dataclass(frozen=True)
class Family:
    """A classifier's name in transformers, its configuration, and why it cannot be packed (empty: it can)."""

    name: str
    config: dict[str, Any] = field(hash=False)
    refused: str = ""
    types: bool = False


# Encoders use AttentionInterface from transformers 5 on.
_OLD = "" if int(transformers.__version__.split(".")[0]) >= 5 else "packed forward pass fails|AttentionInterface"
FAMILIES = {
    "qwen2": Family("Qwen2", _GROUPED),
    "qwen2-window": Family(
        "Qwen2", {**_GROUPED, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}
    ),
    "qwen3": Family("Qwen3", _GROUPED),
    "llama": Family("Llama", _GROUPED),
    "mistral-window": Family("Mistral", {**_GROUPED, "sliding_window": 16}),
    "gemma": Family("Gemma", _GROUPED),
    "gemma2": Family("Gemma2", _GROUPED, refused="softcap"),
    "gpt2": Family(
        "GPT2",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": LONGEST,
            "initializer_range": 0.3,
            "num_labels": 1,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
    ),
    "bloom": Family(
        "Bloom",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "num_labels": 1,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
        refused="AttentionInterface",
    ),
    "bert": Family("Bert", _ENCODER, refused=_OLD, types=True),
    "electra": Family("Electra", _ENCODER, refused=_OLD, types=True),
    "albert": Family("Albert", _ENCODER, refused=_OLD, types=True),
    "roberta": Family("Roberta", _ROBERTA, refused=_OLD),
    "xlm-roberta": Family("XLMRoberta", _ROBERTA, refused=_OLD),
    "distilbert": Family(
        "DistilBert",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "hidden_dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": LONGEST,
            "initializer_range": 0.3,
            "num_labels": 1,
        },
        refused=_OLD,
    ),
    "deberta": Family(
        "DebertaV2",
        {**_COMMON, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
        refused="no rule how DebertaV2ForSequenceClassification pools",
    ),
    "modernbert": Family(
        "ModernBert",
        {
            **_COMMON,
            "num_hidden_layers": 4,
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
            "classifier_pooling": "cls",
            "cls_token_id": 2,
            "sep_token_id": 3,
        },
        refused=_OLD,
    ),
    "modernbert-mean": Family(
        "ModernBert",
        {
            **_COMMON,
            "num_hidden_layers": 4,
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
            "classifier_pooling": "mean",
            "cls_token_id": 2,
            "sep_token_id": 3,
        },
        refused=_OLD,
    ),
}


def tiny_model(family: Family) -> Any:
    """A seeded model in float32, as :func:`reward.backends.checkpoint.load_classifier` leaves one."""
    config = getattr(transformers, f"{family.name}Config")(**family.config)
    torch.manual_seed(3)
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) else None
    model = getattr(transformers, f"{family.name}ForSequenceClassification")._from_config(
        config, attn_implementation=attention
    )
    model.config.use_cache = False
    return model.float().eval()


def random_pair(generator: torch.Generator, length: int, types: bool = False) -> Tokens:
    """Tokens that are none of the special ones."""
    ids = torch.randint(5, VOCABULARY, (length,), generator=generator).tolist()
    return Tokens(ids, [0] * (length // 2) + [1] * (length - length // 2) if types else ())


def alone(model: Any, pairs: list[Tokens]) -> list[float]:
    """What transformers makes of each pair by itself."""
    scores = []
    for pair in pairs:
        inputs = {"input_ids": torch.tensor([pair.input_ids])}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if pair.token_type_ids:
            inputs["token_type_ids"] = torch.tensor([pair.token_type_ids])
        with torch.inference_mode():
            scores.append(model(**inputs).logits[0, 0].item())
    return scores
