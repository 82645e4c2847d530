"""CPU threads shared among batches that are computed side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class ThreadShare:
    """A batch that starts alone computes with all threads; one that starts beside others with its share of them.

    torch's number of threads belongs to the thread that calls it (OpenMP's nthreads-var): each lane sets its own.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._busy = 0
        self._lock = threading.Lock()
        self._own = threading.local()

    @contextmanager
    def hold(self) -> Iterator[int]:
        """Compute in this thread; yields with how many of torch's threads."""
        with self._lock:
            self._busy += 1
            share = max(1, self.threads // self._busy)
        try:
            if getattr(self._own, "share", None) != share:
                torch.set_num_threads(share)
                self._own.share = share
            yield share
        finally:
            with self._lock:
                self._busy -= 1
