"""Which of the pairs that wait make the next batch."""

from __future__ import annotations

from collections.abc import Sequence

# Of a padded batch at least this share is tokens. A pair alone runs at three quarters of the speed of a batch
# without padding (measured on CPU), so that a batch with more padding is slower than its pairs one by one.
LEAST_SHARE = 0.875
# A forward pass costs something however short its rows are: for the share, shorter rows count as this many tokens.
_SHORT_ROW = 32


def packed_batch(lengths: Sequence[int], budget: int) -> list[int]:
    """Positions of a batch that costs the sum of its lengths.

    Args:
        lengths: tokens of the pairs, in the order in which they are due.
        budget: tokens of the batch; the first pair is taken even when it alone is longer.

    Returns:
        the first position, and each further one that still fits, ascending.
    """
    chosen: list[int] = []
    used = 0
    for position, length in enumerate(lengths):
        if not chosen or used + length <= budget:
            chosen.append(position)
            used += length
    return chosen


def padded_batch(lengths: Sequence[int], budget: int) -> list[int]:
    """Positions of a batch whose rows all cost as much as the longest.

    Args:
        lengths: tokens of the pairs, in the order in which they are due.
        budget: longest row times rows; the first pair is taken even when it alone is longer.

    Returns:
        the first position and those of most similar length, as long as little of the batch is padding.
    """
    if not lengths:
        return []
    rows = [max(length, _SHORT_ROW) for length in lengths]
    chosen = [0]
    longest = lengths[0]
    tokens = rows[0]
    for position in sorted(range(1, len(rows)), key=lambda place: abs(rows[place] - rows[0])):
        widest = max(longest, lengths[position])
        count = len(chosen) + 1
        if widest * count > budget:
            continue
        if tokens + rows[position] < LEAST_SHARE * max(widest, _SHORT_ROW) * count:
            continue
        chosen.append(position)
        longest = widest
        tokens += rows[position]
    return sorted(chosen)


def padding(lengths: Sequence[int]) -> int:
    """Tokens that a padded batch of these lengths adds."""
    return max(lengths) * len(lengths) - sum(lengths) if lengths else 0
