"""Who is next: a queue in which one request with many pairs does not hold up the requests with one.

Start-time fair queuing (Goyal, Vin and Cheng, SIGCOMM 1996): an item starts, in virtual time, when the item before
it in its flow would end, and not before now; items leave in the order of their starts. Virtual time here goes on
with the work that leaves, shared among the flows that wait: a stream of new flows, each of one item, cannot keep
an older flow waiting for ever.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

# Items at the head of the queue that a choice may look at: enough to find similar lengths among.
WINDOW = 512


class Flow:
    """The items of one request in one queue. Nothing but the queue changes it."""

    __slots__ = ("finish", "waiting")

    def __init__(self) -> None:
        self.finish = 0.0
        self.waiting = 0


class FairQueue(Generic[T]):
    """Items of many flows, in fair order. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        # (start, serial, cost, flow, item): the serial is unique, so that no comparison goes past it.
        self._entries: list[tuple[float, int, int, Flow, T]] = []
        self._virtual = 0.0
        self._serial = 0
        self._flows = 0
        self.cost = 0
        """Of all items that wait."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, flow: Flow, item: T, cost: int) -> None:
        """Queue one item behind those of its flow.

        Args:
            cost: work that the item stands for (tokens, characters), at least 1.
        """
        start = max(self._virtual, flow.finish)
        flow.finish = start + cost
        if flow.waiting == 0:
            self._flows += 1
        flow.waiting += 1
        self._serial += 1
        self.cost += cost
        insort(self._entries, (start, self._serial, cost, flow, item))

    def take(self, choose: Callable[[Sequence[int]], Sequence[int]]) -> list[T]:
        """Remove and return items from the head of the queue.

        Args:
            choose: gets the costs of the first items (at most ``WINDOW``) in fair order, returns the positions to
                take. The first, 0, should be among them, else it may wait for ever.
        """
        head = self._entries[:WINDOW]
        chosen = set(choose([entry[2] for entry in head]))
        self._entries[: len(head)] = [entry for position, entry in enumerate(head) if position not in chosen]
        taken = [head[position] for position in sorted(chosen)]
        sharing = max(1, self._flows)
        work = sum(self._leave(cost, flow) for _, _, cost, flow, _ in taken)
        self._virtual += work / sharing
        if self._entries:
            self._virtual = max(self._virtual, self._entries[0][0])
        return [entry[4] for entry in taken]

    def drop(self, flow: Flow) -> list[T]:
        """Remove and return the items of one flow."""
        if flow.waiting == 0:
            return []
        gone = [entry for entry in self._entries if entry[3] is flow]
        self._entries = [entry for entry in self._entries if entry[3] is not flow]
        for _, _, cost, _, _ in gone:
            self._leave(cost, flow)
        return [entry[4] for entry in gone]

    def _leave(self, cost: int, flow: Flow) -> int:
        self.cost -= cost
        flow.waiting -= 1
        if flow.waiting == 0:
            self._flows -= 1
        return cost
