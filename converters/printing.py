"""Text out of checkpoints for people: nothing that a terminal might obey."""

from __future__ import annotations


def escaped(text: str) -> str:
    """`text` with an escape for each character that is not printable; line ends stay."""
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


def size(count: int) -> str:
    """12_345_678 -> '12.3 MB': decimal units, as in names of shard sizes."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
