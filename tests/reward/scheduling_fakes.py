"""A backend and an encoder without a model, for tests of what is scored when: a text is its length in tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reward.backends.interface import Tokens
from reward.errors import EmptyPairError, ScoringError
from reward.serving.batcher import Batcher
from reward.serving.calls import Result
from reward.serving.metrics import Metrics

BAD = 13
"""A pair of that many tokens makes its batch fail."""
BROKEN = 17
"""And one of that many breaks the interface: its thread ends."""


class LengthEncoder:
    """As many tokens as the response has characters; none is an error; a text of @ holds the thread back."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.chunks: list[int] = []

    def encode_many(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens | ScoringError]:
        if any(response.startswith("@") for _, response in pairs):
            self.gate.wait(30)
        self.chunks.append(len(pairs))
        return [Tokens([1] * len(response)) if response else EmptyPairError("no token") for _, response in pairs]


class LengthBackend:
    """Scores a pair by its length; ``gate`` holds each batch back until it is set."""

    def __init__(self, lanes: int = 1, batch_tokens: int = 100, packs: bool = True) -> None:
        self.lanes = lanes
        self.batch_tokens = batch_tokens
        self.packs = packs
        self.gate = threading.Event()
        self.batches: list[list[int]] = []
        self.closed = False

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        lengths = [len(tokens) for tokens in batch]
        self.batches.append(lengths)
        self.gate.wait(30)
        if BAD in lengths:
            raise MemoryError("no room")
        if BROKEN in lengths:
            raise SystemExit
        return [float(length) for length in lengths]

    def info(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self.closed = True


def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


class Setup:
    """A running batcher with its parts."""

    def __init__(
        self, backend: LengthBackend, capacity: int, failed: Callable[[BaseException], None] = no_failure
    ) -> None:
        self.backend = backend
        self.encoder = LengthEncoder()
        self.metrics = Metrics()
        self.batcher = Batcher(self.encoder, backend, capacity, self.metrics, failed)

    def ask(self, *lengths: int, text: str = "a") -> asyncio.Task[list[Result]]:
        """Score pairs of these lengths."""
        return asyncio.create_task(self.batcher.score([("", text * length) for length in lengths]))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        for _ in range(3000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise TimeoutError

    async def scoring(self, pairs: int, depth: int = 0) -> None:
        """Wait until the lanes have that many pairs, and that many more are tokenised."""
        await self.until(lambda: self.batcher.scoring == pairs and len(self.batcher._ready) == depth)

    def counted(self, name: str, labels: str = "") -> float:
        """A value of the metrics."""
        (line,) = [
            line for line in self.metrics.page().decode().splitlines() if line.startswith(f"{name}{labels} ")
        ]
        return float(line.split()[-1])


def run(test: Callable[[Setup], Any], backend: LengthBackend | None = None, capacity: int = 1000) -> None:
    """Run an async test with a batcher whose gate is closed; all threads must end after it."""

    async def main() -> None:
        setup = Setup(backend or LengthBackend(), capacity)
        try:
            await asyncio.wait_for(test(setup), 60)
        finally:
            setup.backend.gate.set()
            setup.encoder.gate.set()
            await asyncio.wait_for(asyncio.to_thread(setup.batcher.close, 30), 40)
        assert not setup.batcher.at_work
        assert setup.backend.closed
        assert setup.batcher.depth == setup.batcher.scoring == 0

    asyncio.run(main())


def values(results: Sequence[Result]) -> list[float]:
    """The scores."""
    return [result.score.value for result in results]
