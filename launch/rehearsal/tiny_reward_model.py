"""A reward model with hand-set weights: its score rises with the share of digit tokens in the text.

Embedding: dimension 0 is 1 for a digit token, dimension 1 is 1 for any other, dimension 2 holds a constant.
Every embedding has the same length, so RMSNorm is a plain factor. Queries and keys are 0: attention is the
mean over all tokens so far, its value the digit indicator, written to dimension 3. The MLP adds nothing. The
score head reads dimension 3 of the last token, so that
    score = SCALE * s / sqrt(1 + s * s / NORM2), s = share of digit tokens, NORM2 = 1 + CONSTANT ** 2
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCALE = 10.0
CONSTANT = 3.0  # large against the share: keeps the final RMSNorm close to linear
NORM2 = 1 + CONSTANT**2
_HIDDEN = 32


def digit_tokens(tokenizer: Any) -> list[int]:
    """Ids of the tokens that are digits, with or without a space before."""
    return [
        token
        for token in range(len(tokenizer))
        if token not in tokenizer.all_special_ids and tokenizer.decode([token]).strip().isdecimal()
    ]


def build_reward_model(tokenizer: Any, folder: Path) -> int:
    """Write the model (float32) and its tokenizer to `folder`; AutoModelForSequenceClassification loads it.

    Returns:
        How many tokens count as digits.

    Raises:
        ValueError: The tokenizer has no digit token.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, Qwen3Config

    digits = digit_tokens(tokenizer)
    if not digits:
        raise ValueError(f"none of the {len(tokenizer)} tokens is a number: the reward would be constant")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=_HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=_HIDDEN,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        num_labels=1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    # After RMSNorm a component c of a vector of squared length NORM2 is c * sqrt(_HIDDEN / NORM2).
    normed = (_HIDDEN / NORM2) ** 0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        embedding = model.get_input_embeddings().weight
        embedding[:, 1] = 1.0
        embedding[:, 2] = CONSTANT
        embedding[digits, 0] = 1.0
        embedding[digits, 1] = 0.0
        attention = model.model.layers[0].self_attn
        attention.v_proj.weight[0, 0] = 1 / normed
        attention.o_proj.weight[3, 0] = 1.0
        model.score.weight[0, 3] = SCALE / normed
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return len(digits)
