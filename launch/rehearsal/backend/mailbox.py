"""A Ray actor that hands weight buckets from one sender to many receivers."""

from __future__ import annotations

import asyncio
from typing import Any


class WeightMailbox:
    """Buckets in order of arrival; a receiver asks for each by its index.

    A bucket is a one-element list holding an ObjectRef: Ray would fetch a bare reference into this actor.
    """

    def __init__(self) -> None:
        self._buckets: list[list[Any]] = []
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, boxed: list[Any]) -> None:
        async with self._changed:
            self._buckets.append(boxed)
            self._changed.notify_all()

    async def close(self) -> None:
        """No bucket follows."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def get(self, index: int) -> list[Any] | None:
        """Bucket number `index`, waited for; None when there are fewer and the sender has closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or index < len(self._buckets))
            return self._buckets[index] if index < len(self._buckets) else None
