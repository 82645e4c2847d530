from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reward.backends.calibration import (
    SLACK,
    Setting,
    batches_of,
    calibrate,
    choose,
    lane_counts,
    mixed_pairs,
    out_of_memory,
)
from reward.backends.interface import Tokens

RATES = st.dictionaries(
    st.builds(Setting, st.sampled_from([1, 2, 4]), st.sampled_from([512, 1024, 2048])),
    st.floats(1.0, 1e6),
    min_size=1,
)


@given(RATES)
def test_the_smallest_budget_that_is_nearly_the_best(rates: dict[Setting, float]) -> None:
    chosen = choose(rates)
    enough = (1 - SLACK) * max(rates.values())
    assert rates[chosen] >= enough
    assert all(other.batch_tokens >= chosen.batch_tokens for other, rate in rates.items() if rate >= enough)


@pytest.mark.parametrize(
    ("curve", "chosen"),
    [
        # flat: answers soonest
        ({(1, 512): 1000, (1, 1024): 1005, (1, 2048): 1009}, (1, 512)),
        # rising until it is flat
        ({(1, 512): 60, (1, 1024): 90, (1, 2048): 99.5, (1, 4096): 100}, (1, 2048)),
        # too large is slower again
        ({(1, 512): 80, (1, 1024): 100, (1, 2048): 70}, (1, 1024)),
        # two lanes are quicker
        ({(1, 512): 80, (1, 1024): 90, (2, 512): 100, (2, 1024): 100.5}, (2, 512)),
        # nearly as good is not enough: in service each batch has a price of its own
        ({(2, 512): 98, (2, 1024): 100}, (2, 1024)),
        # as quick with one: a batch alone takes less time
        ({(1, 512): 100, (2, 512): 101}, (1, 512)),
    ],
)
def test_made_up_curves(curve: dict[tuple[int, int], float], chosen: tuple[int, int]) -> None:
    assert choose({Setting(*setting): rate for setting, rate in curve.items()}) == Setting(*chosen)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=50), st.integers(1, 1000), st.booleans())
def test_each_pair_is_in_one_batch_within_the_budget(lengths: list[int], budget: int, packs: bool) -> None:
    pairs = [Tokens([7] * length) for length in lengths]
    batches = batches_of(pairs, budget, packs)
    assert sorted(len(pair) for batch in batches for pair in batch) == sorted(lengths)
    for batch in batches:
        cost = sum(map(len, batch)) if packs else max(map(len, batch)) * len(batch)
        assert len(batch) == 1 or cost <= budget


@pytest.mark.parametrize("longest", [1, 10, 16, 17, 512, 32768])
def test_pairs_of_all_lengths(longest: int) -> None:
    pairs = mixed_pairs(Tokens([5, 6, 7], [0, 0, 1]), longest)
    lengths = sorted(map(len, pairs))
    assert lengths[0] == min(16, longest)
    assert lengths[-1] == longest
    assert all(len(pair.token_type_ids) == len(pair) for pair in pairs)
    assert mixed_pairs(Tokens([5]), longest)[0].token_type_ids == []


@pytest.mark.parametrize(("threads", "lanes"), [(1, [1]), (2, [1, 2]), (3, [1, 2]), (8, [1, 2, 4, 8])])
def test_lanes_for_threads(threads: int, lanes: list[int]) -> None:
    assert lane_counts(threads) == lanes
    assert max(lane_counts(1000)) == 16


class TimedModel:
    """Takes ``per_batch`` and ``per_token`` seconds, and has memory for ``most`` tokens."""

    packs = True

    def __init__(self, per_batch: float, per_token: float, most: int = 10**9) -> None:
        self.per_batch, self.per_token, self.most = per_batch, per_token, most
        self.calls = 0
        self.lanes: set[int] = set()
        self.most_seen = 0
        self._lock = threading.Lock()

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        tokens = sum(map(len, batch))
        with self._lock:
            self.calls += 1
            self.lanes.add(lane)
            self.most_seen = max(self.most_seen, tokens)
        if tokens > self.most:
            raise torch.OutOfMemoryError(f"{tokens} tokens")
        time.sleep(self.per_batch + tokens * self.per_token)
        return [0.0] * len(batch)


PAIRS = mixed_pairs(Tokens([5, 6, 7]), 256)


def test_a_costly_start_asks_for_large_batches() -> None:
    model = TimedModel(per_batch=0.01, per_token=1e-7)
    found = calibrate(model, PAIRS, [1], (256, 512, 1024, 2048), seconds=1.5)
    assert found is not None
    assert found.chosen.batch_tokens == 2048


def test_lanes_that_sleep_side_by_side_are_found() -> None:
    model = TimedModel(per_batch=0.005, per_token=1e-7)
    found = calibrate(model, PAIRS, [1, 4], (512,), seconds=1.0)
    assert found is not None
    assert found.chosen == Setting(4, 512)
    assert model.lanes == {0, 1, 2, 3}
    assert {tuple(sorted(entry)) for entry in found.info()["tried"]} == {("batch_tokens", "lanes", "tokens_per_s")}


def test_memory_bounds_the_budget() -> None:
    model = TimedModel(per_batch=0.002, per_token=1e-7, most=1000)
    found = calibrate(model, PAIRS, [1, 2], (512, 2048, 8192), seconds=1.0)
    assert found is not None
    assert {setting.batch_tokens for setting in found.tokens_per_s} == {512}
    assert model.most_seen <= 2048, "what is larger than the first that failed was not tried"


def test_other_faults_are_not_a_bound() -> None:
    class Broken(TimedModel):
        def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
            if len(batch) > 1:
                raise RuntimeError("a kernel fault")
            return [0.0]

    with pytest.raises(RuntimeError, match="a kernel fault"):
        calibrate(Broken(0, 0), PAIRS, [1], (1024,), seconds=1.0)
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"))
    assert not out_of_memory(RuntimeError("a kernel fault"))


def test_a_model_too_slow_to_measure_costs_little_time() -> None:
    model = TimedModel(0.3, 0)
    assert calibrate(model, PAIRS, [1, 2], (512, 1024), seconds=0.5) is None
    assert model.calls == 2, "a short pair, twice"


def test_a_quick_model_is_measured_in_a_moment() -> None:
    started = time.monotonic()
    assert calibrate(TimedModel(1e-4, 1e-8), PAIRS, [1, 2], (512, 1024, 2048, 4096), seconds=60) is not None
    assert time.monotonic() - started < 30, "about a second where nothing else runs"
