"""What a connection may hold, and for how long, before it has sent the head of a request.

uvicorn 0.30 to 0.54 has a deadline for idle connections between two requests, and none for a first request that
never comes, or comes a byte a minute; with httptools there is no bound to the size of a head either, nor to the
number of requests that are sent without waiting for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

MOST_HEAD_BYTES = 64 * 1024
MOST_PIPELINED = 1000


class _Guard(_Base):  # type: ignore[misc,unused-ignore]
    """Mixed into a protocol of uvicorn. Bodies are the gate's; here they count only after an early answer."""

    count: Callable[[str], None]
    read_timeout: float
    most_unread_bytes: int
    """Of a body that was answered before it had come: thrown away, so that the client can read the answer."""

    _deadline: asyncio.TimerHandle | None = None
    _unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, then see whether a request is being worked on; if none is, the head is still under way."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if len(getattr(self, "pipeline", ())) > MOST_PIPELINED:
            self._give_up("pipelined")
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop()
            return
        if self._deadline is None:
            self._start()
        self._unread += len(data)
        if cycle is not None and cycle.more_body:
            if self._unread > self.most_unread_bytes:
                self._give_up("large_body")
        elif self._unread > MOST_HEAD_BYTES:
            self._give_up("large_head")

    def _start(self) -> None:
        self._deadline = self.loop.call_later(self.read_timeout, self._too_slow)

    def _stop(self) -> None:
        self._unread = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self._give_up("slow_head")

    def _give_up(self, reason: str) -> None:
        # Counted and not logged: whoever opens such connections opens many.
        type(self).count(reason)
        self.transport.close()


def uvicorn_protocol() -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol: on httptools where that is installed, else on h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return cast(type[asyncio.Protocol], H11Protocol)
    return cast(type[asyncio.Protocol], HttpToolsProtocol)


def guarded_protocol(
    protocol: type[asyncio.Protocol], read_timeout: float, most_unread_bytes: int, count: Callable[[str], None]
) -> type[asyncio.Protocol]:
    """The protocol with the guard.

    Args:
        read_timeout: seconds for the head of a request.
        count: gets a reason for each connection that was closed: ``slow_head``, ``large_head``, ``large_body`` or
            ``pipelined``.
    """
    limits = {
        "read_timeout": read_timeout,
        "most_unread_bytes": most_unread_bytes,
        "count": staticmethod(count),
    }
    return type("GuardedProtocol", (_Guard, protocol), limits)
