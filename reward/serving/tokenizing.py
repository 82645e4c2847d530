"""Threads that turn text into tokens: neither the event loop nor a lane waits for a long text."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from reward.backends.interface import Tokens
from reward.errors import ScoringError
from reward.serving.fair_queue import FairQueue, Flow

log = logging.getLogger("reward.serving.tokenizing")

T = TypeVar("T")

# One call of the tokenizer: some milliseconds.
_CHUNK_PAIRS = 64
_CHUNK_CHARACTERS = 65_536
# Characters of a pair that stand for the work of any pair, however short.
_EACH = 64


class PairEncoder(Protocol):
    """The part of :class:`reward.inputs.PairTokenizer` that is used here."""

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        """Tokens of each pair, or the error for this pair alone."""


class Tokenizing(Generic[T]):
    """Two threads. One takes texts up to the size of a chunk only, so that there is always one for them."""

    def __init__(
        self,
        encoder: PairEncoder,
        text_of: Callable[[T], tuple[str, str]],
        deliver: Callable[[list[tuple[T, Tokens | ScoringError]]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Start the threads.

        Args:
            text_of: prompt and response of an item.
            deliver: gets the tokenised items of each chunk, in the thread.
            failed: gets what ``deliver`` raised; the thread then ends.
        """
        self._encoder = encoder
        self._text_of = text_of
        self._deliver = deliver
        self._failed = failed
        self._small: FairQueue[T] = FairQueue()
        self._large: FairQueue[T] = FairQueue()
        self._changed = threading.Condition()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=(large,), name=f"tokenizer-{name}", daemon=True)
            for name, large in (("small", False), ("any", True))
        ]
        for thread in self._threads:
            thread.start()

    def add(self, items: Sequence[T], flow: Flow, large_flow: Flow) -> None:
        """Queue items of one request; its large texts are a flow of their own."""
        with self._changed:
            for item in items:
                prompt, response = self._text_of(item)
                cost = len(prompt) + len(response) + _EACH
                if cost > _CHUNK_CHARACTERS:
                    self._large.add(large_flow, item, cost)
                else:
                    self._small.add(flow, item, cost)
            self._changed.notify_all()

    def drop(self, flow: Flow, large_flow: Flow) -> int:
        """Forget the items of a request that are not tokenised yet; how many they are."""
        with self._changed:
            return len(self._small.drop(flow)) + len(self._large.drop(large_flow))

    def close(self) -> None:
        """End the threads; what still waits stays undelivered."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _take(self, large: bool) -> list[T]:
        with self._changed:
            while not self._stopped:
                if large and self._large:
                    return self._large.take(lambda costs: [0])
                if self._small:
                    return self._small.take(_chunk)
                self._changed.wait()
        return []

    def _run(self, large: bool) -> None:
        try:
            while items := self._take(large):
                results = encode(self._encoder, [self._text_of(item) for item in items])
                self._deliver(list(zip(items, results, strict=True)))
        except BaseException as error:  # noqa: BLE001 - without this thread requests would wait for ever
            self._failed(error)


def encode(encoder: PairEncoder, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
    """Tokens of each pair; a chunk that raises is tried again pair by pair, and the text is in no message."""
    try:
        results = encoder.encode_many(pairs)
        if len(results) == len(pairs):
            return results
        raise ValueError(f"{len(results)} results for {len(pairs)} pairs")
    except Exception as error:  # noqa: BLE001 - a tokenizer's fault is an answer of 500, never the server's end
        if len(pairs) == 1:
            characters = sum(len(text) for text in pairs[0])
            log.error("a pair of %d characters failed in the tokenizer: %s", characters, type(error).__name__)
            return [
                ScoringError(f"{type(error).__name__} in the tokenizer, for a pair of {characters} characters")
            ]
    return [result for pair in pairs for result in encode(encoder, [pair])]


def _chunk(costs: Sequence[int]) -> list[int]:
    total = 0
    for position, cost in enumerate(costs[:_CHUNK_PAIRS]):
        total += cost
        if position and total > _CHUNK_CHARACTERS:
            return list(range(position))
    return list(range(min(len(costs), _CHUNK_PAIRS)))
