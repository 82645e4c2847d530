from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from data_prep.histogram import Histogram


def of(*parts: list[int] | np.ndarray) -> Histogram:
    found = Histogram()
    for part in parts:
        found.add(np.asarray(part, dtype=np.int64))
    return found


def test_figures() -> None:
    found = of(list(range(100, 0, -1)), [])
    assert found.figures() == {
        "count": 100, "low": 1, "high": 100, "mean": 50.5, "p50": 50, "p90": 90, "p95": 95, "p99": 99
    }  # fmt: skip
    assert of().figures()["count"] == of().figures()["high"] == 0
    assert of().lines(80) == []


@pytest.mark.parametrize(
    "values",
    [[0], [7, 7], [0, 1], list(range(13)), [46, 985, 300], [1] * 99 + [10**6], [0] * 99 + [5000], [3] * 9 + [64]],
)
def test_bins_are_without_gap_and_hold_all(values: list[int]) -> None:
    found = of(values)
    bins = found.bins()
    assert sum(count for _, _, count in bins) == len(values)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(bins))
    assert bins[0][0] <= min(values) <= max(values) <= bins[-1][1]
    assert bins[0][2]
    assert bins[-1][2]
    assert 1 <= len(bins) <= 21
    for low, high, count in bins:
        assert count == sum(low <= value <= high for value in values)


def test_many_different_values_take_bounded_memory_and_stay_close() -> None:
    values = np.arange(0, 3_000_000, 7)
    found = of(*np.array_split(values, 50))
    assert len(found._counts) < 70_000
    assert (found.count, found.low, found.high) == (len(values), 0, int(values[-1]))
    assert found.mean == values.mean()
    assert found.quantile(0.9) == pytest.approx(2_700_000, rel=1 / 100)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("values", [[0], list(range(5000)), [1] * 10**5 + [10**9]])
def test_lines_fit(width: int, values: list[int]) -> None:
    lines = of(values).lines(width, plain=True)
    assert {len(line) for line in lines} == {width}
    assert all(line.isascii() for line in lines)
    assert any("#" in line for line in lines)


def test_a_line() -> None:
    assert of([1, 1, 1, 2]).lines(30, plain=True) == [
        "1  ################# 3   75.0%",
        "2  ######            1   25.0%",
    ]
