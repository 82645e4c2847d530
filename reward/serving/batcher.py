"""From accepted pairs to scores: a bounded, fair queue, threads that tokenise, and a thread for each lane.

A lane that is idle takes what waits at once: to wait for more would cost latency; under load more waits anyway.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence

from reward.backends.interface import Backend, Score, Tokens
from reward.errors import QueueFullError, ScoringError, ShuttingDownError
from reward.serving.batch_choice import LEAST_SHARE, packed_batch, padded_batch
from reward.serving.calls import Call, Outcome, Pair, Result, deliver
from reward.serving.fair_queue import FairQueue
from reward.serving.lanes import score_batch
from reward.serving.metrics import Metrics
from reward.serving.tokenizing import PairEncoder, Tokenizing

_LONGEST_RETRY_AFTER_S = 60.0


class Batcher:
    """Pairs of all calls, from acceptance to score. Counts pairs, batches and errors in the metrics."""

    def __init__(
        self,
        encoder: PairEncoder,
        backend: Backend,
        capacity: int,
        metrics: Metrics,
        failed: Callable[[BaseException], None],
    ) -> None:
        """Start the threads.

        Args:
            capacity: pairs that may be between acceptance and score.
            failed: gets what ended a thread: the server cannot go on without it.
        """
        self.backend = backend
        self.capacity = capacity
        self.scoring = 0
        """Pairs that a lane is scoring."""
        self._metrics = metrics
        self._failed = failed
        self._broken = False
        self._calls: set[Call] = set()
        self._held = 0
        self._ready: FairQueue[Pair] = FairQueue()
        # One lock: for the lanes that wait for work, and for close, which waits for nothing to be held.
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._busy = 0
        self._closing = False
        self._stopped = False
        self._seconds_per_pair = 0.05
        self._tokenizing: Tokenizing[Pair] = Tokenizing(
            encoder, lambda pair: pair.text, self._tokenised, self._broke
        )
        self._threads = [
            threading.Thread(target=self._lane, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in range(backend.lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def depth(self) -> int:
        """Accepted pairs that no lane has taken yet."""
        return self._held - self.scoring

    @property
    def at_work(self) -> bool:
        """Whether a lane lives, and may be computing."""
        return any(thread.is_alive() for thread in self._threads)

    async def score(self, texts: Sequence[tuple[str, str]]) -> list[Result]:
        """Take the pairs, all or none, and wait for their results, in order.

        When this is cancelled, because the client has gone, pairs that no lane has taken yet are dropped.

        Raises:
            QueueFullError: no room for all of them.
            ShuttingDownError: :meth:`close` was called.
            PairFailedError: a pair has no score; the rest of the call is dropped.
        """
        call = Call(len(texts), asyncio.get_running_loop())
        self._accept(call, len(texts))
        pairs = [Pair(call, position, text) for position, text in enumerate(texts)]
        self._tokenizing.add(pairs, call.text_flow, call.large_text_flow)
        try:
            return await call.future
        finally:
            call.over = True
            self._forget(call)

    def close(self, within: float) -> None:
        """Take no more pairs, score those that were accepted, end the threads and the backend. Blocks.

        Args:
            within: seconds, after which a lane that still computes is left alone (see :attr:`at_work`).
        """
        end = time.monotonic() + within
        with self._lock:
            self._closing = True
            self._empty.wait_for(lambda: self._broken or not self._held, within)
            self._stopped = True
            self._work.notify_all()
        self._tokenizing.close()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if not self.at_work:
            self.backend.close()

    def _accept(self, call: Call, pairs: int) -> None:
        with self._lock:
            if self._closing:
                raise ShuttingDownError("the server is shutting down")
            if self._held + pairs > self.capacity:
                expected = self._held * self._seconds_per_pair / 2
                wait = math.ceil(min(_LONGEST_RETRY_AFTER_S, max(1.0, expected)))
                raise QueueFullError(
                    f"no room for {pairs} pairs: {self._held} are here, --queue is {self.capacity}", wait
                )
            self._held += pairs
            self._calls.add(call)

    def _forget(self, call: Call) -> None:
        """Drop what is left of a call that is over; nothing is when it has all its scores."""
        with self._lock:
            self._calls.discard(call)
        if call.future.done() and not call.future.cancelled() and call.future.exception() is None:
            return
        dropped = self._tokenizing.drop(call.text_flow, call.large_text_flow)
        with self._lock:
            dropped += len(self._ready.drop(call.token_flow))
            self._release(dropped)
        if call.future.cancelled():
            self._metrics.dropped.inc(dropped)

    def _release(self, pairs: int) -> None:
        """These pairs are not held any more. The lock is held."""
        self._held -= pairs
        if self._held == 0:
            self._empty.notify_all()

    def _tokenised(self, results: list[tuple[Pair, Tokens | ScoringError]]) -> None:
        """Queue what has tokens, answer what has none; called by a tokenizer thread."""
        failed: list[tuple[Pair, ScoringError]] = []
        gone = 0
        with self._lock:
            for pair, result in results:
                if pair.call.over:
                    gone += pair.call.future.cancelled()
                    self._release(1)
                elif isinstance(result, ScoringError):
                    failed.append((pair, result))
                    self._release(1)
                else:
                    pair.tokens = result
                    self._ready.add(pair.call.token_flow, pair, len(result))
            self._work.notify()
        self._metrics.dropped.inc(gone)
        for _, error in failed:
            self._count(error)
        deliver(failed)

    def _take(self) -> list[Pair]:
        """The next batch of a lane, or an empty list at the end. Idle lanes share what waits."""
        choose = packed_batch if self.backend.packs else padded_batch
        with self._lock:
            while not self._ready:
                if self._stopped:
                    return []
                self._work.wait()
            budget = self.backend.batch_tokens
            idle = self.backend.lanes - self._busy
            if idle > 1:
                most = 1.0 if self.backend.packs else 1.0 / LEAST_SHARE
                budget = min(budget, math.ceil(most * self._ready.cost / idle))
            pairs = self._ready.take(lambda lengths: choose(lengths, budget))
            self._busy += 1
            self.scoring += len(pairs)
            if self._ready:
                self._work.notify()
            return pairs

    def _lane(self, lane: int) -> None:
        try:
            while pairs := self._take():
                started = time.monotonic()
                results = score_batch(self.backend, lane, [pair.tokens for pair in pairs])
                self._scored(pairs, results, time.monotonic() - started)
        except BaseException as error:  # noqa: BLE001 - without this thread requests would wait for ever
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        """A thread has ended by a fault of this program: answer what waits, and end the server."""
        with self._lock:
            self._closing = self._broken = True
            self._empty.notify_all()
            calls = [*self._calls]
        for call in calls:
            call.loop.call_soon_threadsafe(
                call.resolve, 0, ShuttingDownError("the server cannot score and is ending")
            )
        self._failed(error)

    def _scored(self, pairs: list[Pair], results: list[Score | ScoringError], seconds: float) -> None:
        """Free the lane, count, answer; called by the lane."""
        with self._lock:
            self._busy -= 1
            self.scoring -= len(pairs)
            self._seconds_per_pair += 0.2 * (seconds / self.backend.lanes / len(pairs) - self._seconds_per_pair)
            self._release(len(pairs))
        self._metrics.count_batch([len(pair.tokens) for pair in pairs], packed=self.backend.packs)
        answers: list[Outcome] = []
        for pair, result in zip(pairs, results, strict=True):
            if isinstance(result, ScoringError):
                self._count(result)
                answers.append((pair, result))
            else:
                self._metrics.count_score(result)
                answers.append((pair, Result(result, pair.tokens.dropped)))
        deliver(answers)

    def _count(self, error: ScoringError) -> None:
        self._metrics.errors.labels(reason=error.reason).inc()
