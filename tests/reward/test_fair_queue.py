from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from reward.serving.fair_queue import WINDOW, FairQueue, Flow

COSTS = st.integers(min_value=1, max_value=4096)
# Per step: a flow gets an item of this cost, or (None) the head is taken, or (negative) a flow is dropped.
STEPS = st.lists(st.tuples(st.integers(0, 5), st.one_of(COSTS, st.none(), st.just(-1))), max_size=120)


def first(costs: Sequence[int]) -> Sequence[int]:
    return [0]


@given(STEPS)
def test_every_item_leaves_once_and_the_counts_agree(steps: list[tuple[int, int | None]]) -> None:
    queue: FairQueue[tuple[int, int, int]] = FairQueue()
    flows = [Flow() for _ in range(6)]
    waiting: set[tuple[int, int, int]] = set()
    for number, (flow, cost) in enumerate(steps):
        if cost is None:
            taken = queue.take(first) if queue else []
        elif cost < 0:
            taken = queue.drop(flows[flow])
            assert {item[0] for item in taken} <= {flow}
            assert not any(item[0] == flow for item in waiting - set(taken))
        else:
            taken = []
            item = (flow, number, cost)
            queue.add(flows[flow], item, cost)
            waiting.add(item)
        assert set(taken) <= waiting
        assert len(set(taken)) == len(taken)
        waiting -= set(taken)
        assert len(queue) == len(waiting)
        assert queue.cost == sum(item[2] for item in waiting)


@given(st.lists(COSTS, min_size=1, max_size=40))
def test_one_flow_is_first_in_first_out(costs: list[int]) -> None:
    queue: FairQueue[int] = FairQueue()
    flow = Flow()
    for number, cost in enumerate(costs):
        queue.add(flow, number, cost)
    assert [item for _ in costs for item in queue.take(first)] == list(range(len(costs)))


@given(st.integers(0, 300), COSTS, st.lists(COSTS, min_size=300, max_size=300))
def test_a_single_pair_overtakes_a_long_batch(served: int, cost: int, batch: list[int]) -> None:
    queue: FairQueue[str] = FairQueue()
    long, single = Flow(), Flow()
    for item in batch:
        queue.add(long, "batch", item)
    for _ in range(min(served, 299)):
        queue.take(first)
    queue.add(single, "single", cost)
    # At most one item starts at the same virtual time.
    assert "single" in [queue.take(first)[0] for _ in range(min(2, len(queue)))]


@given(st.integers(1, 30), COSTS)
def test_a_stream_of_single_pairs_does_not_starve_a_batch(singles: int, cost: int) -> None:
    queue: FairQueue[str] = FairQueue()
    long = Flow()
    for _ in range(50):
        queue.add(long, "batch", cost)
    for _ in range(singles):
        queue.add(Flow(), "single", cost)
    rounds = 400
    left = []
    for _ in range(rounds):
        left += queue.take(first)
        if left[-1] == "single":  # a closed loop: each client asks again
            queue.add(Flow(), "single", cost)
    share = left[: 40 * (singles + 1)].count("batch") / len(left[: 40 * (singles + 1)])
    assert share >= 0.8 / (singles + 1) - 1 / rounds


@given(st.integers(1, 4), st.integers(1, 4))
def test_two_long_batches_share_by_cost(one: int, other: int) -> None:
    queue: FairQueue[int] = FairQueue()
    flows = Flow(), Flow()
    for _ in range(200):
        queue.add(flows[0], one, one)
        queue.add(flows[1], other, other)
    left = [queue.take(first)[0] for _ in range(100)]
    half = sum(left) / 2
    # The same number where the costs are equal: then both are one sum.
    if one != other:
        assert abs(sum(cost for cost in left if cost == one) - half) <= 2 * max(one, other)


def test_a_choice_sees_the_head_in_fair_order_and_may_leave_items() -> None:
    queue: FairQueue[int] = FairQueue()
    flow = Flow()
    for number in range(WINDOW + 10):
        queue.add(flow, number, number + 1)
    seen: list[Sequence[int]] = []

    def choose(costs: Sequence[int]) -> Sequence[int]:
        seen.append(costs)
        return [3, 0]

    assert queue.take(choose) == [0, 3]
    assert seen == [list(range(1, WINDOW + 1))]
    assert queue.take(first) == [1]
    assert queue.take(first) == [2]
    assert queue.take(first) == [4]
