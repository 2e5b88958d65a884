"""Run one consumer of a queue after another, and count the messages held by each of them.

If several consumers hold messages, quorum queues of RabbitMQ 3.10 requeue them in the order of the
consumer tags, so tags are ascending. A quorum queue counts a cancelled consumer until all of its
messages are settled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.broker.port import Channel, RawChannel
from hopback.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Delivery


class ConsumerSeries:
    """Consumers of a queue on one channel. Only one of them is active at a time.

    `receive` is called with every delivery. `news` is set when a message was delivered or a
    consumer has ended. If `counts_ended` is True, consumers that have ended are counted while they
    hold messages, as a quorum queue does.
    """

    def __init__(
        self,
        channel: Channel,
        queue: str,
        tag: str,
        receive: Callable[[Delivery], None],
        news: asyncio.Event,
        *,
        counts_ended: bool,
    ) -> None:
        self._channel = channel
        self._raw = channel if isinstance(channel, RawChannel) else None
        """The channel, if it can store messages that are not settled individually with less memory."""
        self._queue = queue
        self._tag = tag
        self._receive = receive
        self._news = news
        self._counts_ended = counts_ended
        self._unsettled: Counter[int] = Counter()
        """The number of unsettled messages by the number of their consumer."""
        self._consumer_of: dict[int, int] = {}
        """The number of the consumer for each message that may be settled."""
        self._active: str | None = None
        self._number = 0
        self._ending: asyncio.Task[None] | None = None
        self._late_acks: list[int] = []
        self._last_delivery = 0
        self.lost: BrokerError | None = None
        """Set if the broker has cancelled a consumer."""

    @property
    def is_active(self) -> bool:
        """Whether the broker can deliver messages."""
        return self._active is not None

    @property
    def has_late_acks(self) -> bool:
        """Whether there are acks to send after the consumer has ended."""
        return bool(self._late_acks)

    @property
    def holders(self) -> int:
        """The number of consumers that the broker counts."""
        active = {self._number} if self.is_active else set[int]()
        return len(self._unsettled.keys() | active)

    async def start(self, prefetch: int) -> None:
        self._number += 1
        await self._channel.qos(prefetch)
        self._active = await self._channel.consume(
            self._queue,
            self._on_delivery,
            on_cancel=self._on_cancel,
            tag=f"{self._tag}{self._number:09d}",
        )

    def ack(self, tag: int) -> None:
        self._channel.ack(tag)
        if consumer := self._consumer_of.pop(tag, 0):
            self._unsettled[consumer] -= 1
            if not self._unsettled[consumer]:
                del self._unsettled[consumer]

    def ack_at_end(self, tag: int) -> None:
        """Ack a message after the consumer has ended, so that the ack does not cause another delivery."""
        self._late_acks.append(tag)
        self.end_soon()

    def keep(self, tag: int) -> None:
        """Leave a message unsettled until the channel is closed."""
        self._consumer_of.pop(tag, None)  # it is never acked, so its consumer is always counted
        if self._raw is not None:
            self._raw.hold(tag)

    def end_soon(self) -> None:
        """Cancel the consumer without waiting for it."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end consumer of {self._queue}")

    async def end(self) -> None:
        """Cancel the consumer, then send the delayed acks."""
        if self.is_active or self._late_acks:
            self.end_soon()
        if self._ending is not None:
            await asyncio.shield(self._ending)
            self._active = None

    async def requeue_all(self) -> None:
        """Requeue all unsettled messages in order with a single nack."""
        await self.end()
        if self._last_delivery:
            self._channel.nack(self._last_delivery, requeue=True, multiple=True)
            await await_settlements(self._channel)

    async def _end(self) -> None:
        with suppress(BrokerError):  # the next delivery or ack raises the error
            if self._active is not None:
                await self._channel.cancel(self._active)
            self._active = None
            for tag in self._late_acks:
                self.ack(tag)
        self._late_acks.clear()
        self._ending = None
        self._news.set()

    def _on_delivery(self, delivery: Delivery) -> None:
        self._last_delivery = delivery.tag
        if self._counts_ended:
            self._consumer_of[delivery.tag] = self._number
            self._unsettled[self._number] += 1
        self._receive(delivery)
        self._news.set()

    def _on_cancel(self, _tag: str) -> None:
        self._active = None
        self.lost = BrokerError(f"the broker ended the consumer of {self._queue!r}")
        self._news.set()


async def await_settlements(channel: Channel) -> None:
    """Wait until the broker has processed all acks and nacks, which it does not confirm.

    The methods of a channel are processed in order, so it is sufficient to wait for the reply to
    another method.
    """
    await channel.qos(1)
