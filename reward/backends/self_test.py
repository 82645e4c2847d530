"""A few fixed pairs through a backend, before anything is served."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from reward.backends.interface import Backend, Tokens
from reward.errors import ModelDirError, ScoringError

_PAIRS = (
    ("What is 2 + 2?", "4"),
    ("What is 2 + 2?", "Two and two make four. " * 8),
    ("What is the capital of France, and why is it not Lyon?", "Paris."),
    ("yes", "yes"),
)
# By how much the batch may change a score, relative to scores above 1. bfloat16 has 8 bits of mantissa and float16
# 11: only float32 is held to the last digits.
TOLERANCE = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.25}


class Encoder(Protocol):
    """What is needed of :class:`reward.inputs.PairTokenizer`."""

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        """Tokens of each pair, or why there are none."""


def known_pairs(tokenizer: Encoder) -> list[Tokens]:
    """The fixed pairs, as far as the tokenizer's limits let them through.

    Raises:
        ModelDirError: none of them.
    """
    encoded = tokenizer.encode_many(_PAIRS)
    pairs = [tokens for tokens in encoded if isinstance(tokens, Tokens)]
    if not pairs:
        raise ModelDirError(f"self-test: the tokenizer refuses every pair, the first because: {encoded[0]}")
    return pairs


def require_finite(values: Sequence[float], where: str) -> None:
    """Refuse a model whose output is no number.

    Raises:
        ModelDirError: one of ``values`` is NaN or infinite.
    """
    for value in values:
        if not math.isfinite(value):
            raise ModelDirError(
                f"self-test, {where}: the model's output is {value}; the weights are damaged, or the dtype is too "
                "narrow for them: try --dtype float32."
            )


def self_test(backend: Backend, tokenizer: Encoder, tolerance: float = TOLERANCE["float32"]) -> None:
    """Score fixed pairs, alone and in one batch, in every lane.

    Args:
        tolerance: by how much a score may differ between alone and in a batch, relative to scores above 1.

    Raises:
        ModelDirError: a score is not finite, or depends on the batch.
    """
    pairs = known_pairs(tokenizer)
    for lane in range(backend.lanes):
        together = backend.forward(pairs, lane)
        alone = [backend.forward([pair], lane)[0] for pair in pairs]
        require_finite(alone, f"lane {lane}, one pair")
        require_finite(together, f"lane {lane}, a batch")
        for in_batch, single in zip(together, alone, strict=True):
            if abs(in_batch - single) > tolerance * max(1.0, abs(single)):
                raise ModelDirError(
                    f"self-test, lane {lane}: the batch changes a score from {single} to {in_batch}; check "
                    "pad_token_id in config.json, and try --packing off, --attention eager or --dtype float32."
                )
