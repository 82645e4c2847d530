from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence

import pytest

from reward.backends.local_model import Score
from reward.errors import QueueFullError, ScoringError, ShuttingDownError
from reward.serving.batcher import Batcher


class Lengths:
    """Scores a pair by the length of its response; ``gate`` holds each round back."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.rounds: list[int] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score | ScoringError]:
        self.gate.wait(30)
        self.rounds.append(len(pairs))
        if any(response == "boom" for _, response in pairs):
            raise MemoryError("no room")
        return [Score(float(len(response)), 1, False) for _, response in pairs]


def values(results: list[Score | ScoringError]) -> list[float]:
    return [result.value for result in results if isinstance(result, Score)]


def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


def run(
    test: Callable[[Batcher, Lengths], object],
    capacity: int = 8,
    failed: Callable[[BaseException], None] = no_failure,
) -> None:
    """Run an async test with a started batcher whose gate is closed."""

    async def main() -> None:
        scorer = Lengths(threading.Event())
        batcher = Batcher(capacity)
        batcher.start(lambda: scorer, failed)
        try:
            await test(batcher, scorer)  # type: ignore[misc]
        finally:
            scorer.gate.set()
            await asyncio.to_thread(batcher.close)

    asyncio.run(main())


def test_what_waits_shares_a_round() -> None:
    async def test(batcher: Batcher, scorer: Lengths) -> None:
        first = asyncio.create_task(batcher.score([("", "a")]))
        while batcher.scoring != 1:
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(batcher.score([("", "b" * n)] * 2)) for n in (2, 3)]
        while batcher.depth != 4:
            await asyncio.sleep(0.01)
        scorer.gate.set()
        assert values(await first) == [1]
        assert [values(await other) for other in others] == [[2, 2], [3, 3]]
        assert scorer.rounds == [1, 4]

    run(test)


def test_full_queue_takes_all_or_none() -> None:
    async def test(batcher: Batcher, scorer: Lengths) -> None:
        with pytest.raises(QueueFullError):
            await batcher.score([("", "a")] * 9)
        assert batcher.depth == 0
        scorer.gate.set()
        assert len(await batcher.score([("", "a")] * 8)) == 8

    run(test)


def test_close_scores_what_waits_and_refuses_new_pairs() -> None:
    async def test(batcher: Batcher, scorer: Lengths) -> None:
        waiting = asyncio.create_task(batcher.score([("", "abc")]))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        await asyncio.sleep(0.05)
        with pytest.raises(ShuttingDownError):
            await batcher.score([("", "a")])
        scorer.gate.set()
        assert values(await waiting) == [3]
        await closing

    run(test)


def test_cancelled_pairs_are_not_scored() -> None:
    async def test(batcher: Batcher, scorer: Lengths) -> None:
        first = asyncio.create_task(batcher.score([("", "a")]))
        while batcher.scoring != 1:
            await asyncio.sleep(0.01)
        gone = asyncio.create_task(batcher.score([("", "b")] * 5))
        while batcher.depth != 5:
            await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        last = asyncio.create_task(batcher.score([("", "c")]))
        await asyncio.sleep(0.01)
        scorer.gate.set()
        await first
        await last
        assert scorer.rounds == [1, 1]

    run(test)


def test_a_round_that_raises_fails_its_pairs_and_the_next_goes_on() -> None:
    async def test(batcher: Batcher, scorer: Lengths) -> None:
        scorer.gate.set()
        (result,) = await batcher.score([("", "boom")])
        assert isinstance(result, ScoringError)
        assert "MemoryError" in str(result)
        assert values(await batcher.score([("", "a")])) == [1]

    run(test)


def test_failed_load_answers_what_waits() -> None:
    started = threading.Event()
    reported: queue.Queue[BaseException] = queue.Queue()

    def load() -> Lengths:
        started.wait(30)
        raise OSError("no weights")

    async def main() -> None:
        batcher = Batcher(8)
        batcher.start(load, reported.put)
        assert batcher.loading
        waiting = asyncio.create_task(batcher.score([("", "a")]))
        await asyncio.sleep(0.05)
        started.set()
        (result,) = await waiting
        assert isinstance(result, ShuttingDownError)
        batcher.close()

    asyncio.run(main())
    assert str(reported.get(timeout=30)) == "no weights"  # after the answer, from the thread
