"""How many batches side by side, and of how many tokens: found by measuring for a few seconds."""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from reward.backends.interface import Tokens

log = logging.getLogger("reward.backends.calibration")

CPU_BUDGETS = (512, 1024, 2048, 4096, 8192)
CUDA_BUDGETS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
_MOST_LANES = 16
_SHORTEST_PAIR = 16
_PAIRS = 64
# Each setting is measured in several rounds, in turns, and its best one counts: others use this machine too. What
# is far behind after a round is not measured again.
_ROUNDS = 5
_FAR_BEHIND = 0.8
_LEAST_SECONDS = 0.02
_FIRST_TRIES = 5
# A smaller budget answers sooner: it wins within this share of the best, about what two measurements differ by.
SLACK = 0.01


@dataclass(frozen=True)
class Setting:
    """``lanes`` batches side by side of at most ``batch_tokens`` tokens each, padding included."""

    lanes: int
    batch_tokens: int


@dataclass(frozen=True)
class Calibration:
    """What was chosen, and what each setting that was tried computed, in tokens of pairs a second."""

    chosen: Setting
    seconds: float
    tokens_per_s: dict[Setting, float]

    def info(self) -> dict[str, Any]:
        """For ``GET /info``."""
        tried = [{**asdict(setting), "tokens_per_s": round(rate)} for setting, rate in self.tokens_per_s.items()]
        return {"seconds": round(self.seconds, 2), "tried": tried}


class Measured(Protocol):
    """What is measured: a backend."""

    packs: bool

    def forward(self, batch: Sequence[Tokens], lane: int) -> list[float]:
        """See :class:`reward.backends.interface.Backend`."""


def choose(rates: dict[Setting, float], slack: float = SLACK) -> Setting:
    """The setting with the smallest budget, then the fewest lanes, within ``slack`` of the best rate.

    Raises:
        ValueError: nothing was measured.
    """
    enough = (1 - slack) * max(rates.values())
    return min(
        (setting for setting, rate in rates.items() if rate >= enough),
        key=lambda setting: (setting.batch_tokens, setting.lanes),
    )


def lane_counts(threads: int) -> list[int]:
    """Numbers of lanes worth trying with so many CPU threads: powers of two."""
    return [lanes for lanes in (1, 2, 4, 8, 16) if lanes <= min(threads, _MOST_LANES)]


def mixed_pairs(like: Tokens, max_length: int) -> list[Tokens]:
    """Pairs of all lengths up to ``max_length``, as many short as long on a logarithmic scale, in mixed order.

    Args:
        like: real tokens of the model, repeated and cut.
    """
    shortest = min(_SHORTEST_PAIR, max_length)
    ratio = max_length / shortest
    lengths = [round(shortest * ratio ** (step / (_PAIRS - 1))) for step in range(_PAIRS)]
    random.Random(0).shuffle(lengths)

    def cut(ids: Sequence[int], length: int) -> list[int]:
        return list(itertools.islice(itertools.cycle(ids), length)) if ids else []

    return [Tokens(cut(like.input_ids, length), cut(like.token_type_ids, length)) for length in lengths]


def batches_of(pairs: Sequence[Tokens], budget: int, packs: bool) -> list[list[Tokens]]:
    """The pairs in batches, as the service makes them: in order where they are packed, else of similar length."""
    batches: list[list[Tokens]] = []
    current: list[Tokens] = []
    for pair in pairs if packs else sorted(pairs, key=len):
        cost = sum(map(len, current)) + len(pair) if packs else len(pair) * (len(current) + 1)
        if current and cost > budget:
            batches.append(current)
            current = []
        current.append(pair)
    return [*batches, current]


def calibrate(
    model: Measured, pairs: Sequence[Tokens], lanes: Sequence[int], budgets: Sequence[int], seconds: float
) -> Calibration | None:
    """Measure every combination of ``lanes`` and ``budgets`` (ascending), as far as ``seconds`` allow.

    A setting that needs more memory than there is bounds the budgets; it is no error.

    Returns:
        None where the model is too slow to measure anything in that time.

    Raises:
        Exception: whatever else a forward pass raises.
    """
    search = _Search(model, pairs, seconds, [Setting(count, budget) for count in lanes for budget in budgets])
    before: tuple[Setting, float] | None = None
    with ThreadPoolExecutor(max(lanes), thread_name_prefix="calibrate") as threads:
        for _ in range(_ROUNDS):
            search.run_round(threads)
            if not search.rates:
                continue
            now = choose(search.rates), max(search.rates.values())
            if before is not None and now[0] == before[0] and now[1] < (1 + SLACK) * before[1]:
                break  # another round said the same
            before = now
    if not search.rates:
        return None
    return Calibration(choose(search.rates), time.monotonic() - search.started, search.rates)


