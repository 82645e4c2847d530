"""What a scoring request must pass before its body is parsed: bearer token, size, and a body that arrives."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from reward.serving.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

GUARDED = ("/score", "/score/batch")


class Gate:
    """ASGI middleware round the scoring endpoints; counts and times every request to them.

    401 without the right ``Authorization: Bearer TOKEN`` (where a token is set), 413 for a body over
    ``max_bytes``, whatever Content-Length says.
    """

    def __init__(self, app: App, *, token: str | None, max_bytes: int, metrics: Metrics) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._max_bytes = max_bytes
        self._metrics = metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] != "http" or scope["path"] not in GUARDED:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._guard(scope, receive, counted)
        finally:
            self._metrics.add("reward_requests_total", endpoint=scope["path"], status=str(status))
            self._metrics.observe(time.monotonic() - started)

    async def _guard(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._expected is not None:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await self._refuse(send, 401, "unauthorized", "wrong or missing bearer token")
                return
        too_large = f"the request is over {self._max_bytes} bytes"
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._refuse(send, 413, "too_large", too_large)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_bytes:
                await self._refuse(send, 413, "too_large", too_large)
                return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, replay, send)

    async def _refuse(self, send: Send, status: int, reason: str, detail: str) -> None:
        self._metrics.add("reward_errors_total", reason=reason)
        content = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 413:
            # The rest of the body is not read: the connection cannot be used again.
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
