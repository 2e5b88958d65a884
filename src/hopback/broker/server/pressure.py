"""How much memory messages take, and when that is too much.

What is published is added up; only when that could be too much, everything is counted, which takes
a while in a full broker. So counting costs next to nothing until memory runs short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.broker.server.house import House
    from hopback.broker.simulator.queue import LiveQueue

__all__ = ["MESSAGE_BYTES", "Pressure"]

MESSAGE_BYTES = 600
"""What a message takes beside its body, roughly."""
_HIGH = 0.95
_LOW = 0.8


class Pressure:
    """Keeps the count of one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._limit = house.limits.memory_bytes
        self._used = 0
        self._copies = 0
        self.is_high = False
        """Whether publishers have to wait; once so, it stays until there is some room again."""

    def add(self, size: int) -> None:
        """A message of this size was published; how many queues took a copy, the node knows."""
        copies = self._house.node.copies
        self._used += size + (copies - self._copies) * MESSAGE_BYTES
        self._copies = copies
        if self._used > self._limit and not self.is_high:
            self._house.check_memory()

    def measure(self) -> None:
        """Count everything, and hang up on those who never finish a large message."""
        stored = sum(map(_stored, self._house.node.queues.values()))
        held = sum(
            len(taken.content.body) + MESSAGE_BYTES for taken in self._house.node.deliveries()
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


def _stored(queue: LiveQueue) -> int:
    count = len(queue.ready) + len(queue.safe) + len(queue.delays)
    return queue.byte_count + queue.safe.byte_count + count * MESSAGE_BYTES
