"""The interface between the service and what computes scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Tokens:
    """One tokenised (prompt, response), special tokens included.

    Attributes:
        input_ids: at least one.
        token_type_ids: as many, or empty for tokenizers that make none.
        dropped: tokens that truncation took away, 0 for a pair that fitted.
    """

    input_ids: Sequence[int]
    token_type_ids: Sequence[int] = ()
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Score:
    """The model's raw output for one pair, always finite."""

    value: float
    tokens: int
    truncated: bool


class Backend(Protocol):
    """Computes logits of batches.

    Attributes:
        lanes: how many batches it computes side by side; the service has one thread for each.
        batch_tokens: tokens of a batch, padding included, at which it is quickest.
        packs: whether a batch costs the sum of its lengths; else each row costs as much as the longest.
    """

    lanes: int
    batch_tokens: int
    packs: bool

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        """Logits of the pairs, in order, as the model gave them: NaN and inf are the caller's to refuse.

        Called from the thread of ``lane`` (0 to ``lanes`` - 1), for several lanes at once.

        Raises:
            ScoringError: with the HTTP status that the clients of this batch shall see.
            Exception: whatever a forward pass raises.
        """

    def info(self) -> Mapping[str, Any]:
        """JSON values for ``GET /info``: what computes, on what, how it was tuned."""

    def close(self) -> None:
        """Release what it holds; no ``forward`` is running or will follow."""
