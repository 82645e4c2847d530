"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from reward.backends.interface import Score
from reward.serving.batch_choice import padding

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAIRS = tuple(2.0**power for power in range(10))
_TOKENS = tuple(2.0**power for power in range(5, 18))


class Metrics:
    """Counters and histograms of one server, in a registry of its own, and those of its process."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for each counter
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "reward_requests",
            "Requests to the scoring endpoints; status 499: the client had gone before its answer.",
            ("endpoint", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "reward_request_seconds",
            "Time from the request's head to its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.errors = Counter(
            "reward_errors", "Pairs or requests that got an error, by reason.", ("reason",), registry=registry
        )
        self.dropped = Counter(
            "reward_dropped", "Pairs that were not scored because their client had gone.", registry=registry
        )
        self._batch_pairs = Histogram("reward_batch_pairs", "Pairs of a batch.", buckets=_PAIRS, registry=registry)
        self._batch_tokens = Histogram(
            "reward_batch_tokens", "Tokens of a batch, padding included.", buckets=_TOKENS, registry=registry
        )
        self._tokens = Counter("reward_tokens", "Tokens of the batches, padding not counted.", registry=registry)
        self._padding = Counter("reward_padding_tokens", "Padding of the batches.", registry=registry)
        self._scores = Counter("reward_scores", "Pairs that got a score.", registry=registry)
        self._truncations = Counter(
            "reward_truncations", "Scored pairs that were cut to the maximum length.", registry=registry
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a value that is read for each page."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def count_batch(self, lengths: Sequence[int], *, packed: bool) -> None:
        """Count the tokens of one batch."""
        tokens = sum(lengths)
        added = 0 if packed else padding(lengths)
        self._batch_pairs.observe(len(lengths))
        self._batch_tokens.observe(tokens + added)
        self._tokens.inc(tokens)
        self._padding.inc(added)

    def count_score(self, score: Score) -> None:
        """Count one score."""
        self._scores.inc()
        self._truncations.inc(score.truncated)

    def page(self) -> bytes:
        """The whole page in the text format, version 0.0.4."""
        return generate_latest(self._registry)
