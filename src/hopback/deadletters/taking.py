"""Taking a known number of messages from the head of a queue, never one more.

Few are fetched one by one, many by a consumer. A consumer is ended before it could hand over more
than was asked for: it never holds back more than its prefetch, so acks wait where they would let it
go on beyond the count, and the last messages are fetched. What is never acked (skipped, failed) fills
its prefetch; then another consumer is started beside what is held.
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


class Source(Protocol):
    """Where a job takes its messages from, one after the other."""

    @property
    def taken(self) -> int:
        """How many came from the queue since the job began."""

    async def next(self) -> Delivery | None:
        """The next message, or None when there is none left."""

    def ack(self, tag: int) -> None:
        """This message is done with for good."""

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""

    async def finish(self) -> None:
        """Return when the broker has read every ack."""


class Held:
    """Messages that are in our hands already, from a browse session."""

    def __init__(self, channel: Channel, queue: str, deliveries: Iterable[Delivery]) -> None:
        self._channel = channel
        self._queue = queue
        self._waiting = deque(deliveries)
        self.taken = 0

    async def next(self) -> Delivery | None:
        """The next message, or None when there is none left."""
        return self._waiting.popleft() if self._waiting else None

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        self._channel.ack(tag)

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""

    async def finish(self) -> None:
        """Return when the broker has read every ack."""
        await _round_trip(self._channel, self._queue)


class Head:
    """The first `count` messages of a queue."""

    def __init__(self, channel: Channel, queue: str, count: int, prefetch: int) -> None:
        self._channel = channel
        self._queue = queue
        self._count = count
        self._prefetch = prefetch
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._consumer: str | None = None
        self._before = 0
        self._acked = 0
        self._kept = 0
        self._late_acks: list[int] = []
        self._lost: BrokerError | None = None
        self.taken = 0

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
            if self._late_acks or self._kept * 2 >= self._prefetch:
                await self._end_consumer()
                return True
            return await self._wait()
        if self.taken + self._prefetch <= self._count:
            await self._start_consumer()
            return True
        return await self._fetch()

    async def _fetch(self) -> bool:
        count = min(self._count - self.taken, _FETCHED_AT_ONCE)
        answers = await asyncio.gather(*(self._channel.get(self._queue) for _ in range(count)))
        found = [delivery for delivery in answers if delivery is not None]
        self.taken += len(found)
        self._arrived.extend(found)
        return bool(found)

    async def _start_consumer(self) -> None:
        self._before, self._acked, self._kept = self.taken, 0, 0
        await self._channel.qos(self._prefetch)
        self._consumer = await self._channel.consume(
            self._queue, self._on_delivery, on_cancel=self._on_cancel
        )

    async def _end_consumer(self) -> None:
        if self._consumer is not None:
            await self._channel.cancel(self._consumer)
            self._consumer = None
        for tag in self._late_acks:
            self._channel.ack(tag)
        self._late_acks.clear()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.taken += 1
        self._arrived.append(delivery)
        self._news.set()

    def _on_cancel(self, _tag: str) -> None:
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
                return bool(self._arrived)
        return True


async def _round_trip(channel: Channel, queue: str) -> int:
    """Ready messages; settlements are answered by nothing, so this also shows that they were read."""
    return (await channel.declare_queue(Queue(queue), passive=True)).messages
