"""One batch through the backend: logits become scores, and errors reach only the pairs that they belong to."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from reward.backends.interface import Backend, Score, Tokens
from reward.errors import NonFiniteScoreError, ScoringError

log = logging.getLogger("reward.serving.lanes")


def score_batch(backend: Backend, lane: int, batch: Sequence[Tokens]) -> list[Score | ScoringError]:
    """Score the pairs of one batch.

    A batch that raises is tried once more, pair by pair: neither a pair that the model cannot take nor too little
    memory for the whole batch fails the others. An error that has an HTTP status of its own is no such case: the
    server behind this one is down for each of the pairs.

    Returns:
        one entry a pair, in order: its score, or the error for this pair.
    """
    error: Exception
    try:
        return [_checked(value, tokens) for value, tokens in zip(backend.forward(batch, lane), batch, strict=True)]
    except ScoringError as refused:
        return [refused for _ in batch]
    except Exception as raised:  # noqa: BLE001 - out of memory, a kernel fault: whatever it is, it is told below
        error = raised.with_traceback(None)  # its frames hold the tensors of the batch
    told = "alone" if len(batch) == 1 else "now one by one"
    log.error("a batch of %d pairs failed (%s): %s: %s", len(batch), told, type(error).__name__, error)
    if len(batch) == 1:
        return [ScoringError(f"{type(error).__name__} in the forward pass of this pair ({len(batch[0])} tokens)")]
    del error
    return [result for tokens in batch for result in score_batch(backend, lane, [tokens])]


def _checked(value: float, tokens: Tokens) -> Score | ScoringError:
    if math.isfinite(value):
        return Score(value, len(tokens), tokens.dropped > 0)
    return NonFiniteScoreError(f"the model's output is {value}, not a score ({len(tokens)} tokens)")
