"""Figures and warnings of rewards, against numpy and on made-up series."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.log_stats.courses import medians, time_axis
from reward.log_stats.figures import Figures, Reason, Spread, correlation, quantile
from reward.log_stats.findings import warnings_of
from reward.log_stats.plot import middle_range
from reward.log_stats.reading import Row
from reward.log_stats.series import OTHER_REASONS, OTHERS, Series, SourceTable

NUMBERS = st.floats(-1e9, 1e9).map(lambda number: round(number, 6))


def row(score: float | None = 1.0, status: str = "ok", **others: Any) -> Row:
    told = {
        "data_source": "math",
        "non_finite": False,
        "response_len": 100.0,
        "time": 0.0,
        "latency_s": 0.1,
        "clamped": False,
        "truncated": False,
        "attempts": 1,
    }
    return Row(score=score, status=status, **{**told, **others})


def series(*rows: Row) -> Series:
    made = Series()
    for one in rows:
        made.add(one)
    return made


def kinds(*rows: Row) -> list[str]:
    made = series(*rows)
    return [warned.kind for warned in warnings_of("math", made, Figures.of(made))]


@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_spread_is_numpys(numbers: list[float]) -> None:
    spread = Spread.of(numbers)
    assert spread is not None
    size = max(1.0, *map(abs, numbers))
    assert spread.count == len(numbers)
    assert spread.mean == pytest.approx(np.mean(numbers), abs=1e-9 * size)
    assert spread.std == pytest.approx(np.std(numbers), abs=1e-7 * size)
    marks = [spread.min, spread.p5, spread.p25, spread.median, spread.p75, spread.p95, spread.max]
    assert marks == pytest.approx(np.quantile(numbers, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]), abs=1e-9 * size)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_spread_of_any_floats_is_finite_and_ordered(numbers: list[float]) -> None:
    spread = Spread.of(numbers)
    if spread is None:
        assert numbers == []
        return
    assert spread.min <= spread.mean <= spread.max
    assert 0 <= spread.std <= 1.0001 * max(abs(spread.min), abs(spread.max))


def test_values_that_were_not_told_are_left_out() -> None:
    spread = Spread.of([math.nan, 2.0, math.nan, 4.0])
    assert spread is not None
    assert (spread.count, spread.mean) == (2, 3)
    assert Spread.of([math.nan]) is None


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=40))
def test_correlation_is_numpys(pairs: list[tuple[float, float]]) -> None:
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    got = correlation(xs, ys)
    if np.std(xs) < 1e-9 * max(1, *map(abs, xs)) or np.std(ys) < 1e-9 * max(1, *map(abs, ys)):
        return  # constant but for rounding: r is noise
    assert got == pytest.approx(np.corrcoef(xs, ys)[0, 1], abs=1e-5)


def test_correlation_of_a_constant_is_none() -> None:
    assert correlation([1, 1, 1], [1, 2, 3]) is None
    assert correlation([1, 2], [1, 2]) is None
    assert correlation([1, 2, 3], [3, 2, 1]) == -1


def test_quantile_of_one() -> None:
    assert quantile([5.0], 0.95) == 5.0


def test_counts() -> None:
    figures = Figures.of(
        series(
            row(3.0, attempts=3, time=20.0),
            row(5.0, clamped=True, truncated=True, time=10.0),
            row(-40.0, "penalty", attempts=0, response_len=None, latency_s=None),
            row(-40.0, "outage_penalty", attempts=7),
            row(None, "outage", attempts=4),
            row(None, "error"),
            row(None, "cancelled"),
            row(None, non_finite=True),
        )
    )
    assert (figures.rows, figures.scored, figures.penalties, figures.outage_penalties) == (8, 2, 1, 1)
    assert (figures.outages, figures.errors, figures.cancelled, figures.non_finite) == (1, 1, 1, 1)
    assert (figures.clamped, figures.truncated, figures.retried, figures.retries) == (1, 1, 3, 11)
    assert figures.penalty_share == 2 / 4
    assert figures.score is not None
    assert figures.score.count == 4
    assert (figures.first, figures.last) == (0.0, 20.1)
    assert figures.response_len is not None
    assert figures.response_len.count == 7


def test_latency_is_that_of_every_call_that_asked_the_server() -> None:
    rows = [row(latency_s=0.1, time=5.0)] * 3 + [row(None, "outage", latency_s=6.0, time=1.0)] * 57
    figures = Figures.of(series(*rows, *[row(-40.0, "penalty", latency_s=0.0)] * 100))
    assert figures.latency_s is not None
    assert (figures.latency_s.count, figures.latency_s.median, figures.latency_s.p95) == (60, 6.0, 6.0)
    assert figures.last == 7.0


def test_scores_that_are_no_number_keep_their_times_and_are_not_scored() -> None:
    rows = [row(None, non_finite=True, time=float(n), clamped=True) for n in range(3, 50)]
    figures = Figures.of(series(*rows))
    assert (figures.rows, figures.scored, figures.non_finite, figures.clamped) == (47, 0, 47, 0)
    assert (figures.first, figures.last, figures.penalty_share) == (3.0, 49.1, 0.0)


def test_reasons_that_differ_in_digits_are_one() -> None:
    outages = [row(None, "outage", error=f"no score ({n} attempts) <x at 0x7f{n:x}>") for n in range(1, 8)]
    made = series(row(), *outages, row(None, "error", error="no score (1 attempts) <x at 0x7f>"))
    assert Figures.of(made).reasons == (
        Reason("outage", 7, "no score (1 attempts) <x at 0x7f1>"),
        Reason("error", 1, "no score (1 attempts) <x at 0x7f>"),
    )
    whole = Series()
    whole.extend(made)
    whole.extend(made)
    assert [reason.count for reason in Figures.of(whole).reasons] == [14, 2]


def test_reasons_without_end_share_one() -> None:
    made = series(*(row(None, "error", error="x" * n) for n in range(1, 1001)))
    assert len(made.reasons) == 51
    assert made.reasons["error", OTHER_REASONS] == 950


@given(st.lists(NUMBERS, min_size=1, max_size=80))
def test_range_of_a_picture(numbers: list[float]) -> None:
    low, high = middle_range(numbers)
    assert low < high
    drawn = sum(low <= number <= high for number in numbers)
    assert drawn >= 0.9 * len(numbers) - 1
    if len(numbers) < 20:
        assert drawn == len(numbers)


def test_one_value_far_off_does_not_squeeze_the_others() -> None:
    low, high = middle_range([-40.0, *(n / 100 for n in range(100))])
    assert -2 < low < 0
    assert high == 0.99


def test_all_data_sources_share_one_time_axis() -> None:
    early = series(*(row(time=1000.0 + n) for n in range(61)))
    late = series(row(time=1600.0), row(None, "outage", time=1300.0))
    axis = time_axis([late, early])
    assert axis.label.startswith("minutes")
    assert axis.places(late) == [10.0, 5.0]
    assert axis.places(early)[60] == 1.0
    assert axis.low < 0 < 10 < axis.high
    by_row = time_axis([late, series(row(time=None))])
    assert (by_row.places(late), by_row.label[:3]) == ([0.0, 1.0], "row")


def test_rows_at_one_instant_are_one_point_of_a_course() -> None:
    together = series(*(row(time=0.0) for _ in range(300)), *(row(time=100.0) for _ in range(300)))
    axis = time_axis([together])
    dots = [(place, float(number % 300)) for number, place in enumerate(axis.places(together))]
    course = medians(dots, axis)
    assert course.at == [0.0, 100.0]
    assert course.median == [149.5, 149.5]
    assert course.low == pytest.approx([29.9, 29.9])


def test_a_plain_training_has_no_warning() -> None:
    chance = random.Random(1)
    rows = [row(chance.gauss(0, 3), response_len=chance.gauss(400, 90), time=float(n)) for n in range(400)]
    assert kinds(*rows, row(-40.0, "penalty")) == []


def test_constant_reward() -> None:
    assert kinds(*[row(2.5)] * 10) == ["constant"]
    assert kinds(*[row(2.5)] * 9) == []
    assert kinds(*[row(0.0)] * 10) == ["constant"]
    assert kinds(*[row(2.5)] * 10, row(2.6)) == []
    # The model says one thing; only the penalties differ.
    assert kinds(*[row(2.5)] * 10, row(-40.0, "penalty")) == ["constant"]
    assert kinds(*[row(-40.0, "penalty")] * 10) == ["constant", "penalties"]


def test_nothing_is_not_constant() -> None:
    assert kinds(*[row(None, "outage")] * 20) == ["no-score"]


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (row(None, non_finite=True), "non-finite"),
        (row(-40.0, "outage_penalty"), "outage-penalties"),
        (row(None, "outage"), "no-score"),
        (row(None, "error"), "no-score"),
        (row(None, "cancelled"), "no-score"),
    ],
)
def test_one_lost_reward_is_told(odd: Row, kind: str) -> None:
    assert kinds(*(row(float(n)) for n in range(20)), odd) == [kind]


def test_limits() -> None:
    rows = [row(float(n)) for n in range(20)]
    assert kinds(*rows, row(30.0, clamped=True), row(30.0, clamped=True)) == []
    assert kinds(*rows, *[row(30.0, clamped=True)] * 3) == ["clamped"]
    made = series(*[row(30.0, clamped=True)] * 5)
    (warned,) = warnings_of("math", made, Figures.of(made))
    assert "all 5 scores were outside" in warned.text
    assert kinds(*rows, *[row(1.0, truncated=True)] * 3) == ["truncated"]
    assert kinds(*rows, *[row(-40.0, "penalty")] * 21) == ["penalties"]


def test_length_that_is_rewarded() -> None:
    chance = random.Random(2)
    lengths = [chance.gauss(400, 90) for _ in range(200)]
    for sign, word in ((1, "longer"), (-1, "shorter")):
        made = series(*(row(sign * n / 50 + chance.gauss(0, 1), response_len=n) for n in lengths))
        (warned,) = warnings_of("math", made, Figures.of(made))
        assert (warned.kind, word in warned.text) == ("length-correlation", True)


def test_length_that_drifts_is_seen_in_time_not_in_the_order_of_reading() -> None:
    chance = random.Random(3)
    rows = [row(chance.gauss(0, 3), response_len=300 + n + chance.gauss(0, 50), time=float(n)) for n in range(400)]
    chance.shuffle(rows)
    assert kinds(*rows) == ["length-drift"]
    assert kinds(*(one._replace(time=0.0) for one in rows)) == []
    grown = [row(chance.gauss(0, 3), response_len=n / 10, time=None) for n in range(400)]
    assert kinds(*grown) == ["length-drift"]  # without times it is the order of reading


def test_data_sources_without_end_share_a_series() -> None:
    table = SourceTable()
    for n in range(5000):
        table.add(row(data_source=f"source {n}"))
    assert len(table.series) == 501
    assert table.series[OTHERS].rows == 4500
    assert table.together().rows == 5000
