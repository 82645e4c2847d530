"""Text out of checkpoints for people: nothing that a terminal might obey."""

from __future__ import annotations

import os
import sys


def escaped(text: str) -> str:
    """`text` with an escape for each character that is not printable; line ends stay."""
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """`escaped`, and line ends as well: an item of a list cannot pass for the next one."""
    return escaped(text).replace("\n", "\\n")


def put(text: str, command: str) -> None:
    """Print a result, to the end: what a full disk or a closed pipe leaves out is not passed over.

    Raises:
        SystemExit: 141 for a closed pipe, as of a program that SIGPIPE ended; 1, with a message, else.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        # The rest of it is still in the buffer, for which Python tries again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(141) from error
        print(f"{command}: error: standard output: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def size(count: int) -> str:
    """12_345_678 -> '12.3 MB': decimal units, as in names of shard sizes."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
