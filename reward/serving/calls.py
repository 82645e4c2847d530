"""One accepted scoring call and its pairs, from the event loop through the threads and back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from reward.backends.interface import Score, Tokens
from reward.errors import ScoringError
from reward.serving.fair_queue import Flow


@dataclass(slots=True)
class Result:
    """The score of one pair; ``dropped`` tokens were cut off."""

    score: Score
    dropped: int


class PairFailedError(Exception):
    """The first error of a call, with the position of its pair."""

    def __init__(self, position: int, error: ScoringError) -> None:
        super().__init__(str(error))
        self.position = position
        self.error = error


class Call:
    """The pairs of one request. Its results are touched on the event loop only."""

    def __init__(self, pairs: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.results: list[Result | None] = [None] * pairs
        self.future: asyncio.Future[list[Result]] = loop.create_future()
        self.over = False
        """No result is waited for any more; what is left of its pairs is dropped."""
        self.text_flow, self.large_text_flow, self.token_flow = Flow(), Flow(), Flow()
        self._left = pairs

    def resolve(self, position: int, result: Result | ScoringError) -> None:
        """Take the result of one pair; the first error ends the call."""
        if self.future.done():
            return
        if isinstance(result, ScoringError):
            self.future.set_exception(PairFailedError(position, result))
            return
        self.results[position] = result
        self._left -= 1
        if self._left == 0:
            self.future.set_result([entry for entry in self.results if entry is not None])


class Pair:
    """One pair of a call."""

    __slots__ = ("call", "position", "text", "tokens")

    def __init__(self, call: Call, position: int, text: tuple[str, str]) -> None:
        self.call = call
        self.position = position
        self.text = text
        self.tokens = _NO_TOKENS


_NO_TOKENS = Tokens(())


Outcome = tuple[Pair, Result] | tuple[Pair, ScoringError]


def deliver(results: Sequence[Outcome]) -> None:
    """Hand results from a thread to the event loop that waits for them."""
    if results:
        # One server has one loop.
        results[0][0].call.loop.call_soon_threadsafe(_resolve, results)


def _resolve(results: Sequence[Outcome]) -> None:
    for pair, result in results:
        pair.call.resolve(pair.position, result)
