from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.planning import split


@given(st.integers(2, 5000), st.data())
def test_exactly_count_rows_evenly_spaced(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, total - 1))
    places = split.spaced_places(total, count).tolist()
    # The rule in words: a place is a test row where the rounded-down share of the rows so far grows.
    assert places == [place for place in range(total) if (place + 1) * count // total > place * count // total]
    assert len(places) == count
    gaps = [after - before for before, after in pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_places_of_very_many_rows_do_not_overflow() -> None:
    assert split.spaced_places(3 * 10**9, 10**6)[-1] == 3 * 10**9 - 1


SHARES = st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(1, 2))


@given(st.integers(2, 10**9), SHARES)
def test_a_share_is_rounded_down_to_one_at_least(total: int, share: Fraction) -> None:
    count = split.test_rows(total, share)
    assert count == max(1, int(total * share))
    assert 0 < count < total


def test_share_is_exact_as_written() -> None:
    # 0.29 * 100 is 28.999999999999996 in floating point.
    share = split.parse_test_size("0.29")
    assert split.test_rows(100, share) == 29


@pytest.mark.parametrize("text", ["0", "1.0", "-1", "1.5", "nan", "inf", "1/0", "", "ten", "2" * 500 + "x"])
def test_a_size_that_is_neither_rows_nor_a_share(text: str) -> None:
    with pytest.raises(ValueError, match="expected a") as caught:
        split.parse_test_size(text)
    assert len(str(caught.value)) < 200


def test_the_last_rows() -> None:
    assert split.last_places(10, 3).tolist() == [7, 8, 9]
    with pytest.raises(DataError, match=r"--test-last 10 takes 10 of 10 rows"):
        split.last_places(10, 10)
    with pytest.raises(DataError, match=r"--test-size 0\.5 takes 1 of 1 rows"):
        split.test_rows(1, Fraction(1, 2))
