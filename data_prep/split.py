"""Deterministic train/test splits that keep the order of the rows."""

from __future__ import annotations

from fractions import Fraction

from data_prep.errors import DataError


def parse_test_size(text: str) -> Fraction | int:
    """``"100"`` -> 100 rows, ``"0.05"`` -> one row in twenty.

    Raises:
        ValueError: neither a whole number from 1 nor a share between 0 and 1.
    """
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"expected a number of rows (100) or a share of them (0.05), got {text!r}") from None
    if value >= 1 and value.denominator == 1 and "." not in text:
        return int(value)
    if 0 < value < 1:
        return value
    raise ValueError(f"expected a whole number from 1, or a share between 0 and 1, got {text!r}")


def test_rows(total: int, size: Fraction | int) -> int:
    """How many of ``total`` rows go to the test split; a share is rounded down, to 1 at least.

    Raises:
        DataError: nothing would be left for one of the two.
    """
    count = size if isinstance(size, int) else max(1, int(total * size))
    if count >= total:
        raise DataError(f"--test-size {size} takes {count} of {total} rows: no row is left for training.")
    return count


def is_test(position: int, total: int, count: int) -> bool:
    """Whether row ``position`` (from 0) is one of the ``count`` evenly spaced test rows of ``total`` rows.

    Even spacing makes the test split cover the whole of an ordered source (a curriculum, several files).
    """
    return (position + 1) * count // total > position * count // total
