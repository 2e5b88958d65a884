"""Choose the prefetch of the consumers that take messages from the head of a queue. Pure.

The first consumer takes a few messages to find out how large the messages are. A later consumer takes as many
as fit into its memory limit. A consumer never delivers more than the requested count, although each ack lets
the broker deliver another message. Messages that are never acked (skipped, failed) fill the prefetch. If they
fill half of it, a consumer with a larger prefetch follows.
"""

from __future__ import annotations

FIRST_PREFETCH = 20
"""Prefetch of the first consumer: a few messages, to see how large they are."""
ROOM_BYTES = 64 * 1024 * 1024
"""Memory for a consumer's messages in bytes, based on their estimated sizes. It limits the prefetch."""
LARGEST_PREFETCH = 65_535
"""Largest prefetch count that `basic.qos` can carry."""


class Prefetch:
    """The prefetch of the current consumer and the number of its acked and kept messages.

    `wanted` is the prefetch for messages of ordinary size, `first` that of the first consumer.
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
        """Number of the current consumer's messages that stay unacked."""

    def begin(self, taken: int, count: int) -> int:
        """Return the prefetch of a new consumer that follows `taken` of `count` messages."""
        if self.kept * 2 >= self._size > 0:
            # Few consumers keep the order, so a consumer full of kept messages has a larger successor.
            self._wanted = min(max(self._wanted, 4 * self._size), LARGEST_PREFETCH)
        self._size = self._choose(taken, count)
        self._before, self.acked, self.kept = taken, 0, 0
        return self._size

    def weigh(self, size: int) -> None:
        """Add the memory of one message, in bytes."""
        self._bytes += size

    def want(self, size: int) -> None:
        """Give the next consumer at least this prefetch."""
        self._wanted = max(self._wanted, size)

    def allows_ack(self, count: int) -> bool:
        """Return whether the consumer stays within `count` messages after one more ack."""
        return self._before + self.acked + 1 + self._size <= count

    def has_room(self, taken: int) -> bool:
        """Return whether the broker may deliver another message to the current consumer."""
        return taken - self._before - self.acked < self._size

    def is_unsuitable(self, taken: int, count: int) -> bool:
        """Return whether the current consumer is full of kept messages, too small or too large."""
        return (
            self.kept * 2 >= self._size
            or self._size < self._choose(taken, count) // 2
            or self._size > self._fit(taken) * 2
        )

    def exceeds_room(self, times: int) -> bool:
        """Return whether all messages need more than `times` the memory for a consumer's messages."""
        return self._bytes > times * self._room

    def _choose(self, taken: int, count: int) -> int:
        if not taken:
            return min(self._first, count)
        return min(self._wanted, self._fit(taken), max(count - taken, 1))

    def _fit(self, taken: int) -> int:
        """Return how many messages fit into memory. A job holds one until the next arrives: at least two."""
        average = max(self._bytes // max(taken, 1), 1)
        return max(min(self._room // average, LARGEST_PREFETCH), 2)
