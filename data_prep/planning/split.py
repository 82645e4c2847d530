"""Which places of the output are the test split's: deterministic, and the order of the rows stays."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError


def parse_test_size(text: str) -> Fraction | int:
    """``"100"`` -> 100 rows, ``"0.05"`` -> one row in twenty.

    Raises:
        ValueError: neither a whole number from 1 nor a share between 0 and 1.
    """
    try:
        # An exponent could stand for a number of any length.
        value = Fraction(text if len(text) <= 40 and "e" not in text.lower() else "")
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"expected a number of rows (100) or a share of them (0.05), got {text[:80]!r}") from None
    if value >= 1 and value.denominator == 1 and "." not in text:
        return int(value)
    if 0 < value < 1:
        return value
    raise ValueError(f"expected a whole number from 1, or a share between 0 and 1, got {text[:80]!r}")


def test_rows(total: int, size: Fraction | int) -> int:
    """How many of ``total`` rows go to the test split; a share is rounded down, to 1 at least.

    Raises:
        DataError: nothing would be left for one of the two.
    """
    count = size if isinstance(size, int) else max(1, int(total * size))
    _check(f"--test-size {size if isinstance(size, int) else float(size)}", count, total)
    return count


def spaced_places(total: int, count: int) -> NDArray[np.int64]:
    """The ``count`` evenly spaced test places of ``total``.

    Even spacing makes the test split cover the whole of an ordered source (a curriculum, several files).
    """
    return (np.arange(1, count + 1, dtype=np.int64) * total + count - 1) // count - 1


def last_places(total: int, count: int) -> NDArray[np.int64]:
    """The ``count`` test places at the end of ``total``.

    Raises:
        DataError: nothing would be left for training.
    """
    _check(f"--test-last {count}", count, total)
    return np.arange(total - count, total, dtype=np.int64)


def _check(option: str, count: int, total: int) -> None:
    if count >= total:
        raise DataError(f"{option} takes {count} of {total} rows: no row is left for training.")
