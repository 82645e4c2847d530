"""Counts of lengths: gathered batch by batch in bounded memory, shown as bars in a terminal."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

_MOST_VALUES = 1 << 16
_PRECISION_BITS = 7
_BINS = 12
# Lengths whose largest is this many times the 90th percentile are shown in bins that double.
_LONG_TAIL = 4
_BAR, _PLAIN_BAR = "\u2588", "#"


class Histogram:
    """Counts of non-negative integers.

    Exact for up to 65,536 different values; with more, values from 256 on are kept to 1 part in 128. ``low``,
    ``high``, ``count`` and ``mean`` are always exact.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.low = 0
        self.high = 0
        self._counts: Counter[int] = Counter()
        self._coarse = False

    def add(self, values: NDArray[np.int64]) -> None:
        """Count each of ``values``."""
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        self.low = min(self.low, low) if self.count else low
        self.high = max(self.high, high)
        self.count += len(values)
        self.total += int(values.sum())
        found, counts = np.unique(values, return_counts=True)
        for value, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._counts[_coarse(value) if self._coarse else value] += count
        if len(self._counts) > _MOST_VALUES and not self._coarse:
            self._coarse = True
            coarse: Counter[int] = Counter()
            for value, count in self._counts.items():
                coarse[_coarse(value)] += count
            self._counts = coarse

    @property
    def mean(self) -> float:
        """0 where nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> int:
        """The smallest counted value that at least ``share`` of all values do not pass; 0 where there is none."""
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= share * self.count:
                return value
        return 0

    def bins(self) -> list[tuple[int, int, int]]:
        """(first value, last value, count) of a dozen bins that hold all values; a bin may be empty."""
        if not self.count:
            return []
        edges = self._edges()
        counts = [0] * (len(edges) - 1)
        places = np.searchsorted(edges, list(self._counts), side="right") - 1
        for place, count in zip(places.tolist(), self._counts.values(), strict=True):
            counts[min(max(place, 0), len(counts) - 1)] += count
        return [(edges[n], edges[n + 1] - 1, count) for n, count in enumerate(counts)]

    def _edges(self) -> list[int]:
        if self.high > _LONG_TAIL * max(self.quantile(0.9), 1) and self.high >= 2 * _BINS:
            # 2**n values a bin, from the one that holds the lowest.
            first = max(self.low.bit_length() - 1, 0)
            powers = [1 << n for n in range(first, self.high.bit_length() + 1)]
            return [0 if self.low == 0 else powers[0], *powers[1:]]
        width = _nice((self.high - self.low + 1) / _BINS)
        first = self.low // width * width
        return [*range(first, self.high + 1, width), first + ((self.high - first) // width + 1) * width]

    def figures(self) -> dict[str, float]:
        """The numbers that describe it."""
        return {
            "count": self.count,
            "low": self.low,
            "high": self.high,
            "mean": round(self.mean, 1),
            **{f"p{share}": self.quantile(share / 100) for share in (50, 90, 95, 99)},
        }

    def lines(self, width: int, *, plain: bool = False) -> list[str]:
        """One line a bin, ``width`` columns at most: ``100-199  ###   12  3.0 %``.

        Args:
            plain: ASCII only.
        """
        bins = self.bins()
        labels = [f"{low:,}-{high:,}" if high > low else f"{low:,}" for low, high, _ in bins]
        counts = [f"{count:,}" for _, _, count in bins]
        left, right = max(map(len, labels), default=0), max(map(len, counts), default=0)
        room = max(width - left - right - len("    100.0 %"), 1)
        most = max((count for _, _, count in bins), default=1)
        bar = _PLAIN_BAR if plain else _BAR
        return [
            f"{label:>{left}}  {bar * -(-count * room // most):<{room}} {told:>{right}} {count / self.count:7.1%}"
            for label, told, (_, _, count) in zip(labels, counts, bins, strict=True)
        ]


def _coarse(value: int) -> int:
    drop = max(value.bit_length() - 1 - _PRECISION_BITS, 0)
    return value >> drop << drop


def _nice(width: float) -> int:
    """1, 2 or 5 times a power of ten, at least ``width``."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= width:
                return factor * power
        power *= 10
