from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reward.serving.batch_choice import packed_batch, padded_batch, padding

LENGTHS = st.lists(st.integers(min_value=1, max_value=3000), min_size=1, max_size=200)
BUDGET = st.integers(min_value=1, max_value=4096)


@given(LENGTHS, BUDGET)
def test_a_packed_batch_keeps_the_order_and_the_budget(lengths: list[int], budget: int) -> None:
    chosen = packed_batch(lengths, budget)
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    total = sum(lengths[position] for position in chosen)
    assert total <= budget or chosen == [0]
    # Nothing that would fit is left.
    left = [length for position, length in enumerate(lengths) if position not in chosen]
    assert all(total + length > budget for length in left)


@given(LENGTHS, BUDGET)
def test_a_padded_batch_keeps_the_budget_and_little_padding(lengths: list[int], budget: int) -> None:
    chosen = padded_batch(lengths, budget)
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    taken = [lengths[position] for position in chosen]
    assert max(taken) * len(taken) <= budget or chosen == [0]
    assert padding(taken) <= max(max(taken) * len(taken) / 8, 32 * len(taken))


def test_similar_lengths_share_a_batch() -> None:
    assert padded_batch([100, 5, 101, 6, 1000], budget=210) == [0, 2]
    assert padded_batch([400, 100, 380, 410, 390, 2000], budget=2048) == [0, 2, 3, 4]


def test_an_odd_length_goes_alone_and_short_ones_go_together() -> None:
    assert padded_batch([900, 100, 110, 120], budget=4096) == [0]
    assert padded_batch([3, 30, 17, 8], budget=4096) == [0, 1, 2, 3]


def test_padding() -> None:
    assert padding([3, 5, 5]) == 2
    assert padding([]) == 0
