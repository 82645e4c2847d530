"""Attention over pairs of different lengths in one call, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def varlen_attention(dtype: str) -> Callable[..., Any] | None:
    """``flash_attn_varlen_func`` of flash_attn, None where it is not installed or does not know ``dtype``.

    Whether it computes the right thing is found out by :func:`reward.backends.packing.verify`.
    """
    if dtype == "float32" or find_spec("flash_attn") is None:
        return None
    function: Callable[..., Any] = import_module("flash_attn").flash_attn_varlen_func
    return function
