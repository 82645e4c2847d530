"""Words on disk as numbers, to tell by how much two tensors differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from converters.storage.tensors import Words

Numbers = npt.NDArray[np.float64]

# IEEE and whole types are numpy's own; the others are made below.
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1",
    "BOOL": "|u1",
}  # fmt: skip


def numbers(words: Words, dtype: str) -> Numbers:
    """The values of `words` (one unsigned word an element, C-contiguous) as float64.

    Exact for all types of 32 bits and less; whole numbers beyond 2**53 are rounded.
    """
    if dtype in _NUMPY:
        values = words.view(_NUMPY[dtype])
    elif dtype == "BF16":  # the upper half of a float32
        values = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "F8_E5M2":  # the upper half of a float16
        values = (words.astype(np.uint16) << np.uint16(8)).view(np.float16)
    elif dtype == "F8_E4M3":
        values = _E4M3[words]
    else:
        raise ValueError(f"no numbers for the type {dtype}")
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return np.asarray(values, dtype=np.float64)


def text(word: Any, dtype: str) -> str:
    """One element for a message: its bits and its value."""
    array = np.asarray(word).reshape(1)
    value = numbers(array, dtype)[0]
    return f"0x{int(array[0]):0{2 * array.itemsize}x} ({value:.6g})"


def _e4m3(word: int) -> float:
    """OCP float8 E4M3 (`fn`: no infinity, one NaN): sign, 4 bits of exponent with bias 7, 3 bits of mantissa."""
    sign, exponent, mantissa = -1.0 if word & 0x80 else 1.0, (word >> 3) & 0xF, word & 7
    if word & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


_E4M3 = np.array([_e4m3(word) for word in range(256)])
