from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import pytest
from scheduling_fakes import LengthBackend

from reward.backends.interface import Score, Tokens
from reward.errors import NonFiniteScoreError, ScoringError, UpstreamError
from reward.serving.lanes import score_batch


class Scripted(LengthBackend):
    """Raises or returns what the script says, one entry a call."""

    def __init__(self, *script: Exception | list[float]) -> None:
        super().__init__()
        self.script = [*script]

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        self.batches.append([len(tokens) for tokens in batch])
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


PAIRS = [Tokens([1, 2], dropped=0), Tokens([1, 2, 3], dropped=4)]


def test_scores_tell_what_was_cut() -> None:
    assert score_batch(Scripted([0.5, -1.0]), 0, PAIRS) == [Score(0.5, 2, False), Score(-1.0, 3, True)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_an_error_for_its_own_pair(value: float) -> None:
    good, bad = score_batch(Scripted([0.5, value]), 0, PAIRS)
    assert isinstance(good, Score)
    assert isinstance(bad, NonFiniteScoreError)
    assert str(value) in str(bad)


def test_too_little_memory_for_the_batch_is_no_error_of_a_pair(caplog: pytest.LogCaptureFixture) -> None:
    backend = Scripted(MemoryError("no room"), [1.0], [2.0])
    with caplog.at_level(logging.ERROR):
        assert [getattr(score, "value", None) for score in score_batch(backend, 0, PAIRS)] == [1.0, 2.0]
    assert backend.batches == [[2, 3], [2], [3]]
    assert "a batch of 2 pairs failed (now one by one): MemoryError: no room" in caplog.text


def test_a_wrong_number_of_logits_is_not_taken_for_scores() -> None:
    results = score_batch(Scripted([1.0], [1.0], [1.0, 2.0]), 0, PAIRS)
    assert isinstance(results[0], Score)
    assert type(results[1]) is ScoringError


def test_an_upstream_that_is_down_is_asked_once() -> None:
    backend = Scripted(UpstreamError("connection refused"))
    results = score_batch(backend, 0, PAIRS)
    assert [result.status for result in results if isinstance(result, ScoringError)] == [502, 502]
    assert len(backend.batches) == 1
