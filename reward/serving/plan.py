"""Batches of pairs by length under a token budget."""

from __future__ import annotations

from collections.abc import Sequence


def plan_batches(lengths: Sequence[int], token_budget: int, max_pairs: int) -> list[list[int]]:
    """Group positions of ``lengths`` (tokens) into batches of similar length.

    A batch costs its longest member times its size, padding included; that stays within ``token_budget``,
    except where one pair alone is longer. Each position occurs once; batches go from short to long.
    """
    batches: list[list[int]] = []
    current: list[int] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Sorted by length: this one is the longest so far.
        if current and (lengths[position] * (len(current) + 1) > token_budget or len(current) >= max_pairs):
            batches.append(current)
            current = []
        current.append(position)
    if current:
        batches.append(current)
    return batches