class _Search:
    """Rounds over the settings; ``rates`` holds the best tokens a second of each."""

    def __init__(
        self, model: Measured, pairs: Sequence[Tokens], seconds: float, settings: Sequence[Setting]
    ) -> None:
        self.started = time.monotonic()
        self.rates: dict[Setting, float] = {}
        self._model, self._pairs, self._settings = model, pairs, settings
        self._end = self.started + seconds
        self._slice_s = seconds / (len(settings) * _ROUNDS)
        self._longest = max(map(len, pairs))
        self._bound = math.inf
        self._rate = _first_rate(model, pairs, self._slice_s)

    def run_round(self, threads: ThreadPoolExecutor) -> None:
        """Measure what may still win, fits into memory and can be expected to end in time."""
        best = max(self.rates.values(), default=0.0)
        for setting in self._settings:
            if best and self.rates.get(setting, math.inf) < _FAR_BEHIND * best:
                continue
            expected = setting.lanes * max(setting.batch_tokens, self._longest) / self._rate
            left = self._end - time.monotonic()
            if setting.batch_tokens >= self._bound or expected > min(
                left, 4 * self._slice_s if self.rates else left / 2
            ):
                continue
            # A small model is measured in a moment: the rounds tell more than many batches in one.
            wanted = min(self._slice_s, max(_LEAST_SECONDS, expected))
            batches = batches_of(self._pairs, setting.batch_tokens, self._model.packs)
            try:
                measured = _tokens_per_s(self._model, batches, setting.lanes, wanted, threads)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                self._out_of_memory(setting)
                continue
            self.rates[setting] = max(measured, self.rates.get(setting, 0.0))
            self._rate = max(self._rate, measured)

    def _out_of_memory(self, setting: Setting) -> None:
        self._bound = setting.batch_tokens
        log.info("%d lanes of %d tokens need more memory than there is", setting.lanes, setting.batch_tokens)
        self.rates = {known: rate for known, rate in self.rates.items() if known.batch_tokens < self._bound}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _first_rate(model: Measured, pairs: Sequence[Tokens], seconds: float) -> float:
    """Tokens a second of single pairs, from a short one to longer ones while one takes less than ``seconds``."""
    rate, started = 0.0, time.monotonic()
    for pair in sorted(pairs, key=len)[:: max(1, len(pairs) // 8)]:
        if rate and max(len(pair) / rate, time.monotonic() - started) > seconds:
            break
        for attempt in range(_FIRST_TRIES):
            # Twice, since what happens once only is not part of it; more often only where that costs nothing: a
            # machine that others use may stall a small model for longer than it computes.
            if attempt >= 2 and time.monotonic() - started > seconds:
                break
            began = time.monotonic()
            model.forward([pair], 0)
            rate = max(rate, len(pair) / max(1e-6, time.monotonic() - began))
    return rate


def out_of_memory(error: BaseException) -> bool:
    """Whether a forward pass failed for want of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _tokens_per_s(
    model: Measured, batches: Sequence[list[Tokens]], lanes: int, seconds: float, threads: ThreadPoolExecutor
) -> float:
    """Tokens a second of all lanes together, each running until ``seconds`` have passed, one batch at least."""
    source = itertools.cycle(batches)
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def run(lane: int) -> float:
        tokens, began = 0, time.monotonic()
        for batch in _until(source, lock, end):
            model.forward(batch, lane)
            tokens += sum(map(len, batch))
        return tokens / (time.monotonic() - began)

    return sum(threads.map(run, range(lanes)))


def _until(source: Iterator[list[Tokens]], lock: threading.Lock, end: float) -> Iterator[list[Tokens]]:
    """Batches of the shared ``source``, one at least, until ``end``."""
    while True:
        with lock:
            batch = next(source)
        yield batch
        if time.monotonic() >= end:
            return
