"""A bar on a terminal while all of an image is read. Standard library only."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

_BAR = 40
_QUIET_S = 1.0  # small images, and cached ones, need no bar
_EVERY_S = 0.1


def progress_bar(path: Path) -> Callable[[int, int], None] | None:
    """A bar on standard error for a person who waits; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        return None
    begin = last = time.monotonic()

    def show(done: int, size: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begin < _QUIET_S or (now - last < _EVERY_S and done < size):
            return
        last = now
        filled = _BAR * done // max(size, 1)
        bar = f"{'#' * filled}{'.' * (_BAR - filled)}"
        end = "\r\033[K" if done >= size else ""
        text = f"\r{path.name}: SHA-256 [{bar}] {done / 1e9:.1f} of {size / 1e9:.1f} GB{end}"
        print(text, end="", file=sys.stderr, flush=True)

    return show
