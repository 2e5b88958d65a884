"""Read the messages of a stream, starting at an offset.

A stream delivers copies to each consumer. It requires a prefetch, and delivers more messages when
some are acked. The end of a stream is not reported, so it is assumed when no message arrives for
some time. A reader that has stopped early can continue at the offset of its last message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hopback.errors import BrokerError

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.message import Delivery

_OFFSET = "x-stream-offset"
_CREDIT = 64
"""The prefetch in messages. It is small enough for messages of 1 MB, and allows a high rate for
messages of 1 kB.
"""
_QUIET_S = 1.0
"""Seconds without a message after which the end is assumed. A broker sends existing messages
immediately.
"""


def offset_of(delivery: Delivery) -> int:
    """Return the offset of a message, or -1 if it is not from a stream."""
    offset = delivery.properties.headers.get(_OFFSET)
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else -1


class StreamMessages:
    """The first `count` messages of a stream, starting at `offset`. None means the beginning.

    A stream keeps its messages in order, so methods that hold or requeue messages do nothing.
    """

    def __init__(self, channel: Channel, queue: str, count: int, offset: int | None = None) -> None:
        self._channel = channel
        self._queue = queue
        self._count = count
        self._offset = offset
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._consumer = ""
        self._lost: BrokerError | None = None
        self.taken: int = 0

    async def next(self) -> Delivery | None:
        """Return the next message, or None at the end of the stream or when enough were read."""
        if self.taken >= self._count:
            return None
        if not self._consumer:
            await self._start_consumer()
        while not self._arrived:
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            try:
                async with asyncio.timeout(_QUIET_S):
                    await self._news.wait()
            except TimeoutError:
                return None
        delivery = self._arrived.popleft()
        self.taken += 1
        if self.taken % (_CREDIT // 2) == 0:
            self._channel.ack(delivery.tag, multiple=True)
        return delivery

    def keep(self, tag: int) -> None:
        pass

    keep_for_now = keep

    async def finish(self) -> None:
        """Cancel the consumer. If only the connection was closed, RabbitMQ 3.10 would always count it."""
        if self._consumer and self._lost is None:
            await self._channel.cancel(self._consumer)

    async def give_back(self) -> None:
        pass

    async def round_out(self, ready: int | None = None) -> bool:
        """Return True, because a stream always keeps the order."""
        return True

    async def _start_consumer(self) -> None:
        await self._channel.qos(_CREDIT)
        start: str | int = "first" if self._offset is None else self._offset
        self._consumer = await self._channel.consume(
            self._queue, self._on_delivery, on_cancel=self._on_cancel, arguments={_OFFSET: start}
        )

    def _on_delivery(self, delivery: Delivery) -> None:
        # The broker sends whole chunks, so the first one may start before the offset.
        if self._offset is None or offset_of(delivery) >= self._offset:
            self._arrived.append(delivery)
            self._news.set()

    def _on_cancel(self, _tag: str) -> None:
        self._lost = BrokerError(f"the broker ended the consumer of {self._queue!r}")
        self._news.set()
