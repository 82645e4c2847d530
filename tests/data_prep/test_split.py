from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from data_prep import split


@given(st.integers(min_value=2, max_value=5000), st.data())
def test_exactly_count_rows_evenly_spaced(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(min_value=1, max_value=total - 1))
    chosen = [position for position in range(total) if split.is_test(position, total, count)]
    assert len(chosen) == count
    gaps = [after - before for before, after in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


SHARES = st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(1, 2))


@given(st.integers(min_value=2, max_value=10**9), SHARES)
def test_a_share_is_rounded_down_to_one_at_least(total: int, share: Fraction) -> None:
    count = split.test_rows(total, share)
    assert count == max(1, int(total * share))
    assert 0 < count < total


def test_share_is_exact_as_written() -> None:
    # 0.29 * 100 is 28.999999999999996 in floating point.
    share = split.parse_test_size("0.29")
    assert split.test_rows(100, share) == 29
