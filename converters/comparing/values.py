"""Numbers that two tensors are compared by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from converters.storage import numbers as of_words
from converters.storage.tensors import Words

Numbers = npt.NDArray[np.float64]


def numbers(words: Words, dtype: str) -> Numbers:
    """The values of `words` (one unsigned word an element, C-contiguous) as float64.

    Exact for all types of 32 bits and less; whole numbers beyond 2**53 are rounded.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return np.asarray(of_words.numbers(words, dtype), dtype=np.float64)


def text(word: Any, dtype: str) -> str:
    """One element for a message: its bits and its value."""
    array = np.asarray(word).reshape(1)
    value = numbers(array, dtype)[0]
    return f"0x{int(array[0]):0{2 * array.itemsize}x} ({value:.6g})"
