from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from reward.truncation import PROMPT, RESPONSE, Truncate, kept_positions, shares_left, shares_right

COUNTS = st.integers(0, 40)
OWNERS = st.lists(st.sampled_from([None, PROMPT, RESPONSE]), max_size=60)


@given(prompt=COUNTS, response=COUNTS, room=st.integers(1, 60))
def test_right_is_what_tokenizers_does(prompt: int, response: int, room: int) -> None:
    tokenizer = Tokenizer(WordLevel({"p": 0, "r": 1}, "p"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.enable_truncation(room, strategy="longest_first")
    ids = tokenizer.encode("p " * prompt, "r " * response).ids
    assert shares_right(prompt, response, room) == (ids.count(0), ids.count(1))


@given(prompt=COUNTS, response=COUNTS, room=COUNTS)
def test_left_drops_of_the_response_only_when_the_prompt_is_gone(prompt: int, response: int, room: int) -> None:
    kept_prompt, kept_response = shares_left(prompt, response, room)
    assert kept_prompt + kept_response == min(room, prompt + response)
    assert kept_response == response or kept_prompt == 0


@given(owners=OWNERS, truncate=st.sampled_from(["left", "right"]), room=COUNTS)
def test_positions(owners: list[int | None], truncate: Truncate, room: int) -> None:
    fixed = [position for position, owner in enumerate(owners) if owner is None]
    limit = len(fixed) + room
    kept = kept_positions(owners, truncate, limit)
    assert kept == sorted(set(kept))
    assert len(kept) == min(limit, len(owners))
    assert set(fixed) <= set(kept)
    for owner in (PROMPT, RESPONSE):
        mine = [position for position, name in enumerate(owners) if name == owner]
        stayed = [position for position in kept if owners[position] == owner]
        assert stayed == (mine[: len(stayed)] if truncate == "right" else mine[len(mine) - len(stayed) :])


def test_sides() -> None:
    owners = [None, PROMPT, PROMPT, PROMPT, None, RESPONSE, RESPONSE, None]
    assert kept_positions(owners, "right", 6) == [0, 1, 2, 4, 5, 7]
    assert kept_positions(owners, "left", 6) == [0, 3, 4, 5, 6, 7]
    assert kept_positions(owners, "left", 4) == [0, 4, 6, 7]
    assert kept_positions(owners, "right", 3) == [0, 4, 7]


def test_error_forbids_to_drop() -> None:
    assert kept_positions([PROMPT, RESPONSE], "error", 2) == [0, 1]
    with pytest.raises(ValueError, match="3 tokens are more than 2"):
        kept_positions([PROMPT, RESPONSE, RESPONSE], "error", 2)


@pytest.mark.parametrize("truncate", ["left", "right"])
def test_what_always_stays_does_not_fit(truncate: Truncate) -> None:
    with pytest.raises(ValueError, match="2 tokens always stay, more than the 1"):
        kept_positions([None, PROMPT, None], truncate, 1)
