"""Taking a known number of messages from the head of a queue, never one more.

Few are fetched one by one, many by a consumer. A consumer never holds more than its prefetch, so it
is ended before it could hand over more than was asked for: acks wait where they would let it go on
beyond the count, and the last messages are fetched. What is never acked (skipped, failed) fills its
prefetch; then another consumer is started beside what is held. Large messages make small prefetches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from hopback.errors import BrokerError
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Channel
    from hopback.message import Delivery

__all__ = ["Head", "Held", "Source"]

_FETCHED_AT_ONCE = 32
_LOOK_AGAIN_S = 0.25
_ROOM_BYTES = 64 * 1024 * 1024
_FEW = 64
"""Below this many a consumer is not worth its round trips."""


class Source(Protocol):
    """Where a job takes its messages from, one after the other."""

    @property
    def taken(self) -> int:
        """How many came from the queue since the job began."""

    @property
    def given(self) -> int:
        """How many were ever in our hands."""

    def at_hand(self) -> Delivery | None:
        """The next message if it is here already; None says nothing about the queue."""

    async def next(self) -> Delivery | None:
        """The next message, or None when there is none left."""

    def more(self, count: int) -> None:
        """So many more are wanted than was said."""

    def ack(self, tag: int) -> None:
        """This message is done with for good."""

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""

    async def finish(self) -> None:
        """Return when the broker has read every ack."""


class Held:
    """Messages that are in our hands already, from a browse session."""

    def __init__(
        self, channel: Channel, queue: str, deliveries: Iterable[Delivery], held: int
    ) -> None:
        self._channel = channel
        self._queue = queue
        self._waiting = deque(deliveries)
        self.given = held
        self.taken = 0

    def at_hand(self) -> Delivery | None:
        """The next message, or None when there is none left."""
        return self._waiting.popleft() if self._waiting else None

    async def next(self) -> Delivery | None:
        """The next message, or None when there is none left."""
        return self.at_hand()

    def more(self, count: int) -> None:
        """There is no more than what is held."""

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        self._channel.ack(tag)

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""

    async def finish(self) -> None:
        """Return when the broker has read every ack."""
        await _round_trip(self._channel, self._queue)


class Head:
    """The first `count` messages of a queue, at most `prefetch` of them, or 64 MiB, at a time."""

    def __init__(self, channel: Channel, queue: str, count: int, prefetch: int) -> None:
        self._channel = channel
        self._queue = queue
        self._count = count
        self._most = prefetch
        self._prefetch = prefetch
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._consumer: str | None = None
        self._before = 0
        self._acked = 0
        self._kept = 0
        self._late_acks: list[int] = []
        self._lost: BrokerError | None = None
        self._bytes = 0
        self.taken = 0

    @property
    def given(self) -> int:
        """How many were ever in our hands."""
        return self.taken

    def more(self, count: int) -> None:
        """So many more are wanted than was said."""
        self._count += count

    def at_hand(self) -> Delivery | None:
        """The next message if it is here already."""
        return self._arrived.popleft() if self._arrived else None

    async def next(self) -> Delivery | None:
        """The next message, or None when the count is reached or the queue has no more."""
        while not self._arrived:
            if self._lost is not None:
                raise self._lost
            if self.taken >= self._count or not await self._more():
                return None
        return self._arrived.popleft()

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        if self._consumer is not None and not self._may_go_on(self._acked + 1):
            self._late_acks.append(tag)
            self._news.set()
            return
        self._channel.ack(tag)
        self._acked += 1

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""
        self._kept += 1

    async def finish(self) -> None:
        """Return when the broker has read every ack."""
        await self._end_consumer()
        await _round_trip(self._channel, self._queue)

    def _may_go_on(self, acked: int) -> bool:
        """Whether the consumer, with so many acks, cannot hand over more than was asked for."""
        return self._before + acked + self._prefetch <= self._count

    async def _more(self) -> bool:
        """Wait for messages; False if the queue has no more."""
        if self._consumer is not None:
            if self._late_acks or self._kept * 2 >= self._prefetch or self._is_too_large():
                await self._end_consumer()
                return True
            return await self._wait()
        fitting = self._fitting()
        if self.taken and fitting > _FEW and self.taken + fitting <= self._count:
            await self._start_consumer(fitting)
            return True
        return await self._fetch(fitting)

    def _average(self) -> int:
        return max(self._bytes // max(self.taken, 1), 1)

    def _fitting(self) -> int:
        """How many messages of this size there is room for."""
        return max(min(self._most, _ROOM_BYTES // self._average()), 1)

    def _is_too_large(self) -> bool:
        """Whether what comes is much larger than what the prefetch was chosen for."""
        return self._fitting() * 2 < self._prefetch

    async def _fetch(self, fitting: int) -> bool:
        """Take some one by one; the very first alone, to see how large they are."""
        most = min(_FETCHED_AT_ONCE, fitting) if self.taken else 1
        count = min(self._count - self.taken, most)
        answers = await asyncio.gather(*(self._channel.get(self._queue) for _ in range(count)))
        for delivery in answers:
            if delivery is not None:
                self._on_delivery(delivery)
        return bool(self._arrived)

    async def _start_consumer(self, prefetch: int) -> None:
        self._before, self._acked, self._kept = self.taken, 0, 0
        self._prefetch = prefetch
        await self._channel.qos(prefetch)
        self._consumer = await self._channel.consume(
            self._queue, self._on_delivery, on_cancel=self._on_cancel
        )

    async def _end_consumer(self) -> None:
        if self._consumer is not None:
            tag, self._consumer = self._consumer, None
            await self._channel.cancel(tag)
        for late in self._late_acks:
            self._channel.ack(late)
        self._late_acks.clear()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.taken += 1
        self._bytes += len(delivery.body)
        self._arrived.append(delivery)
        self._news.set()

    def _on_cancel(self, _tag: str) -> None:
        self._consumer = None
        self._lost = BrokerError(f"the broker ended the consumer of {self._queue!r}")
        self._news.set()

    async def _wait(self) -> bool:
        """Until something arrives; False if the queue has nothing ready and nothing is on its way."""
        self._news.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._news.wait()
        except TimeoutError:
            ready = await _round_trip(self._channel, self._queue)
            if not ready and not self._arrived and not self._late_acks:
                await self._end_consumer()
                # A count may be ahead of a delivery; what a fetch finds is the truth.
                return bool(self._arrived) or await self._fetch(1)
        return True


async def _round_trip(channel: Channel, queue: str) -> int:
    """Ready messages; settlements are answered by nothing, so this also shows that they were read."""
    return (await channel.declare_queue(Queue(queue), passive=True)).messages
