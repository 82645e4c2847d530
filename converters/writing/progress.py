"""How far a conversion has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Any, TextIO

from converters.printing import tell

_EVERY_S = 10.0


class Progress:
    """Counts bytes for all threads; a context manager. Writes to standard error.

    Args:
        total: bytes to come.
        shown: False: nothing is written.
    """

    def __init__(self, total: int, *, shown: bool = True, stream: TextIO | None = None) -> None:
        # A process started with a closed standard error has none.
        self._stream: TextIO | None = stream or sys.stderr
        self._total, self._shown = total, shown and self._stream is not None
        self._bar: Any = None
        self._lock = Lock()
        self._begun = self._told = time.monotonic()
        self.bytes = 0

    def __enter__(self) -> Progress:
        if self._shown and self._stream is not None and self._stream.isatty():
            try:
                from tqdm import tqdm
            except ImportError:  # lines do as well
                return self
            self._bar = tqdm(total=self._total, unit="B", unit_scale=True, file=self._stream, leave=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()

    def __call__(self, count: int) -> None:
        """So many bytes more."""
        with self._lock:
            self.bytes += count
            now = time.monotonic()
            if self._bar is not None:
                try:
                    self._bar.update(count)
                except OSError:  # the terminal is gone
                    self._bar, self._shown = None, False
            elif self._shown and now - self._told >= _EVERY_S:
                self._told = now
                tell(self._line(now - self._begun), self._stream)

    def _line(self, seconds: float) -> str:
        """Share, rate and time left after `seconds`."""
        rate = self.bytes / max(seconds, 1e-9)
        left = (self._total - self.bytes) / rate if rate else 0.0
        share = f"{100 * self.bytes // self._total} % of " if self._total else ""
        return f"{share}{self._total / 1e9:.1f} GB, {rate / 1e6:,.0f} MB/s, {left:.0f} s left"
