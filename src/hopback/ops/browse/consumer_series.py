"""Run the consumers of a queue one at a time and count the messages that each one holds.

The consumer tags ascend, because a quorum queue of RabbitMQ 3.10 requeues the messages of several
consumers in the order of their tags. A quorum queue counts a cancelled consumer until all its messages
are settled.
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
    """Consumers of a queue on a single channel. At most one consumer is active at a time.

    `receive` gets every delivery. `news` is set when a delivery arrives and when a consumer ends. With
    `counts_ended`, the messages of ended consumers are also counted, as a quorum queue does.
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
        """The channel, if it needs less memory for messages that are never settled one by one."""
        self._queue = queue
        self._tag = tag
        self._receive = receive
        self._news = news
        self._counts_ended = counts_ended
        self._unsettled: Counter[int] = Counter()
        """Number of unsettled messages of each consumer, by the number in its tag."""
        self._consumer_of: dict[int, int] = {}
        """The consumer of each message that may be settled."""
        self._active: str | None = None
        self._number = 0
        self._ending: asyncio.Task[None] | None = None
        self._late_acks: list[int] = []
        self._last_delivery = 0
        self.lost: BrokerError | None = None
        """The error of a consumer that the broker has cancelled."""

    @property
    def is_active(self) -> bool:
        """Whether the broker may deliver messages."""
        return self._active is not None

    @property
    def has_late_acks(self) -> bool:
        """Whether acks wait for the end of the consumer."""
        return bool(self._late_acks)

    @property
    def holders(self) -> int:
        """Number of consumers that the broker counts."""
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
        """End the consumer and ack the message afterwards, so that the ack does not fetch another one."""
        self._late_acks.append(tag)
        self.end_soon()

    def keep(self, tag: int) -> None:
        """Leave a message unsettled until the channel closes."""
        self._consumer_of.pop(tag, None)  # counted permanently, because it is never acked
        if self._raw is not None:
            self._raw.hold(tag)

    def end_soon(self) -> None:
        """Cancel the consumer without waiting for it."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end consumer of {self._queue}")

    async def end(self) -> None:
        """Cancel the consumer and send the acks that wait for its end."""
        if self.is_active or self._late_acks:
            self.end_soon()
        if self._ending is not None:
            await asyncio.shield(self._ending)
            self._active = None

    async def requeue_all(self) -> None:
        """Requeue all unsettled messages in order with one nack."""
        await self.end()
        if self._last_delivery:
            self._channel.nack(self._last_delivery, requeue=True, multiple=True)
            await await_settlements(self._channel)

    async def _end(self) -> None:
        with suppress(BrokerError):  # the next delivery or ack raises it
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
    """Wait until the broker has read all acks and nacks. It does not answer them.

    The broker processes a channel's methods in order, so the answer to a later method shows it.
    """
    await channel.qos(1)
