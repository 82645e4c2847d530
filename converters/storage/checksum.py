"""CRC-32 as zip files have it, and that of joined bytes from those of the parts.

`crc32` is Intel's ISA-L where the package `isal` is installed, ten times as quick as zlib's. `combine` is zlib's
`crc32_combine`, which Python does not offer: polynomials over GF(2) modulo that of CRC-32, lowest bit first (zlib
1.3 crc32.c, `multmodp` and `x2nmodp`). By it bytes that go two ways in two orders are summed once.
"""

from __future__ import annotations

from functools import lru_cache

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # the polynomial 1


def combine(first: int, second: int, length: int) -> int:
    """CRC-32 of A + B from that of A, that of B and the number of bytes of B."""
    return _times(_shift(length), first) ^ second


def _times(a: int, b: int) -> int:
    """a * b modulo the polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=1024)
def _shift(length: int) -> int:
    """x to the power of 8 * length: what `length` further bytes do to a CRC."""
    power, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            power = _times(square, power)
        square = _times(square, square)
        length >>= 1
    return power
