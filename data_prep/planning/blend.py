"""Several sources mixed by weight: how many rows of each, and in which order."""

from __future__ import annotations

from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Up to here the pattern of a whole period is made once and repeated.
_LONGEST_PERIOD = 1 << 16

Turns = NDArray[np.unsignedinteger[Any]]


def blend(rows: list[int], weights: list[Fraction]) -> tuple[list[int], Turns]:
    """Mix sources until the next row would be one of a source that has no more.

    After every row, each source has its exact share of the rows so far, rounded up or down.

    Args:
        rows: of each source.
        weights: above 0, of each source; what counts is their ratio.

    Returns:
        How many rows of each source are used, and the number of the source whose turn it is at each place of the
        output. A source gives its rows in its own order.
    """
    shares = _integers(weights)
    period = sum(shares)
    kind = np.min_scalar_type(len(rows) - 1)
    if period > _LONGEST_PERIOD:
        turns = _turns(shares, rows, kind)
    else:
        pattern = _turns(shares, shares, kind)
        # After t rows a source has t * share / period of them, rounded up or down: none lasts longer than this.
        longest = min((count + 1) * period // share for count, share in zip(rows, shares, strict=True))
        turns = np.tile(pattern, longest // period + 1)
        ends = [np.flatnonzero(turns == number)[count:][:1] for number, count in enumerate(rows)]
        turns = turns[: min(int(end[0]) for end in ends if len(end))].copy()
    return np.bincount(turns, minlength=len(rows)).tolist(), turns


def _integers(weights: list[Fraction]) -> list[int]:
    """The smallest whole numbers in the same ratio."""
    scale = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = gcd(*whole)
    return [weight // divisor for weight in whole]


def _turns(shares: list[int], rows: list[int], kind: np.dtype[Any]) -> Turns:
    """The turns until a source has no row for its next one.

    Row j of a source belongs into the places from floor(j / share) to ceil((j + 1) / share): unit jobs with whole
    release times and deadlines on one machine. There is a schedule that keeps them all (Baruah et al.,
    "Proportionate progress", 1996), and where there is one, taking the earliest deadline finds it.
    """
    period = sum(shares)
    given = [0] * len(shares)
    coming = [(0, number) for number in range(len(shares))]
    ready: list[tuple[int, int]] = []
    heapify(coming)
    turns: Turns = np.empty(sum(rows), kind)
    length = 0
    for place in range(len(turns)):
        while coming and coming[0][0] <= place:
            _, number = heappop(coming)
            heappush(ready, (-(-(given[number] + 1) * period // shares[number]), number))
        _, number = heappop(ready)
        if given[number] == rows[number]:
            break
        turns[place] = number
        given[number] += 1
        length += 1
        heappush(coming, (given[number] * period // shares[number], number))
    given_turns: Turns = turns[:length].copy()
    return given_turns
