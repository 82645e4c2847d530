"""Attention for several pairs in one row: a token sees its own pair only.

Registered with transformers' AttentionInterface as ``reward_packed``. Which tokens are which pair's is known to
the thread that computes the row: :func:`packed_row`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

ATTENTION = "reward_packed"


class CannotPackError(Exception):
    """Why a model is not served packed."""


@dataclass
class Segments:
    """Where the pairs of a row lie: pair i is the tokens from ``starts[i]`` to before ``starts[i + 1]``.

    Attributes:
        varlen: ``flash_attn.flash_attn_varlen_func`` or its like; None: one call of torch's attention a pair.
        calls: of the attention function so far.
        masks: of pairs longer than a sliding window, by length, window and direction.
    """

    starts: list[int]
    device: torch.device
    varlen: Callable[..., Tensor] | None = None
    calls: int = 0
    masks: dict[tuple[int, int, bool], Tensor] = field(default_factory=dict)
    cumulative: Tensor | None = None

    def bounds(self) -> list[tuple[int, int]]:
        """(begin, end) of each pair."""
        return list(pairwise(self.starts))

    def window_mask(self, length: int, window: int, causal: bool) -> Tensor:
        """(length, length), True where a token (row) sees another (column) less than ``window`` away."""
        key = (length, window, causal)
        if key not in self.masks:
            places = torch.arange(length, device=self.device)
            distance = places[:, None] - places[None, :]
            self.masks[key] = (distance.abs() < window) & ((distance >= 0) if causal else True)
        return self.masks[key]


class _Current(threading.local):
    segments: Segments | None = None


_current = _Current()


@contextmanager
def packed_row(segments: Segments) -> Iterator[None]:
    """Rows that this thread computes have these pairs."""
    _current.segments = segments
    try:
        yield
    finally:
        _current.segments = None


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention within each pair of the row; the signature is that of transformers.integrations.sdpa_attention.

    Args:
        query: (1, heads, tokens, head size); ``key`` and ``value`` with as many heads or a divisor of it.

    Returns:
        (1, tokens, heads, head size), and no weights.

    Raises:
        CannotPackError: the model asks for something that is not computed here.
    """
    segments = _current.segments
    if segments is None or query.shape[0] != 1 or query.shape[2] != segments.starts[-1]:
        raise CannotPackError(f"{type(module).__name__} calls attention on other rows than the packed one")
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if rest.get(name) is not None:
            raise CannotPackError(f"{type(module).__name__} needs {name}, which packed attention has not")
    if attention_mask is not None:
        raise CannotPackError(f"{type(module).__name__} brings a mask of its own")
    segments.calls += 1
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if segments.varlen is not None:
        return _varlen(segments, query, key, value, scaling, causal, sliding_window), None
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for begin, end in segments.bounds():
        mask = None
        if sliding_window is not None and end - begin > sliding_window:
            mask = segments.window_mask(end - begin, sliding_window, causal)
        scored = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, begin:end],
            value[:, :, begin:end],
            attn_mask=mask,
            scale=scaling,
            is_causal=causal and mask is None,
        )
        out[:, begin:end] = scored.transpose(1, 2)
    return out, None


def _varlen(
    segments: Segments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    causal: bool,
    window: int | None,
) -> Tensor:
    """One call for all pairs; arguments as in flash_attn 2.8, flash_attn_interface.py."""
    assert segments.varlen is not None
    if segments.cumulative is None:
        segments.cumulative = torch.tensor(segments.starts, dtype=torch.int32, device=query.device)
    longest = max(end - begin for begin, end in segments.bounds())
    reach = (-1, -1) if window is None else (window - 1, 0 if causal else window - 1)
    out = segments.varlen(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seqlens_q=segments.cumulative,
        cu_seqlens_k=segments.cumulative,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        softmax_scale=scaling,
        causal=causal,
        window_size=reach,
    )
    return out[None]


AttentionInterface.register(ATTENTION, packed_attention)
