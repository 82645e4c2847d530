"""The server's memory over many requests, each with a text of its own: whatever is kept of a text would show."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from closed_loop import answer_all, request_bytes
from systems import OURS, Pair, request_body, running

CONNECTIONS = 64
_SAMPLES = 50
_SETTLED = 0.2
LIMIT_MIB = 16.0


@dataclass(frozen=True)
class MemoryCurve:
    """Resident memory (MiB) after so many requests.

    Attributes:
        statuses: how often each HTTP status came.
    """

    requests: list[int]
    rss_mib: list[float]
    statuses: dict[int, int]

    @property
    def growth_mib(self) -> float:
        """From the time at which pools and arenas are filled (a fifth of the requests) to the end."""
        settled = next(place for place, count in enumerate(self.requests) if count >= _SETTLED * self.requests[-1])
        return self.rss_mib[-1] - self.rss_mib[settled]


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def _requests(pairs: Sequence[Pair], count: int) -> Iterator[bytes]:
    rng = random.Random(0)
    for number in range(count):
        prompt, response = pairs[number % len(pairs)]
        cut = rng.randrange(20, len(response)) if len(response) > 20 else len(response)
        yield request_bytes(OURS.path, request_body(OURS, (prompt, f"{number} {response[:cut]}")))


def memory_curve(
    model: Path, pairs: Sequence[Pair], cores: Sequence[int], count: int, logs: Path, tell: Callable[[str], None]
) -> MemoryCurve:
    """Send `count` requests to our server with `model`, and look at its memory now and then."""
    places: list[int] = []
    memory: list[float] = []
    step = max(1, count // _SAMPLES)
    with running(OURS, model, cores, logs / "memory.log") as server:

        def look(answered: int) -> None:
            if answered % step == 0:
                places.append(answered)
                memory.append(_rss_mib(server.popen.pid))

        tell(f"memory: {count} requests")
        statuses = asyncio.run(answer_all(server.port, CONNECTIONS, _requests(pairs, count), look))
    return MemoryCurve(places, memory, statuses)


def as_json(curve: MemoryCurve) -> dict[str, object]:
    """For the report."""
    return json.loads(json.dumps({**curve.__dict__, "growth_mib": curve.growth_mib}))  # type: ignore[no-any-return]
