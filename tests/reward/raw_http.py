"""HTTP/1.1 by hand over asyncio streams: thousands of connections in one process, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from reward_servers import RunningServer


@dataclass
class Answer:
    """What came back; ``body`` is parsed JSON."""

    status: int
    headers: dict[str, str]
    body: dict[str, object]


def request(body: object, path: str = "/score", **headers: str) -> bytes:
    """The bytes of a POST."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """One answer with a Content-Length.

    Raises:
        asyncio.IncompleteReadError: the server closed the connection before it.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    content = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(head[0].split()[1]), headers, json.loads(content))


@asynccontextmanager
async def connection(server: RunningServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One connection, closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    try:
        yield reader, writer
    finally:
        writer.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the server closes the connection."""
    try:
        return await reader.read(-1)
    except ConnectionResetError:
        return b""
