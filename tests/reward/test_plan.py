from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reward.serving.plan import plan_batches

LENGTHS = st.lists(st.integers(min_value=1, max_value=3000), max_size=200)


@given(LENGTHS, st.integers(min_value=1, max_value=4096), st.integers(min_value=1, max_value=64))
def test_every_position_once_within_the_budget(lengths: list[int], budget: int, most: int) -> None:
    batches = plan_batches(lengths, budget, most)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        cost = max(lengths[position] for position in batch) * len(batch)
        assert len(batch) <= most
        assert cost <= budget or len(batch) == 1


@given(LENGTHS)
def test_batches_go_from_short_to_long(lengths: list[int]) -> None:
    order = [lengths[position] for batch in plan_batches(lengths, 2048, 256) for position in batch]
    assert order == sorted(lengths)


def test_similar_lengths_share_a_batch() -> None:
    assert plan_batches([100, 5, 101, 6], token_budget=210, max_pairs=8) == [[1, 3], [0, 2]]
