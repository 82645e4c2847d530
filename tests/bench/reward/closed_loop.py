"""A light HTTP client: so many connections, each with one request at a time, for so many seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

WARM_UP_S = 1.0


@dataclass
class Load:
    """What was answered in the window after the warm-up.

    Attributes:
        seconds: of the window.
        latencies: seconds of each request that ended in it.
        refused: answers with another status than 200, in all.
    """

    seconds: float
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds


def request_bytes(path: str, body: bytes) -> bytes:
    """A whole keep-alive POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return f"{head}\r\n".encode() + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Status and body of the answer to one request on an open connection.

    Raises:
        ConnectionError: the server closed it.
        ValueError: the answer has no Content-Length.
    """
    writer.write(request)
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        begin = head.find(b"content-length:")
        if begin < 0:
            raise ValueError(f"an answer without Content-Length: {head!r}")
        length = int(head[begin + 15 : head.index(b"\r\n", begin)])
        return int(head[9:12]), await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the server closed the connection") from error


async def measure(
    port: int, connections: int, seconds: float, requests: Sequence[bytes], warm_up: float = WARM_UP_S
) -> Load:
    """Keep `connections` requests in flight; count those that end in the window. `requests` are taken in turn."""
    load = Load(seconds)
    supply = cycle(requests)
    begin = time.perf_counter() + warm_up
    end = begin + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while (started := time.perf_counter()) < end:
                status, _ = await exchange(reader, writer, next(supply))
                ended = time.perf_counter()
                load.refused += status != 200
                if begin <= ended < end and status == 200:
                    load.latencies.append(ended - started)
        finally:
            writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return load


async def answer_all(
    port: int, connections: int, requests: Iterator[bytes], done: Callable[[int], None] | None = None
) -> dict[int, int]:
    """Send each of `requests` once; returns how often each status came. `done` is told how many are answered."""
    statuses: dict[int, int] = {}
    answered = 0

    async def one() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for request in requests:
                status, _ = await exchange(reader, writer, request)
                statuses[status] = statuses.get(status, 0) + 1
                answered += 1
                if done is not None:
                    done(answered)
        finally:
            writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return statuses
