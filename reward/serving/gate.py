"""What a scoring request must pass before it is parsed (bearer token, size, time), and the watch on its client."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from reward.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GUARDED = ("/score", "/score/batch")
# In the metrics, as of nginx: the client had closed the connection.
CLIENT_GONE = 499
# All bodies together may be as large as this many of the largest.
_LARGEST_BODIES = 16


class _Refusal(Exception):
    def __init__(self, status: int, reason: str, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.headers = headers


class _ClientGone(Exception):
    pass


class Gate:
    """ASGI middleware round the scoring endpoints; counts and times every request to them.

    401 without the right ``Authorization: Bearer TOKEN`` (where a token is set), 413 for a body over
    ``max_bytes``, whatever Content-Length says, 408 for one that has not come after ``read_timeout`` seconds, 429
    when the bodies of all requests together take too much memory, 503 for one that the end of the server cuts off.
    The application is cancelled when the client closes its connection.
    """

    def __init__(
        self, app: App, *, token: str | None, max_bytes: int, read_timeout: float, metrics: Metrics
    ) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._max_bytes = max_bytes
        self._read_timeout = read_timeout
        self._metrics = metrics
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] != "http" or scope["path"] not in GUARDED:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = CLIENT_GONE

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        body = bytearray()
        try:
            self._check_head(dict(scope["headers"]))
            await self._read_in_time(body, receive)
            await self._run(scope, bytes(body), receive, counted)
        except _Refusal as refusal:
            await self._refuse(counted, refusal)
        except _ClientGone:
            pass  # nobody is left who could read an answer
        except asyncio.CancelledError:
            # By uvicorn: its patience with the calls that are here has an end. Another server may take them.
            if status != CLIENT_GONE:
                raise
            await self._refuse(counted, _Refusal(503, "shutting_down", "the server ends", (b"retry-after", b"2")))
        finally:
            self._held_bytes -= len(body)
            self._metrics.requests.labels(endpoint=scope["path"], status=str(status)).inc()
            self._metrics.seconds.observe(time.monotonic() - started)

    def _check_head(self, headers: dict[bytes, bytes]) -> None:
        if self._expected is not None and not hmac.compare_digest(
            headers.get(b"authorization", b""), self._expected
        ):
            detail = "wrong or missing bearer token: the server was started with --token-file"
            raise _Refusal(401, "unauthorized", detail, (b"www-authenticate", b"Bearer"))
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()

    async def _read_in_time(self, body: bytearray, receive: Receive) -> None:
        try:
            await asyncio.wait_for(self._read(body, receive), self._read_timeout)
        except asyncio.TimeoutError:
            detail = f"the body was not here after {self._read_timeout:g} s (--read-timeout)"
            raise _Refusal(408, "slow_body", detail, (b"connection", b"close")) from None

    async def _read(self, body: bytearray, receive: Receive) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            part = message.get("body", b"")
            body += part
            self._held_bytes += len(part)
            more = message.get("more_body", False)
            if len(body) > self._max_bytes:
                raise self._too_large()
            most = self._max_bytes * _LARGEST_BODIES
            if self._held_bytes > most:
                detail = f"the requests that are here take more than {most} bytes; try again"
                raise _Refusal(429, "memory", detail, (b"retry-after", b"1"))

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Run the application on a body that is here, until it has answered or the client has gone."""
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                await asyncio.wait({watch})
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        watch = asyncio.ensure_future(_disconnect(receive))
        work = asyncio.ensure_future(self._app(scope, replay, send))
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return
        finally:
            watch.cancel()
            work.cancel()
            await asyncio.wait({watch, work})
        raise _ClientGone

    def _too_large(self) -> _Refusal:
        detail = f"the request is over {self._max_bytes} bytes (--max-request-bytes); send it in parts"
        return _Refusal(413, "too_large", detail)

    async def _refuse(self, send: Send, refusal: _Refusal) -> None:
        self._metrics.errors.labels(reason=refusal.reason).inc()
        content = json.dumps({"detail": str(refusal), "reason": refusal.reason}).encode()
        length = (b"content-length", str(len(content)).encode())
        headers = [(b"content-type", b"application/json"), length, *refusal.headers]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def _disconnect(receive: Receive) -> None:
    """Return when the client has closed its connection; its body is all here."""
    while (await receive())["type"] != "http.disconnect":
        pass
