from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from reward.backends.interface import Tokens
from reward.backends.self_test import known_pairs, self_test
from reward.errors import ModelDirError, ScoringError, TooLongError


class Characters:
    """One token a character, at most ``longest``."""

    def __init__(self, longest: int = 1000) -> None:
        self.longest = longest

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        texts = [prompt + response for prompt, response in pairs]
        return [
            Tokens([ord(character) for character in text]) if len(text) <= self.longest else TooLongError(text)
            for text in texts
        ]


class Formula:
    """A backend whose score of a pair is a formula of (batch, pair, lane)."""

    lanes, batch_tokens, packs = 2, 100, False

    def __init__(self, formula: Callable[[Sequence[Tokens], Tokens, int], float]) -> None:
        self.formula = formula

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        return [self.formula(batch, pair, lane) for pair in batch]

    def info(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        pass


def test_a_sound_backend_passes() -> None:
    self_test(Formula(lambda batch, pair, lane: float(sum(pair.input_ids))), Characters())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(value: float) -> None:
    with pytest.raises(ModelDirError, match=r"the model's output is .*(nan|inf)"):
        self_test(Formula(lambda batch, pair, lane: value), Characters())
    with pytest.raises(ModelDirError, match=r"a batch: the model's output"):
        self_test(Formula(lambda batch, pair, lane: value if len(batch) > 1 else 1.0), Characters())


def test_scores_that_depend_on_the_batch() -> None:
    leaky = Formula(lambda batch, pair, lane: len(pair) + 1e-2 * len(batch))
    with pytest.raises(ModelDirError, match="the batch changes a score"):
        self_test(leaky, Characters())
    self_test(leaky, Characters(), tolerance=0.25)


def test_every_lane_is_tried() -> None:
    with pytest.raises(ModelDirError, match="lane 1"):
        self_test(Formula(lambda batch, pair, lane: math.nan if lane == 1 else 1.0), Characters())


def test_pairs_beyond_the_limit_are_left_out() -> None:
    assert {len(pair) for pair in known_pairs(Characters(longest=20))} == {6, 15}
    with pytest.raises(ModelDirError, match="the tokenizer refuses every pair"):
        known_pairs(Characters(longest=2))
