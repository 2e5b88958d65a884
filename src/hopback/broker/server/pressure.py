"""How much memory messages take, and when that is too much.

What is published is added up; only when that could be too much, everything is counted, which takes
a while in a full broker. So counting costs next to nothing until memory runs short.
"""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.server.house import House

__all__ = ["MESSAGE_BYTES", "Pressure", "give_back_memory"]

MESSAGE_BYTES = 600
"""What a message takes beside its body, roughly."""
_WORTH_GIVING_BACK = 16 * 1024 * 1024
"""Published since the last time: below this there is little to give back."""
_HIGH = 0.95
"""Publishers are stopped a little below the limit: what is on its way still has to fit."""
_LOW = 0.8
"""Far enough below the other that they are not stopped and let go with every message."""


class Pressure:
    """Keeps the count of one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._limit = house.limits.memory_bytes
        self._used = 0
        self._copies: WeakKeyDictionary[Node, int] = WeakKeyDictionary()
        self._published = 0
        self.is_high = False
        """Whether publishers have to wait; once so, it stays until there is some room again."""

    def add(self, node: Node, size: int) -> None:
        """A message of this size was published; how many queues took a copy, the node knows."""
        copies = node.copies
        self._published += size + MESSAGE_BYTES
        self._used += size + (copies - self._copies.get(node, 0)) * MESSAGE_BYTES
        self._copies[node] = copies
        if self._used > self._limit and not self.is_high:
            self._house.check_memory()

    def is_giving_back_worth_it(self) -> bool:
        """Whether much has come, and perhaps gone, since this was last asked with that answer."""
        worth = self._published > _WORTH_GIVING_BACK
        if worth:
            self._published = 0
        return worth

    def measure(self) -> None:
        """Count everything, and hang up on those who never finish a large message."""
        nodes = self._house.nodes
        stored = sum(_stored(queue) for node in nodes for queue in node.queues.values())
        held = sum(
            len(taken.content.body) + MESSAGE_BYTES for node in nodes for taken in node.deliveries()
        )
        self._used = stored + held + self._unfinished()
        self.is_high = self._used > self._limit * (_LOW if self.is_high else _HIGH)

    def _unfinished(self) -> int:
        begun = [(client.core.unfinished_bytes, client) for client in self._house.clients]
        total = sum(size for size, _ in begun)
        if total <= self._limit / 4:
            return total
        for size, client in begun:
            if size * len(begun) >= total:
                client.line.abort()
        return 0


def give_back_memory() -> None:
    """Give the system what messages that are gone have left behind.

    glibc keeps it otherwise: 134 MB after 100,000 messages of 1 KiB, 31 MB after this. Where the C
    library has no such function, nothing happens.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _stored(queue: LiveQueue) -> int:
    count = len(queue.ready) + len(queue.safe) + len(queue.delays)
    return queue.byte_count + queue.safe.byte_count + count * MESSAGE_BYTES
