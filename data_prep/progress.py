"""How far a conversion has come: a bar on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO

_EVERY_S = 10.0


class Progress:
    """Counts bytes and rows; a context manager. Writes to standard error.

    Args:
        total: bytes of all inputs.
        shown: False: nothing is written.
    """

    def __init__(self, total: int, *, shown: bool = True, stream: TextIO | None = None) -> None:
        # A process started with a closed standard error has none.
        self._stream: TextIO | None = stream or sys.stderr
        self._total = total
        self._shown = shown and self._stream is not None
        self._bar: Any = None
        self._begun = self._told = time.monotonic()
        self.bytes = self.rows = 0

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
            self._bar.close()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / max(self.seconds, 1e-9)

    def update(self, bytes_read: int, rows: int) -> None:
        """That much more was read and converted."""
        self.bytes += bytes_read
        self.rows += rows
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self.rows:,} rows, {self.rate:,.0f} rows/s", refresh=False)
            self._bar.update(bytes_read)
        elif self._shown and time.monotonic() - self._told >= _EVERY_S:
            share = f"{100 * self.bytes // self._total} %, " if self._total else ""
            self.say(f"{share}{self.rows:,} rows, {self.rate:,.0f} rows/s")

    def say(self, line: str) -> None:
        """A plain line."""
        self._told = time.monotonic()
        if self._bar is not None:
            self._bar.clear()
        if self._shown:
            print(line, file=self._stream, flush=True)
