"""Counters of the server in the Prometheus text format (version 0.0.4)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

_HELP = {
    "reward_requests_total": "HTTP requests to the scoring endpoints, by endpoint and status.",
    "reward_scores_total": "Pairs that got a score.",
    "reward_errors_total": "Pairs or requests that got an error, by reason.",
    "reward_truncations_total": "Pairs that were cut to the maximum length.",
    "reward_tokens_total": "Tokens of the scored pairs, padding not counted.",
    "reward_request_seconds": "Time from the request's arrival to its answer.",
}


class Metrics:
    """Thread-safe counters, and gauges that are read when the page is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds = 0.0
        self._requests = 0
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        for name in ("reward_scores_total", "reward_truncations_total", "reward_tokens_total"):
            self._counts[(name, "")] = 0

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter. Label values are identifiers of this program and need no escaping."""
        text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        with self._lock:
            self._counts[(name, f"{{{text}}}" if text else "")] += amount

    def observe(self, seconds: float) -> None:
        """Count one request and its duration in seconds."""
        with self._lock:
            self._seconds += seconds
            self._requests += 1

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a value that is read for each page."""
        self._gauges[name] = (text, read)

    def page(self) -> str:
        """The whole page."""
        with self._lock:
            counts, seconds, requests = dict(self._counts), self._seconds, self._requests
        lines: list[str] = []
        for name in sorted({name for name, _ in counts}):
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} counter"]
            lines += [f"{key}{labels} {value}" for (key, labels), value in sorted(counts.items()) if key == name]
        name = "reward_request_seconds"
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} summary"]
        lines += [f"{name}_sum {seconds:.6f}", f"{name}_count {requests}"]
        for name, (text, read) in sorted(self._gauges.items()):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {read():g}"]
        return "\n".join(lines) + "\n"
