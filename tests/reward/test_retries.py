"""The policy of retries, without a clock and without a server."""

from __future__ import annotations

import contextlib
import math
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from functools import partial
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reward.errors import RewardOutageError
from reward.verl_client.retries import Failure, Progress, Retries, retry_after_seconds

TIMES = st.floats(0.01, 1e4)


@example(24.745158182148657, 1.0, [24.745158182148657], Random(0))  # all that is left, but for rounding
@given(TIMES, TIMES, st.lists(st.floats(0, 1e3), max_size=40), st.randoms())
def test_every_delay_is_kept_within_the_deadline(
    deadline: float, timeout: float, asked: list[float], random: Random
) -> None:
    now = 1000.0
    retries = Retries("http://h:1", timeout, deadline, now, random.uniform)
    for seconds in asked:
        assert 0 < retries.begin(now) <= max(0.1, min(timeout, 1000 + deadline - now))
        left = 1000 + deadline - now
        try:
            delay = retries.failed(Failure("busy", seconds), now)
        except RewardOutageError:
            assert left <= max(0.2, seconds) + 1e-6
            return
        assert min(0.1, left / 2) - 1e-6 <= delay
        assert seconds <= delay <= max(15, seconds * 1.25)
        now += delay
        assert now < 1000 + deadline + 1e-6


def test_a_server_that_comes_back_late_is_still_found() -> None:
    """No backoff of ten seconds ends a call that has eight left."""
    retries, now = Retries("http://h:1", 60, 120, 0), 0.0
    with contextlib.suppress(RewardOutageError):
        while now < 1000:
            retries.begin(now)
            now += retries.failed(Failure("x"), now)
    assert 119.7 < now < 120
    assert retries.attempts < 50


def _at(value: float, low: float, high: float) -> float:
    return value


def test_backoff_doubles_up_to_ten_seconds_and_is_spread() -> None:
    for spread, expected in (
        (0.5, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]),
        (1.5, [0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 15, 15]),
    ):
        retries = Retries("http://h:1", 60, 1e6, 0, partial(_at, spread))
        seen = []
        for _ in expected:
            retries.begin(0)
            seen.append(retries.failed(Failure("x"), 0))
        assert seen == pytest.approx(expected)
    retries = Retries("http://h:1", 60, 1e6, 0)
    retries.begin(0)
    assert len({retries.failed(Failure("x"), 0) for _ in range(20)}) == 20


def test_clients_told_the_same_time_do_not_come_back_together() -> None:
    retries = Retries("http://h:1", 60, 1e6, 0)
    retries.begin(0)
    delays = [retries.failed(Failure("HTTP 429", 8), 0) for _ in range(200)]
    assert 8 <= min(delays) < 8.2
    assert 9.8 < max(delays) <= 10


def test_attempts_of_an_hour_do_not_overflow() -> None:
    retries = Retries("http://h:1", 60, math.inf, 0)
    for _ in range(5000):
        retries.begin(0)
    assert retries.failed(Failure("x"), 0) <= 15


def test_waiting_for_a_slot_moves_the_end() -> None:
    retries = Retries("http://h:1", 60, 1, 0)
    retries.begin(100, waited=100)
    assert retries.failed(Failure("x"), 100) < 1
    with pytest.raises(
        RewardOutageError, match=r"http://h:1 gave no score within 1 s \(1 attempts\); last cause: x"
    ):
        retries.failed(Failure("x"), 101)


def test_a_server_that_asks_for_more_than_is_left_is_not_waited_for() -> None:
    retries = Retries("http://h:1", 60, 120, 0)
    retries.begin(0)
    with pytest.raises(RewardOutageError, match=r"last cause: HTTP 503, which asks to wait 3600 s$"):
        retries.failed(Failure("HTTP 503", 3600), 0)


def test_waiting_is_forgiven_while_others_get_scores() -> None:
    progress = Progress()
    assert progress.forgiven("http://h:1", 100, 5) == 0
    progress.scored("http://h:1", 96)
    assert progress.forgiven("http://h:1", 100, 5) == 5
    assert progress.forgiven("http://h:1", 100, 3) == 0
    assert progress.forgiven("http://other:1", 100, 5) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("7", 7),
        ("0", 0),
        ("-3", 0),
        ("1.5", 0),
        ("٣", 0),
        ("9" * 400, math.inf),
        ("soon", 0),
        ("Fri, 31 Dec 99999 23:59:59 GMT", 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
    ],
)
def test_retry_after(text: str, seconds: float) -> None:
    assert retry_after_seconds(text, 1.7e9) == seconds


def test_retry_after_a_date() -> None:
    now = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
    assert retry_after_seconds(format_datetime(now + timedelta(seconds=90), usegmt=True), now.timestamp()) == 90


@given(
    st.text(max_size=40)
    | st.from_regex(r"[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d+ \d+:\d+:\d+ ([+-]\d+|GMT)", fullmatch=True)
)
def test_retry_after_is_total(text: str) -> None:
    assert retry_after_seconds(text, 1.7e9) >= 0
