"""Words on disk from one floating type to another, each value rounded once, to nearest, ties to even.

Sources: IEEE 754 (binary16, 32, 64); bfloat16 is the upper half of binary32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from converters.errors import ConvertError
from converters.storage.numbers import numbers as numbers_of
from converters.storage.tensors import Words

SOURCES = ("F64", "F32", "F16", "BF16")
TARGETS = ("F32", "F16", "BF16")
_NUMPY = {"F32": "<f4", "F16": "<f2"}


def convert(words: Words, source: str, target: str, name: str) -> Words:
    """The values of `words` (C-contiguous, any shape, type `source`) as words of `target`.

    Infinite values and NaN stay what they are; the bits within a NaN may change.

    Raises:
        ConvertError: one of the types is no floating type, or a finite value has no finite neighbour in `target`.
    """
    if source == target:
        return words
    if source not in SOURCES or target not in TARGETS:
        raise ConvertError(
            f"{name}: {source} cannot be converted to {target}, only {', '.join(SOURCES)} to "
            f"{', '.join(TARGETS)}. Leave --dtype out."
        )
    numbers = numbers_of(words, source)
    # NaN and numbers beyond the range are looked for below.
    with np.errstate(over="ignore", invalid="ignore"):
        result = _bfloat16(numbers) if target == "BF16" else numbers.astype(_NUMPY[target]).view(_word(target))
    bad = _infinite(result, target)
    if bad.any():
        bad &= np.isfinite(numbers)
        if bad.any():
            raise ConvertError(
                f"{name}: {numbers[bad].flat[0]:.6g} is beyond the range of {target}. Choose another --dtype, or "
                "leave it out."
            )
    return result


def float32(words: Words, source: str, name: str) -> Words:
    """The values of `words` as float32, rounded once where `source` is wider; may share the memory of `words`.

    Raises:
        ConvertError: as `convert`.
    """
    return convert(words, source, "F32", name).view(np.float32)


def _word(dtype: str) -> type[Any]:
    return np.uint32 if dtype == "F32" else np.uint16


def _infinite(words: Words, dtype: str) -> npt.NDArray[np.bool_]:
    unsigned, infinity = {
        "F32": (0x7FFFFFFF, 0x7F800000),
        "F16": (0x7FFF, 0x7C00),
        "BF16": (0x7FFF, 0x7F80),
    }[dtype]
    kind = _word(dtype)
    found: npt.NDArray[np.bool_] = (words & kind(unsigned)) == kind(infinity)
    return found


def _bfloat16(numbers: Any) -> Words:
    """Words of bfloat16 of float16, float32 or float64."""
    single: Words = numbers.astype(np.float32, copy=False)
    bits: Words = single.view(np.uint32)
    if numbers.dtype == np.float64:
        # Rounded to odd on the way, or a value just off the middle of two would be rounded twice.
        back = single.astype(np.float64)
        bits -= (np.abs(back) > np.abs(numbers)).astype(np.uint32)
        bits |= (back != numbers).astype(np.uint32)
    rounded: Words = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    is_nan = np.isnan(single)
    if is_nan.any():
        rounded[is_nan] = (bits[is_nan] >> np.uint32(16)) | np.uint32(0x40)
    return rounded.astype(np.uint16)
