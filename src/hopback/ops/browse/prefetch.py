"""Choose the prefetch of consumers that take messages from the head of a queue.

The size of messages is unknown at first, so the first consumer only takes a few. The next consumers
take as many as fit into the memory limit. The total never exceeds the requested number of messages,
although each ack allows the broker to deliver another one. Messages that are not acked, because
they are skipped or have failed, occupy the prefetch. When they occupy half of it, the next consumer
has a larger prefetch.

This module is pure.
"""

from __future__ import annotations

FIRST_PREFETCH = 20
"""The prefetch of the first consumer. A few messages are enough to estimate their size."""
ROOM_BYTES = 64 * 1024 * 1024
"""Bytes of memory for the messages of a consumer, based on their estimated size. This limits the
prefetch.
"""
LARGEST_PREFETCH = 65_535
"""The maximum prefetch count of `basic.qos`."""


class Prefetch:
    """The prefetch of the current consumer, and how many of its messages were acked or kept.

    `wanted` is the prefetch for messages of a normal size, and `first` is that of the first
    consumer.
    """

    def __init__(self, wanted: int, first: int, room_bytes: int) -> None:
        self._wanted = wanted
        self._first = max(min(first, LARGEST_PREFETCH), 1)
        self._room = room_bytes
        self._bytes = 0
        self._size = 0
        self._before = 0
        self.acked: int = 0
        """Number of acks sent to the current consumer."""
        self.kept: int = 0
        """Number of messages of the current consumer that stay unacked."""

    def begin(self, taken: int, count: int) -> int:
        """Return the prefetch of a new consumer after `taken` of `count` messages were delivered."""
        if self.kept * 2 >= self._size > 0:
            # The order is only kept if there are few consumers, so the next one gets a larger
            # prefetch.
            self._wanted = min(max(self._wanted, 4 * self._size), LARGEST_PREFETCH)
        self._size = self._choose(taken, count)
        self._before, self.acked, self.kept = taken, 0, 0
        return self._size

    def weigh(self, size: int) -> None:
        """Add the memory of a message in bytes."""
        self._bytes += size

    def want(self, size: int) -> None:
        """Set the minimum prefetch of the next consumer."""
        self._wanted = max(self._wanted, size)

    def allows_ack(self, count: int) -> bool:
        """Return whether the total stays within `count` messages after another ack."""
        return self._before + self.acked + 1 + self._size <= count

    def has_room(self, taken: int) -> bool:
        """Return whether the broker can deliver another message to the current consumer."""
        return taken - self._before - self.acked < self._size

    def is_unsuitable(self, taken: int, count: int) -> bool:
        """Return whether the consumer is full of kept messages, or its prefetch is too small or too
        large.
        """
        return (
            self.kept * 2 >= self._size
            or self._size < self._choose(taken, count) // 2
            or self._size > self._fit(taken) * 2
        )

    def exceeds_room(self, times: int) -> bool:
        """Return whether all messages together need more than `times` the memory limit of a consumer."""
        return self._bytes > times * self._room

    def _choose(self, taken: int, count: int) -> int:
        if not taken:
            return min(self._first, count)
        return min(self._wanted, self._fit(taken), max(count - taken, 1))

    def _fit(self, taken: int) -> int:
        """Return how many messages fit into memory. There must be at least two, because a job holds
        one until the next is delivered.
        """
        average = max(self._bytes // max(taken, 1), 1)
        return max(min(self._room // average, LARGEST_PREFETCH), 2)
