"""Which tokens of a pair stay when there are too many: pure functions over who owns each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

Truncate = Literal["error", "left", "right"]

PROMPT: Final = 0
RESPONSE: Final = 1


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
    """The positions that stay, ascending; ``max_length`` of them where there are more tokens than that.

    Args:
        owners: of each token PROMPT, RESPONSE, or None for special and template tokens, which always stay.
        truncate: ``right`` drops from the end of the longer text, ``left`` from the beginning of the prompt and
            then of the response.
        max_length: at least the number of tokens owned by None.

    Raises:
        ValueError: ``truncate`` forbids to drop any, or the tokens that always stay are too many.
    """
    if len(owners) <= max_length:
        return list(range(len(owners)))
    if truncate == "error":
        raise ValueError(
            f"{len(owners)} tokens are more than {max_length}, and truncate=error forbids to drop any"
        )
    positions: dict[int, list[int]] = {PROMPT: [], RESPONSE: []}
    kept: list[int] = []
    for position, owner in enumerate(owners):
        (kept if owner is None else positions[owner]).append(position)
    room = max_length - len(kept)
    if room < 0:
        raise ValueError(f"{len(kept)} tokens always stay, more than the {max_length} that may")
    shares = shares_right if truncate == "right" else shares_left
    counts = shares(len(positions[PROMPT]), len(positions[RESPONSE]), room)
    for owner, count in zip((PROMPT, RESPONSE), counts, strict=True):
        mine = positions[owner]
        kept += mine[:count] if truncate == "right" else mine[len(mine) - count :]
    return sorted(kept)
