from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.planning.blend import blend

WEIGHTS = st.fractions(min_value=Fraction(1, 500), max_value=500)
SOURCES = st.lists(st.tuples(st.integers(0, 120), WEIGHTS), min_size=2, max_size=6)


@given(SOURCES)
def test_after_every_row_each_source_is_within_a_row_of_its_share(sources: list[tuple[int, Fraction]]) -> None:
    rows, weights = [count for count, _ in sources], [weight for _, weight in sources]
    used, turns = blend(rows, weights)
    whole = sum(weights)
    given_so_far = [0] * len(rows)
    for place, source in enumerate(turns.tolist(), start=1):
        given_so_far[source] += 1
        for count, weight in zip(given_so_far, weights, strict=True):
            assert abs(count - place * weight / whole) < 1
    assert used == given_so_far
    assert all(count <= there for count, there in zip(used, rows, strict=True))


@given(SOURCES)
def test_it_ends_only_where_a_source_has_no_row_for_its_turn(sources: list[tuple[int, Fraction]]) -> None:
    rows, weights = [count for count, _ in sources], [weight for _, weight in sources]
    used, turns = blend(rows, weights)
    _, longer = blend([count * 3 + 3 for count in rows], weights)
    assert longer[: len(turns)].tolist() == turns.tolist()
    next_source = int(longer[len(turns)])
    assert used[next_source] == rows[next_source]


def test_a_long_period_gives_what_a_short_one_does() -> None:
    # 1 : 2 and a ratio that differs from it by less than these rows can show.
    _, short = blend([2000, 4000], [Fraction(1), Fraction(2)])
    _, long = blend([2000, 4000], [Fraction(10**9), Fraction(2 * 10**9 - 1)])
    assert len(short) == 6000
    assert np.mean(short[: len(long)] == long) > 0.99


def test_all_rows_are_used_where_rows_and_weights_agree() -> None:
    used, turns = blend([75, 25], [Fraction("0.75"), Fraction("0.25")])
    assert used == [75, 25]
    assert [turns[start : start + 4].tolist().count(1) for start in range(0, 100, 4)] == [1] * 25


def test_the_smaller_share_ends_the_blend() -> None:
    used, _ = blend([10, 10_000], [Fraction(1), Fraction(3)])
    assert used[0] == 10
    assert 30 <= used[1] <= 33
