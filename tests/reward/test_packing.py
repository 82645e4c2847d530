from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES, alone, random_pair, tiny_model

from reward.backends import packed_attention
from reward.backends.checkpoint import padding_token
from reward.backends.interface import Tokens
from reward.backends.packed_attention import CannotPackError, Segments
from reward.backends.packing import PackedModel, verify

PACKED = sorted(name for name, family in FAMILIES.items() if not family.refused)
REFUSED = sorted(name for name, family in FAMILIES.items() if family.refused)


def pairs_of(name: str, lengths: tuple[int, ...] = (7, 50, 1, 33, 90, 12)) -> list[Tokens]:
    generator = torch.Generator().manual_seed(1)
    return [random_pair(generator, length, FAMILIES[name].types) for length in lengths]


@pytest.mark.parametrize("name", PACKED)
def test_packed_scores_are_those_of_the_pairs_alone(name: str) -> None:
    model = tiny_model(FAMILIES[name])
    pad = padding_token(model, 0)
    pairs = pairs_of(name)
    # Texts can hold the padding token: decoders look for the last other one, RoBERTa does not count it.
    ids = [9, 8, pad, 7, pad, pad]
    pairs.append(Tokens(ids, [0] * len(ids) if FAMILIES[name].types else ()))
    expected = alone(model, pairs)
    assert max(expected) - min(expected) > 0.01, "the pairs must be told apart"
    packed = PackedModel(model, pad)
    assert packed.forward(pairs).tolist() == pytest.approx(expected, abs=1e-4)
    assert packed.forward(pairs, fill=9).tolist() == pytest.approx(expected, abs=1e-4)
    assert packed.forward(pairs[1:2]).tolist() == pytest.approx(expected[1:2], abs=1e-4)
    verify(packed, pairs, expected, 1e-4)
    packed.undo()
    assert alone(model, pairs) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_packed_is_refused_and_unchanged(name: str) -> None:
    model = tiny_model(FAMILIES[name])
    pairs = pairs_of(name)
    expected = alone(model, pairs)
    with pytest.raises(CannotPackError, match=FAMILIES[name].refused):
        _pack_and_verify(model, pairs, expected)
    assert alone(model, pairs) == expected


def _pack_and_verify(model: Any, pairs: list[Tokens], expected: list[float]) -> None:
    packed = PackedModel(model, padding_token(model, 0))
    try:
        verify(packed, pairs, expected, 1e-4)
    finally:
        packed.undo()


@cache
def windowed_qwen() -> tuple[list[Tokens], list[float], PackedModel]:
    """Pairs of 1 to 59 tokens, their scores alone, and the packed model with a window of 16 tokens."""
    model = tiny_model(FAMILIES["qwen2-window"])
    pairs = pairs_of("qwen2-window", tuple(range(1, 60)))
    return pairs, alone(model, pairs), PackedModel(model, 0)


@given(st.lists(st.integers(0, 58), min_size=1, max_size=30), st.integers(0, 40))
@settings(max_examples=15)
def test_any_pairs_in_any_order(members: list[int], fill: int) -> None:
    pairs, expected, packed = windowed_qwen()
    scores = packed.forward([pairs[member] for member in members], fill).tolist()
    assert scores == pytest.approx([expected[member] for member in members], abs=1e-4)


def test_attention_across_pairs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(FAMILIES["qwen3"])
    pairs = pairs_of("qwen3")
    expected = alone(model, pairs)
    packed = PackedModel(model, 0)
    monkeypatch.setattr(Segments, "bounds", lambda self: [(0, self.starts[-1])])
    with pytest.raises(CannotPackError, match=r"scores .* packed and .* alone"):
        verify(packed, pairs, expected, 1e-4)
    # With a tolerance as for bfloat16 the neighbours still show.
    with pytest.raises(CannotPackError, match="depending on its neighbours"):
        verify(packed, pairs, packed.forward(pairs).tolist(), 0.25)


def test_positions_that_run_on_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(FAMILIES["gpt2"])
    pairs = pairs_of("gpt2", (20, 30, 40))
    expected = alone(model, pairs)
    packed = PackedModel(model, 0)
    monkeypatch.setattr(PackedModel, "_positions", lambda self, pair: range(5, 5 + len(pair)))
    with pytest.raises(CannotPackError, match=r"scores .* packed and .* alone"):
        verify(packed, pairs, expected, 1e-4)


def fake_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
) -> torch.Tensor:
    """A fake of flash_attn_varlen_func (flash_attn 2.8), which needs a GPU: the plain formula, pair by pair.

    Its window: key j is seen from query i where i - window[0] <= j <= i + window[1]; -1 is no limit.
    """
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert cu_seqlens_q[0] == 0
    assert cu_seqlens_q[-1] == query.shape[0] == key.shape[0] == value.shape[0]
    assert max_seqlen_q == max_seqlen_k == int(cu_seqlens_q.diff().max())
    groups = query.shape[1] // key.shape[1]
    out = torch.empty_like(query)
    for begin, end in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_k[1:].tolist(), strict=True):
        places = torch.arange(end - begin)
        ahead = places[None, :] - places[:, None]
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if window_size[0] >= 0:
            seen &= ahead >= -window_size[0]
        if window_size[1] >= 0:
            seen &= ahead <= window_size[1]
        if causal:
            seen &= ahead <= 0
        rows = query[begin:end].transpose(0, 1)
        columns = key[begin:end].repeat_interleave(groups, dim=1).transpose(0, 1)
        weights = (rows @ columns.transpose(1, 2) * softmax_scale).masked_fill(~seen, -torch.inf).softmax(-1)
        values = value[begin:end].repeat_interleave(groups, dim=1).transpose(0, 1)
        out[begin:end] = (weights @ values).transpose(0, 1)
    return out


@pytest.mark.parametrize(
    "name", [name for name in ("mistral-window", "qwen3", "modernbert", "bert") if name in PACKED]
)
def test_arguments_of_a_varlen_call(name: str) -> None:
    model = tiny_model(FAMILIES[name])
    pairs = pairs_of(name)
    expected = alone(model, pairs)
    verify(PackedModel(model, 0, fake_varlen), pairs, expected, 1e-4)


def test_attention_outside_of_a_packed_row_is_refused() -> None:
    model = tiny_model(FAMILIES["llama"])
    PackedModel(model, 0)
    with pytest.raises(CannotPackError, match="other rows than the packed one"):
        model(input_ids=torch.tensor([[5, 6, 7]]))
    assert packed_attention._current.segments is None
