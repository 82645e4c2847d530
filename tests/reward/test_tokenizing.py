from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from scheduling_fakes import LengthEncoder

from reward.backends.interface import Tokens
from reward.errors import ScoringError
from reward.serving.fair_queue import Flow
from reward.serving.tokenizing import Tokenizing, encode

LONG = 100_000
Delivered = queue.Queue[tuple[str, Tokens | ScoringError]]


class Running:
    """The two threads, and what they deliver."""

    def __init__(self) -> None:
        self.encoder = LengthEncoder()
        self.delivered: Delivered = queue.Queue()

        def deliver(results: list[tuple[str, Tokens | ScoringError]]) -> None:
            for result in results:
                self.delivered.put(result)

        self.threads: Tokenizing[str] = Tokenizing(
            self.encoder, lambda text: ("", text), deliver, lambda error: pytest.fail(str(error))
        )

    def add(self, *texts: str) -> tuple[Flow, Flow]:
        flows = Flow(), Flow()
        self.threads.add(texts, *flows)
        return flows

    def next(self) -> str:
        return self.delivered.get(timeout=30)[0]


@pytest.fixture
def running() -> Iterator[Running]:
    before = set(threading.enumerate())
    running = Running()
    yield running
    running.encoder.gate.set()
    running.threads.close()
    assert set(threading.enumerate()) <= before


def test_a_long_text_does_not_hold_up_short_ones(running: Running) -> None:
    running.add("@" * LONG, "@" * LONG)  # one is in the tokenizer, one waits for it
    running.add("short")
    assert running.next() == "short"
    running.encoder.gate.set()
    assert {len(running.next()), len(running.next())} == {LONG}


def test_a_request_of_many_does_not_hold_up_one(running: Running) -> None:
    running.add(*["@"] * 1000)  # 64 in each of the two threads
    running.add("single")
    running.encoder.gate.set()
    order = [running.next() for _ in range(1001)]
    assert order.index("single") <= 3 * 64
    assert max(running.encoder.chunks) == 64


def test_chunks_are_bounded_in_characters(running: Running) -> None:
    running.add(*["a" * 30_000] * 5)
    assert {len(running.next()) for _ in range(5)} == {30_000}
    assert max(running.encoder.chunks) <= 2


def test_dropped_texts_are_not_tokenised(running: Running) -> None:
    running.add("@", "@" * LONG)
    for _ in range(3000):
        if not running.threads._small and not running.threads._large:
            break
        time.sleep(0.01)
    flows = running.add(*["b"] * 10, "b" * LONG)
    assert running.threads.drop(*flows) == 11
    running.encoder.gate.set()
    assert {running.next()[0] for _ in range(2)} == {"@"}
    running.threads.close()
    assert running.delivered.empty()


class Picky(LengthEncoder):
    """Raises for a chunk that holds the word."""

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        if any(response == "xyzzy" for _, response in pairs):
            raise ValueError("cannot take xyzzy")
        return super().encode_many(pairs)


def test_a_tokenizer_that_raises_fails_its_own_pair_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    good, bad, other = encode(Picky(), [("", "abc"), ("", "xyzzy"), ("", "de")])
    assert isinstance(good, Tokens)
    assert isinstance(other, Tokens)
    assert str(bad) == "ValueError in the tokenizer, for a pair of 5 characters"
    assert "xyzzy" not in caplog.text
    assert "a pair of 5 characters" in caplog.text
