"""Text out of checkpoints for people: nothing that a terminal might obey."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from converters.command_line import PIPE_CLOSED, escaped, fail, told

__all__ = ["escaped", "one_line", "put", "size", "tell"]


def one_line(text: str) -> str:
    """`escaped`, and line ends as well: an item of a list cannot pass for the next one."""
    return escaped(text).replace("\n", "\\n")


def put(text: str) -> None:
    """Print a result, to the end: what a full disk or a closed pipe leaves out is not passed over.

    Raises:
        SystemExit: 141 for a closed pipe, as of a program that SIGPIPE ended; 1, with a message, else.
    """
    try:
        print(_encodable(text, sys.stdout), flush=True)
    except OSError as error:
        # The rest of it is still in the buffer, for which Python tries again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(PIPE_CLOSED) from error
        raise SystemExit(fail(f"standard output: {told(error)}")) from error


def tell(text: str, stream: TextIO | None) -> None:
    """Write a line about a result that is there without it: where it cannot be written, it is dropped.

    Args:
        stream: None: closed when the process began (`print` would take standard output in its place).
    """
    if stream is None:
        return
    try:
        print(_encodable(text, stream), file=stream, flush=True)
    except (OSError, ValueError):  # full, a closed pipe; closed
        with suppress(OSError, ValueError):
            # Python tries again at its end, and would change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _encodable(text: str, stream: TextIO | None) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def size(count: int) -> str:
    """12_345_678 -> '12.3 MB': decimal units, as in names of shard sizes."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
