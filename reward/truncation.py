"""Which tokens of a pair stay when there are too many: pure functions over who owns each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Truncate = Literal["error", "left", "right"]

PROMPT, RESPONSE = 0, 1


def shares_right(prompt: int, response: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay: the longer one gives way until both are equal, then both do.

    The arithmetic of ``longest_first`` in tokenizers 0.22 (tokenizers/src/utils/truncation.rs), which is what
    ``truncation=True`` means in transformers: where both must give way and ``room`` is odd, the longer text has
    the token more, the response where they are equally long.
    """
    if prompt + response <= room:
        return prompt, response
    half = room // 2
    if prompt > response:
        kept = min(response, half)
        return room - kept, kept
    kept = min(prompt, half)
    return kept, room - kept


def shares_left(prompt: int, response: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay: all of the response that there is room for, then of the prompt."""
    kept = min(response, room)
    return min(prompt, room - kept), kept


def kept_positions(owners: Sequence[int | None], truncate: Truncate, max_length: int) -> list[int]:
    """The positions that stay, ascending; ``max_length`` of them, where there are more tokens than that.

    Args:
        owners: of each token PROMPT, RESPONSE, or None for special and template tokens, which always stay.
        truncate: ``right`` drops from the end of the longer text, ``left`` from the beginning of the prompt and
            then of the response.
        max_length: at least the number of tokens owned by None.

    Raises:
        ValueError: ``truncate`` forbids to drop any, or the tokens that always stay are too many.
    """
    prompt, response = owners.count(PROMPT), owners.count(RESPONSE)
    if len(owners) <= max_length:
        return list(range(len(owners)))
    if truncate == "error":
        raise ValueError(
            f"{len(owners)} tokens are more than {max_length}, and truncate=error forbids to drop any"
        )
    room = max_length - (len(owners) - prompt - response)
    if room < 0:
        raise ValueError(f"{max_length - room} tokens always stay, more than the {max_length} that may")
    shares = shares_right if truncate == "right" else shares_left
    keep_prompt, keep_response = shares(prompt, response, room)
    # In the order of its own tokens, each text keeps [first, last).
    bounds = {
        PROMPT: (0, keep_prompt) if truncate == "right" else (prompt - keep_prompt, prompt),
        RESPONSE: (0, keep_response) if truncate == "right" else (response - keep_response, response),
    }
    seen = {PROMPT: 0, RESPONSE: 0}
    kept = []
    for position, owner in enumerate(owners):
        if owner is not None:
            first, last = bounds[owner]
            rank = seen[owner]
            seen[owner] += 1
            if not first <= rank < last:
                continue
        kept.append(position)
    return kept
