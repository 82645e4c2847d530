"""Words on disk as numbers.

Sources: IEEE 754 (binary16, 32, 64); bfloat16 is the upper half of binary32; OCP 8-bit floating point 1.0
(E4M3, E5M2) and microscaling formats 1.0 (E8M0: a power of two).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from converters.storage.tensors import Words

# IEEE and whole types are numpy's own; the others are made below.
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|u1",
}  # fmt: skip


def numbers(words: Words, dtype: str) -> npt.NDArray[Any]:
    """The values of `words` (one unsigned word an element, C-contiguous), exact, in a type that holds them.

    May share the memory of `words`.
    """
    if dtype in _NUMPY:
        return words.view(_NUMPY[dtype])
    if dtype == "BF16":
        wide: Words = words.astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    if dtype == "F8_E5M2":  # the upper half of a float16
        half: Words = words.astype(np.uint16) << np.uint16(8)
        return half.view(np.float16)
    if dtype in _TABLES:
        return _TABLES[dtype][words]
    raise ValueError(f"no numbers for the type {dtype}")


def _e4m3(word: int) -> float:
    """`fn`: no infinity, one NaN; sign, 4 bits of exponent with bias 7, 3 bits of mantissa."""
    sign, exponent, mantissa = -1.0 if word & 0x80 else 1.0, (word >> 3) & 0xF, word & 7
    if word & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def _e8m0(word: int) -> float:
    return float("nan") if word == 0xFF else 2.0 ** (word - 127)


_TABLES = {
    "F8_E4M3": np.array([_e4m3(word) for word in range(256)]),
    "F8_E8M0": np.array([_e8m0(word) for word in range(256)]),
}
