"""The guard on both of uvicorn's protocols, in a server of their own with an application of a few lines."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
import uvicorn
from raw_http import closed

from reward.serving.slow_clients import MOST_HEAD_BYTES, MOST_PIPELINED, guarded_protocol, uvicorn_protocol

Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TIMEOUT = 0.3
LONG = 60.0
HEAD = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: "
PROTOCOLS = ["httptools_impl.HttpToolsProtocol", "h11_impl.H11Protocol"]


async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Answers at once at /early, else when the body is here; at /slow a while later."""
    if scope["path"] != "/early":
        while (await receive()).get("more_body"):
            pass
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def serve(protocol: str, client: Client, timeout: float = LONG, least: float = 0.0) -> list[str]:
    """Run the client against the guarded protocol, `least` seconds from before it connects on.

    Returns:
        Why it closed connections.
    """
    reasons: list[str] = []
    module, name = protocol.split(".")
    base = getattr(importlib.import_module(f"uvicorn.protocols.http.{module}"), name)

    async def main() -> None:
        config = uvicorn.Config(
            app,
            http=guarded_protocol(base, timeout, 1_000_000, reasons.append),
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=60,
        )
        server = uvicorn.Server(config)
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:
            await asyncio.sleep(0.01)
        started = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        try:
            await asyncio.wait_for(client(reader, writer), LONG)
            assert asyncio.get_running_loop().time() - started >= least
        finally:
            writer.close()
            server.should_exit = True
            await running

    asyncio.run(main())
    return reasons


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
    return head.split(b"\r\n")[0]


def test_httptools_is_taken_where_it_is() -> None:
    pytest.importorskip("httptools")
    assert uvicorn_protocol().__name__ == "HttpToolsProtocol"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sent", [b"", HEAD[:20], HEAD + b"1\r\n"])
def test_no_head_in_time(protocol: str, sent: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        assert await reader.read(-1) == b""

    assert serve(protocol, client, TIMEOUT, least=TIMEOUT * 0.9) == ["slow_head"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_answer_and_an_idle_connection_are_no_slow_client(protocol: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"/", b"/slow", 1) + b"0\r\n\r\n")
        assert b"200" in await answer(reader)
        await asyncio.sleep(1.5)
        writer.write(HEAD + b"3\r\n\r\nabc")
        assert b"200" in await answer(reader)
        writer.write(HEAD[:20])
        assert await reader.read(-1) == b""

    serve(protocol, client, timeout=1.0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_rest_of_a_body_is_read_after_an_early_answer(protocol: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"/", b"/early", 1) + b"300000\r\n\r\n")
        assert b"200" in await answer(reader)
        for _ in range(3):
            writer.write(b"x" * 100_000)
            await writer.drain()
        writer.write(HEAD + b"3\r\n\r\nabc")
        assert b"200" in await answer(reader)

    serve(protocol, client)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_but_not_for_ever(protocol: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"/", b"/early", 1) + b"30000000\r\n\r\n")
        assert b"200" in await answer(reader)
        sent = 0
        try:
            while True:
                writer.write(b"x" * 100_000)
                await writer.drain()
                sent += 100_000
        except ConnectionError:
            assert sent < 30_000_000

    assert serve(protocol, client) == ["large_body"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_without_waiting_for_answers(protocol: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            writer.write(HEAD + b"0\r\n\r\n")
        for _ in range(3):
            assert b"200" in await answer(reader)
        writer.write((HEAD + b"0\r\n\r\n") * (2 * MOST_PIPELINED))
        if protocol == PROTOCOLS[0]:
            await closed(reader)
        else:
            for _ in range(2 * MOST_PIPELINED):
                assert b"200" in await answer(reader)

    # h11 takes one request after the other.
    assert serve(protocol, client) == (["pipelined"] if protocol == PROTOCOLS[0] else [])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_head_without_end(protocol: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"3\r\nX: " + b"x" * (2 * MOST_HEAD_BYTES))
        got = await closed(reader)
        assert not got or got.startswith(b"HTTP/1.1 400")

    # h11 has a bound of its own, and answers 400.
    assert serve(protocol, client) == (["large_head"] if protocol == PROTOCOLS[0] else [])
