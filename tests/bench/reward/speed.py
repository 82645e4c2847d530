"""Throughput and latency of all systems, in rounds, so that a noisy minute meets each of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from closed_loop import Load, exchange, measure, request_bytes
from cpu_share import cpu_times, share_of_others
from systems import HERE, Pair, Process, System, request_body, running

CONNECTIONS = (64, 8, 1)
SECONDS = {64: 8.0, 8: 5.0, 1: 5.0}
LIMIT = "sorted limit"
_CHECKED_PAIRS = 16
_TOLERANCE = 2e-3


@dataclass
class Measured:
    """All rounds of one system at one number of connections.

    Attributes:
        rates: pairs a second, of each round.
        latencies: seconds, of all rounds.
        others: part of the cores' time that went to other programs, of each round.
    """

    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


Results = dict[str, dict[int, Measured]]


@contextmanager
def _limit(model: Path, pairs: Sequence[Pair], cores: Sequence[int]) -> Iterator[tuple[Process, list[float]]]:
    """The process of sorted_limit.py, and the scores of the pairs."""
    popen = subprocess.Popen(
        [sys.executable, str(HERE / "sorted_limit.py"), str(model), str(len(cores))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(len(cores))},
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    process = Process(LIMIT, popen)
    try:
        yield process, [float(score) for score in json.loads(_ask(process, json.dumps(pairs)))]
    finally:
        process.end()


def _ask(process: Process, line: str = "") -> bytes:
    assert process.popen.stdin is not None
    assert process.popen.stdout is not None
    process.popen.stdin.write(f"{line}\n".encode())
    process.popen.stdin.flush()
    answer = process.popen.stdout.readline()
    if not answer:
        raise RuntimeError(f"{process.name} ended with {process.popen.wait()}")
    return answer


async def _scores(system: System, port: int, pairs: Sequence[Pair]) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    scores = []
    for pair in pairs:
        request = request_bytes(system.path, request_body(system, pair))
        status, body = await exchange(reader, writer, request)
        if status != 200:
            raise RuntimeError(f"{system.name}: HTTP {status}: {body[:500]!r}")
        scores.append(system.score(json.loads(body)))
    writer.close()
    return scores


def _check(system: System, port: int, pairs: Sequence[Pair], expected: Sequence[float]) -> None:
    """All must compute the same: a server that skips work would be quick.

    Raises:
        RuntimeError: a score differs from that of plain transformers.
    """
    shortest = sorted(range(len(pairs)), key=lambda place: len("".join(pairs[place])))
    places = [*shortest[: _CHECKED_PAIRS // 2], *shortest[-_CHECKED_PAIRS // 2 :]]
    scores = asyncio.run(_scores(system, port, [pairs[place] for place in places]))
    for place, score in zip(places, scores, strict=True):
        if abs(score - expected[place]) > _TOLERANCE:
            raise RuntimeError(
                f"{system.name}: pair {place} has score {score}, transformers say {expected[place]}"
            )


@dataclass
class Comparison:
    """Running systems and what was measured so far."""

    cores: Sequence[int]
    requests: dict[str, list[bytes]]
    servers: list[Process]
    limit: Process
    results: Results = field(default_factory=dict)

    def round(self, tell: Callable[[str], None]) -> None:
        """Measure each system once, at each number of connections side by side, and the limit."""
        for connections in CONNECTIONS:
            for server in self.servers:
                self._measured(server, connections, lambda server=server, n=connections: self._load(server, n))
        self._measured(self.limit, 0, self._limit_rate)
        tell(self._line())

    def _load(self, server: Process, connections: int) -> Load:
        load = asyncio.run(measure(server.port, connections, SECONDS[connections], self.requests[server.name]))
        if load.refused:
            raise RuntimeError(f"{server.name}: {load.refused} answers without a score")
        return load

    def _limit_rate(self) -> Load:
        rates = json.loads(_ask(self.limit))
        best = max(rates.values())
        return Load(1.0, [1.0 / best] * round(best * 1000)) if best else Load(1.0)

    def _measured(self, process: Process, connections: int, work: Callable[[], Load]) -> None:
        sessions = [one.popen.pid for one in [*self.servers, self.limit]]
        process.resume()
        before = cpu_times(self.cores, sessions)
        load = work()
        after = cpu_times(self.cores, sessions)
        process.pause()
        cell = self.results.setdefault(process.name, {}).setdefault(connections, Measured())
        cell.others.append(share_of_others(before, after, self.cores))
        if connections:
            cell.rates.append(load.rate)
            cell.latencies += load.latencies
        else:
            cell.rates.append(1.0 / load.latencies[0])

    def _line(self) -> str:
        parts = [f"{self.limit.name} {self.results[self.limit.name][0].rates[-1]:.1f}"]
        parts += [
            f"{server.name} " + "/".join(f"{self.results[server.name][n].rates[-1]:.1f}" for n in CONNECTIONS)
            for server in self.servers
        ]
        return ", ".join(parts)


def compare(
    systems: Sequence[System],
    model: Path,
    pairs: Sequence[Pair],
    cores: Sequence[int],
    rounds: int,
    logs: Path,
    tell: Callable[[str], None],
) -> Results:
    """Start all systems, check their scores, measure `rounds` rounds; the order turns by one from round to round.

    Raises:
        RuntimeError: a system does not start, scores otherwise, or gives an error.
    """
    with ExitStack() as stack:
        limit, expected = stack.enter_context(_limit(model, pairs, cores))
        limit.pause()
        servers = []
        for system in systems:
            tell(f"starting {system.name}")
            server = stack.enter_context(running(system, model, cores, logs / f"{system.name}.log"))
            _check(system, server.port, pairs, expected)
            server.pause()
            servers.append(server)
        requests = {
            system.name: [request_bytes(system.path, request_body(system, pair)) for pair in pairs]
            for system in systems
        }
        comparison = Comparison(cores, requests, servers, limit)
        for number in range(rounds):
            comparison.round(lambda line, number=number: tell(f"round {number + 1} of {rounds}, pairs/s: {line}"))
            comparison.servers = [*comparison.servers[1:], comparison.servers[0]]
        return comparison.results
