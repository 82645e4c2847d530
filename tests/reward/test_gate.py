"""The gate by itself: ASGI messages in, ASGI messages out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from reward.serving.gate import Gate, Message, Receive, Scope, Send
from reward.serving.metrics import Metrics

MAX_BYTES = 1000
GONE: Message = {"type": "http.disconnect"}


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Fixture:
    """A gate before an application that answers what it got, when ``free`` is set."""

    def __init__(self, token: str | None = None, read_timeout: float = 60.0) -> None:
        self.metrics = Metrics()
        self.free = asyncio.Event()
        self.cancelled = 0
        self.running = 0
        self.gate = Gate(
            self.app, token=token, max_bytes=MAX_BYTES, read_timeout=read_timeout, metrics=self.metrics
        )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        self.running += 1
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(len(message["body"])).encode()})

    async def call(
        self, messages: Sequence[Message], path: str = "/score", gone: asyncio.Event | None = None, **headers: str
    ) -> tuple[int, Any, dict[bytes, bytes]]:
        """Status (0 for none), parsed body and headers; after the messages nothing comes until ``gone``."""
        left = [*messages]
        sent: list[Message] = []

        async def receive() -> Message:
            if left:
                return left.pop(0)
            await (gone or asyncio.Event()).wait()
            return GONE

        async def send(message: Message) -> None:
            sent.append(message)

        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.gate({"type": "http", "path": path, "headers": pairs}, receive, send)
        if not sent:
            return 0, None, {}
        return sent[0]["status"], json.loads(sent[1]["body"]), dict(sent[0]["headers"])

    def counted(self, line: str) -> float:
        (found,) = [text for text in self.metrics.page().decode().splitlines() if text.startswith(f"{line} ")]
        return float(found.split()[-1])


def test_passes_the_whole_body_on() -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.free.set()
        assert await fixture.call([part(b"abc", True), part(b"de")]) == (200, 5, {})
        assert fixture.counted('reward_requests_total{endpoint="/score",status="200"}') == 1
        assert fixture.counted("reward_request_seconds_count") == 1

    asyncio.run(main())


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", "bearer right", "right"])
def test_the_token_comes_before_the_body(given: str | None) -> None:
    async def main() -> None:
        fixture = Fixture(token="right")
        headers = {} if given is None else {"authorization": given}
        status, body, told = await fixture.call([], **headers)
        assert (status, body["reason"], told[b"www-authenticate"]) == (401, "unauthorized", b"Bearer")
        assert fixture.counted('reward_errors_total{reason="unauthorized"}') == 1
        fixture.free.set()
        assert (await fixture.call([part(b"a")], authorization="Bearer right"))[0] == 200

    asyncio.run(main())


def test_other_paths_are_open() -> None:
    async def main() -> None:
        fixture = Fixture(token="right")
        fixture.free.set()
        assert (await fixture.call([part(b"")], path="/health"))[0] == 200

    asyncio.run(main())


def test_size() -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.free.set()
        assert (await fixture.call([part(b"x" * MAX_BYTES)]))[0] == 200
        assert (await fixture.call([], **{"content-length": str(MAX_BYTES + 1)}))[0] == 413
        status, body, _ = await fixture.call([part(b"x" * MAX_BYTES, True), part(b"x")], **{"content-length": "5"})
        assert (status, body["reason"]) == (413, "too_large")

    asyncio.run(main())


def test_a_body_that_does_not_come() -> None:
    async def main() -> None:
        fixture = Fixture(read_timeout=0.2)
        status, body, headers = await fixture.call([part(b"a", True)])
        assert (status, body["reason"], headers[b"connection"]) == (408, "slow_body", b"close")
        assert "0.2 s (--read-timeout)" in body["detail"]

    asyncio.run(main())


def test_a_client_that_leaves_within_its_body_is_answered_nothing() -> None:
    async def main() -> None:
        fixture = Fixture()
        assert (await fixture.call([part(b"a", True), GONE]))[0] == 0
        assert fixture.counted('reward_requests_total{endpoint="/score",status="499"}') == 1

    asyncio.run(main())


def test_a_client_that_leaves_later_cancels_its_work() -> None:
    async def main() -> None:
        fixture = Fixture()
        gone = asyncio.Event()
        call = asyncio.create_task(fixture.call([part(b"abc")], gone=gone))
        while not fixture.running:
            await asyncio.sleep(0.001)
        gone.set()
        assert (await asyncio.wait_for(call, 60))[0] == 0
        assert (fixture.running, fixture.cancelled) == (0, 1)

    asyncio.run(main())


def test_all_bodies_together_are_bounded() -> None:
    async def main() -> None:
        fixture = Fixture()
        calls = [asyncio.create_task(fixture.call([part(b"x" * MAX_BYTES)])) for _ in range(16)]
        while fixture.running < 16:
            await asyncio.sleep(0.001)
        status, body, headers = await fixture.call([part(b"x", True), part(b"x")])
        assert (status, body["reason"], headers[b"retry-after"]) == (429, "memory", b"1")
        fixture.free.set()
        assert {(await call)[0] for call in calls} == {200}
        assert (await fixture.call([part(b"x")]))[0] == 200

    asyncio.run(main())


def test_an_application_that_raises_is_not_hidden() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("a fault")

    async def main() -> None:
        fixture = Fixture()
        fixture.gate._app = broken
        with pytest.raises(LookupError):
            await fixture.call([part(b"a")])

    asyncio.run(main())
