"""A bounded queue of pairs and the one worker thread that scores them, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reward.backends.local_model import Score
from reward.errors import QueueFullError, ScoringError, ShuttingDownError

log = logging.getLogger("reward.serving.batcher")

# One round of the worker takes at most this many pairs, so that a huge request lets others in between.
PAIRS_PER_ROUND = 256


class Scorer(Protocol):
    """What the worker thread calls."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score | ScoringError]:
        """One result a pair, in order."""


@dataclass
class _Job:
    prompt: str
    response: str
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Score | ScoringError] = field(repr=False)

    def resolve(self, result: Score | ScoringError) -> None:
        """Hand the result to the waiting coroutine; called from the worker thread."""
        self.loop.call_soon_threadsafe(self._set, result)

    def _set(self, result: Score | ScoringError) -> None:
        if not self.future.done():
            self.future.set_result(result)


class Batcher:
    """Pairs wait in one queue; each round of the worker scores what waits, at most ``PAIRS_PER_ROUND``."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._loaded = False
        self._seconds_per_pair = 0.05
        self.scoring = 0
        """Pairs of the current round."""
        self._thread: threading.Thread | None = None

    def start(self, load: Callable[[], Scorer], failed: Callable[[BaseException], None]) -> None:
        """Start the worker: it calls ``load`` once, then scores until :meth:`close`.

        Args:
            load: makes the scorer, in the worker thread.
            failed: called in the worker thread with what ``load`` raised; the worker then ends, and what waits
                gets :class:`ShuttingDownError`.
        """
        self._thread = threading.Thread(target=self._run, args=(load, failed), name="reward-worker", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Pairs that wait."""
        return len(self._jobs)

    @property
    def loading(self) -> bool:
        """Whether the worker is still in ``load``."""
        return self._thread is not None and self._thread.is_alive() and not self._loaded

    async def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score | ScoringError]:
        """Queue the pairs, all or none, and wait for their results (one a pair, in order).

        Raises:
            QueueFullError: no room for all of them.
            ShuttingDownError: :meth:`close` was called.
        """
        loop = asyncio.get_running_loop()
        jobs = [_Job(prompt, response, loop, loop.create_future()) for prompt, response in pairs]
        with self._changed:
            if self._closing:
                raise ShuttingDownError("the server is shutting down")
            if len(self._jobs) + len(jobs) > self.capacity:
                wait = math.ceil(min(60.0, max(1.0, len(self._jobs) * self._seconds_per_pair / 2)))
                raise QueueFullError(f"{len(self._jobs)} pairs wait, the queue holds {self.capacity}", wait)
            self._jobs.extend(jobs)
            self._changed.notify()
        return list(await asyncio.gather(*(job.future for job in jobs)))

    def close(self) -> None:
        """Take no more pairs, score those that wait, then end the worker. Blocks until that is done."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        # A model that is still loading is not waited for unless somebody waits for it.
        if self._thread is not None and (self._loaded or self._jobs):
            self._thread.join()

    def _take(self) -> list[_Job]:
        """The next round, or an empty list when closing with nothing left."""
        with self._changed:
            while not self._jobs and not self._closing:
                self._changed.wait()
            taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), PAIRS_PER_ROUND))]
        # A cancelled future has nobody waiting for it any more.
        return [job for job in taken if not job.future.cancelled()]

    def _run(self, load: Callable[[], Scorer], failed: Callable[[BaseException], None]) -> None:
        try:
            scorer = load()
            self._loaded = True
            self._rounds(scorer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process must end with it as the reason
            self._refuse_waiting()
            failed(error)

    def _refuse_waiting(self) -> None:
        """Answer what waits: a request without an answer would hold up the server's end."""
        with self._changed:
            self._closing = True
            waiting = [*self._jobs]
            self._jobs.clear()
        for job in waiting:
            job.resolve(ShuttingDownError("the server cannot score and is ending"))

    def _rounds(self, scorer: Scorer) -> None:
        """Score what waits, round by round, until :meth:`close` and an empty queue."""
        while True:
            jobs = self._take()
            if not jobs:
                if self._closing and not self._jobs:
                    return
                continue
            self.scoring = len(jobs)
            started = time.monotonic()
            try:
                results = scorer.score([(job.prompt, job.response) for job in jobs])
            except Exception as error:  # noqa: BLE001 - out of memory, a kernel fault: these pairs fail, loudly
                log.error("a round of %d pairs failed: %s: %s", len(jobs), type(error).__name__, error)
                results = [ScoringError(f"{type(error).__name__} in the forward pass") for _ in jobs]
            self._seconds_per_pair = (time.monotonic() - started) / len(jobs)
            for job, result in zip(jobs, results, strict=True):
                job.resolve(result)
            self.scoring = 0
