"""Acceptance, order, lanes and the end, with a model that is a gate (scheduling_fakes.py); the rest is real."""

from __future__ import annotations

import asyncio
import queue

import pytest
from scheduling_fakes import BAD, BROKEN, LengthBackend, Setup, run, values

from reward.errors import QueueFullError, ScoringError, ShuttingDownError
from reward.serving.calls import PairFailedError


def test_what_waits_shares_a_batch() -> None:
    async def test(setup: Setup) -> None:
        first = setup.ask(1)
        await setup.scoring(1)
        others = [setup.ask(n, n) for n in (2, 3)]
        await setup.scoring(1, depth=4)
        setup.backend.gate.set()
        assert values(await first) == [1]
        assert [values(await other) for other in others] == [[2, 2], [3, 3]]
        assert [sorted(batch) for batch in setup.backend.batches] == [[1], [2, 2, 3, 3]]

    run(test)


def test_idle_lanes_share_what_waits() -> None:
    async def test(setup: Setup) -> None:
        task = setup.ask(*[5] * 12)
        await setup.scoring(12)
        assert setup.backend.batches == [[5] * 6, [5] * 6]
        setup.backend.gate.set()
        await task

    run(test, LengthBackend(lanes=2, batch_tokens=1000))


def test_a_single_pair_goes_before_the_rest_of_a_batch() -> None:
    async def test(setup: Setup) -> None:
        long = setup.ask(*[10] * 200)
        await setup.scoring(10, depth=190)
        single = setup.ask(7)
        await setup.scoring(10, depth=191)
        setup.backend.gate.set()
        assert values(await single) == [7]
        assert len(await long) == 200
        assert 7 in setup.backend.batches[1]
        assert len(setup.backend.batches) == 21

    run(test, LengthBackend(batch_tokens=100))


def test_full_queue_takes_all_or_none_and_counts_what_is_scored() -> None:
    async def test(setup: Setup) -> None:
        first = setup.ask(*[1] * 6)
        await setup.scoring(6)
        with pytest.raises(QueueFullError, match=r"no room for 3 pairs: 6 are here, --queue is 8") as error:
            await setup.ask(*[1] * 3)
        assert error.value.retry_after >= 1
        second = setup.ask(1, 1)
        setup.backend.gate.set()
        assert len(await first) + len(await second) == 8
        assert len(await setup.ask(*[1] * 8)) == 8

    run(test, capacity=8)


def test_retry_after_follows_the_time_that_pairs_take() -> None:
    async def test(setup: Setup) -> None:
        setup.batcher._seconds_per_pair = 0.5
        setup.ask(*[1] * 40)
        await setup.until(lambda: setup.batcher.depth + setup.batcher.scoring == 40)
        with pytest.raises(QueueFullError) as error:
            await setup.ask(1)
        assert error.value.retry_after == 10

    run(test, capacity=40)


def test_pairs_of_a_client_that_has_gone_are_not_scored() -> None:
    async def test(setup: Setup) -> None:
        first = setup.ask(1)
        await setup.scoring(1)
        gone = setup.ask(*[2] * 5)
        await setup.scoring(1, depth=5)
        in_tokenizer = setup.ask(4, text="@")
        await setup.until(lambda: setup.batcher.depth == 6)
        gone.cancel()
        in_tokenizer.cancel()
        await setup.until(lambda: len(setup.batcher._ready) == 0)
        setup.encoder.gate.set()
        await setup.until(lambda: setup.batcher.depth == 0)
        last = setup.ask(3)
        setup.backend.gate.set()
        await first
        await last
        assert setup.backend.batches == [[1], [3]]
        assert setup.counted("reward_dropped_total") == 6
        assert setup.counted("reward_scores_total") == 2

    run(test)


def test_a_batch_that_fails_is_tried_pair_by_pair() -> None:
    async def test(setup: Setup) -> None:
        first = setup.ask(1)
        await setup.scoring(1)
        good, bad = setup.ask(5), setup.ask(BAD)
        await setup.scoring(1, depth=2)
        setup.backend.gate.set()
        await first
        assert values(await good) == [5]
        with pytest.raises(PairFailedError, match=r"MemoryError in the forward pass of this pair \(13 tokens\)"):
            await bad
        assert setup.backend.batches[1:] == [[5, BAD], [5], [BAD]]
        assert setup.counted("reward_errors_total", '{reason="internal"}') == 1

    run(test)


def test_the_first_error_ends_a_call_and_frees_the_rest() -> None:
    async def test(setup: Setup) -> None:
        setup.ask(1)
        await setup.scoring(1)
        with pytest.raises(PairFailedError, match="no token") as error:
            await setup.ask(3, 0, *[3] * 20)
        assert error.value.position == 1
        assert isinstance(error.value.error, ScoringError)
        await setup.until(lambda: setup.batcher.depth == 0)

    run(test)


def test_close_scores_what_was_accepted_and_refuses_new_pairs() -> None:
    async def test(setup: Setup) -> None:
        waiting = setup.ask(3, 4)
        await setup.scoring(2)
        held = setup.ask(2, text="@")
        await setup.until(lambda: setup.batcher.depth == 1)
        closing = asyncio.create_task(asyncio.to_thread(setup.batcher.close, 30))
        await setup.until(lambda: setup.batcher._closing)
        with pytest.raises(ShuttingDownError):
            await setup.ask(1)
        setup.backend.gate.set()
        assert values(await waiting) == [3, 4]
        assert not closing.done()
        setup.encoder.gate.set()
        assert values(await held) == [2]
        await closing

    run(test)


def test_close_leaves_a_forward_without_end() -> None:
    async def test(setup: Setup) -> None:
        gone = setup.ask(1)
        await setup.scoring(1)
        gone.cancel()
        await asyncio.wait_for(asyncio.to_thread(setup.batcher.close, 0.05), 20)
        assert setup.batcher.at_work
        assert not setup.backend.closed

    run(test)


def test_counts_tokens_and_padding() -> None:
    async def test(setup: Setup) -> None:
        setup.backend.gate.set()
        await setup.ask(30)
        await setup.ask(28, 30)
        assert setup.counted("reward_tokens_total") == 88
        assert setup.counted("reward_padding_tokens_total") == 2
        assert setup.counted("reward_batch_pairs_count") == 2
        assert setup.counted("reward_batch_tokens_sum") == 90

    run(test, LengthBackend(packs=False))


def test_a_thread_that_ends_by_a_fault_answers_what_waits() -> None:
    failures: queue.Queue[BaseException] = queue.Queue()

    async def main() -> None:
        setup = Setup(LengthBackend(), 100, failures.put)
        broken = setup.ask(BROKEN)
        await setup.scoring(1)
        waiting = setup.ask(1)
        await setup.scoring(1, depth=1)
        setup.backend.gate.set()
        for task in (broken, waiting):
            with pytest.raises(PairFailedError, match="cannot score"):
                await task
        with pytest.raises(ShuttingDownError):
            await setup.ask(1)
        await asyncio.wait_for(asyncio.to_thread(setup.batcher.close, 30), 40)

    asyncio.run(main())
    assert isinstance(failures.get(timeout=30), SystemExit)
