"""Take a certain number of messages from the head of a queue, but no more.

Messages are taken with consumers and not with `basic.get`, because of how quorum queues of RabbitMQ
3.10 requeue them. Messages from consumers are requeued in the order of the consumer tags, but
fetched messages in the order of a hash. The broker never delivers more messages than requested. If
an ack would cause this, it is sent after the consumer has ended.

A quorum queue delivers requeued messages first, in the order in which they were requeued. If only
some of these messages are requeued again, they move behind the others. To keep the order, a reader
has to hold all of them, which `round_out` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from hopback.errors import BrokerError
from hopback.ops.brokers.consumers import LOOK_TAG
from hopback.ops.browse.consumer_series import ConsumerSeries, await_settlements
from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.prefetch import FIRST_PREFETCH, ROOM_BYTES, Prefetch
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hopback.broker.port import Channel
    from hopback.message import Delivery

_LOOK_AGAIN_S = 0.25
"""Seconds without a delivery after which the messages of the queue are counted. A broker is
normally much faster.
"""
_MOST_IDLE = 20
"""Number of consecutive counts, 5 s in total. If the queue has messages but does not deliver them
in this time, `next` raises an error.
"""
_MOST_ROUNDED_OUT = 10_000
"""Messages that are held in addition to the requested ones to keep the order. If there are more,
the order is not kept.
"""
_ROUND_OUT_ROOM = 4
"""Memory for these messages as a multiple of the memory for a consumer. If they need more, the
order is not kept.
"""


class QueueMessages:
    """The first `count` messages of a queue. About `prefetch` of them are held at a time.

    `first` is the prefetch of the first consumer. `is_quorum` is None if the type of the queue is
    unknown. If `keeps_consumer` is True, the last consumer stays active until the channel is
    closed, so that other processes can see that messages are held. This requires that no messages
    are acked.
    """

    def __init__(
        self,
        channel: Channel,
        queue: str,
        count: int,
        prefetch: int,
        *,
        room_bytes: int = ROOM_BYTES,
        tag: str = LOOK_TAG,
        is_quorum: bool | None = None,
        first: int = FIRST_PREFETCH,
        keeps_consumer: bool = False,
    ) -> None:
        self._keeps_consumer = keeps_consumer
        self._channel = channel
        self._queue = queue
        self._count = count
        self.is_quorum = is_quorum
        self._prefetch = Prefetch(prefetch, first, room_bytes)
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._consumers = ConsumerSeries(
            channel, queue, tag, self._receive, self._news, counts_ended=is_quorum is not False
        )
        self._idle = 0
        self._has_new = False
        self._handed = 0
        self.taken: int = 0
        """The number of delivered messages."""
        self.is_empty: bool = False
        """Whether the last call of `next` returned None because there were no ready messages."""

    @classmethod
    def handed_over(
        cls, channel: Channel, queue: str, deliveries: Iterable[Delivery], held: int
    ) -> Self:
        """Use messages chosen in a browse session that holds `held` messages, without taking others."""
        messages = cls(channel, queue, 0, 0, is_quorum=False)
        messages._arrived.extend(deliveries)
        messages._handed = held
        return messages

    @property
    def given(self) -> int:
        """The number of messages this process has held, including those of the session."""
        return self.taken + self._handed

    @property
    def holders(self) -> int:
        """The number of consumers for these messages that the broker counts.

        Only quorum queues count consumers that have ended. If the type of the queue is unknown,
        this is the maximum.
        """
        return self._consumers.holders

    async def count_consumers(self) -> int:
        return (await self._channel.declare_queue(Queue(self._queue), passive=True)).consumers

    def more(self, count: int) -> None:
        """Increase the number of messages to take."""
        self._count += count

    def limit(self, count: int) -> None:
        """Limit the number of messages to take in total. Messages already delivered are not affected."""
        self._count = max(count, self.taken)

    def at_hand(self) -> Delivery | None:
        """Return the next message if it was already delivered. None does not mean that there are no
        more.
        """
        return self._pop() if self._arrived else None

    async def next(self, is_over: Callable[[], bool] | None = None) -> Delivery | None:
        """Return the next message, or None if enough were taken or the queue is empty.

        While it waits, `is_over` is called a few times a second. If it returns True, None is returned.
        """
        self.is_empty = False
        while not self._arrived:
            if self._consumers.lost is not None:
                raise self._consumers.lost
            if self.taken >= self._count or (is_over is not None and is_over()):
                return None
            if not await self._wait():
                self.is_empty = True
                return None
        return self._pop()

    def _pop(self) -> Delivery:
        delivery = self._arrived.popleft()
        self._prefetch.weigh(estimate_memory(delivery))
        return delivery

    def ack(self, tag: int) -> None:
        if self._consumers.is_active and not self._prefetch.allows_ack(self._count):
            self._consumers.ack_at_end(tag)
            return
        self._consumers.ack(tag)
        self._prefetch.acked += 1

    def keep(self, tag: int) -> None:
        """Hold a message until the channel is closed."""
        self._prefetch.kept += 1
        self._consumers.keep(tag)

    def keep_for_now(self, tag: int) -> None:
        """Hold a message that may be settled later."""
        self._prefetch.kept += 1

    async def finish(self) -> None:
        """Stop deliveries and wait until the broker has processed all acks."""
        await self._consumers.end()
        await await_settlements(self._channel)

    async def give_back(self) -> None:
        """Requeue all held messages in order with a single nack.

        This is used for queues where closing the channel would count towards the delivery limit.
        """
        await self._consumers.requeue_all()

    async def check(self) -> None:
        """Raise BrokerError if the broker has requeued held messages because of its timeout.

        In this case, RabbitMQ 4.3 cancels the consumer but does not close the channel.
        """
        await await_settlements(self._channel)
        if self._consumers.lost is not None:
            raise self._consumers.lost
        # The broker does not report this for consumers that were already cancelled.
        if self.is_quorum and await self.count_consumers() < self.holders:
            raise BrokerError(f"the broker has requeued messages of {self._queue!r} that were held")

    async def round_out(self, ready: int | None = None) -> bool:
        """Hold additional messages until one arrives that was never delivered before.

        Returns False if too many messages would be required. `ready` limits the number to the
        messages in the queue, if this is known.
        """
        block = 100
        most = self.taken + _MOST_ROUNDED_OUT
        while self.taken and not self._has_new and self.taken != ready:
            step = min(block, most - self.taken, block if ready is None else ready - self.taken)
            if step <= 0 or self._prefetch.exceeds_room(_ROUND_OUT_ROOM):
                return False
            self._count = self.taken + step
            self._prefetch.want(step)
            block *= 10
            while (delivery := await self.next()) is not None:
                self.keep(delivery.tag)
            if self.taken < self._count:
                return True
        return True

    async def _wait(self) -> bool:
        """Wait for a delivery or replace the consumer. Returns False if there are no more messages."""
        consumers = self._consumers
        if not consumers.is_active:
            await consumers.start(self._prefetch.begin(self.taken, self._count))
            self._end_when_complete()
            return True
        if consumers.has_late_acks or self._prefetch.is_unsuitable(self.taken, self._count):
            await consumers.end()
            return True
        self._news.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._news.wait()
        except TimeoutError:
            is_idle = self._prefetch.has_room(self.taken) and not self._arrived
            if is_idle and not consumers.has_late_acks:
                if not self._keeps_consumer:
                    await consumers.end()
                return bool(self._arrived) or await self._has_ready()
        else:
            self._idle = 0
        return True

    async def _has_ready(self) -> bool:
        """Return whether there are ready messages, which the broker may deliver late.

        Raises BrokerError if they have not been delivered for several seconds.
        """
        state = await self._channel.declare_queue(Queue(self._queue), passive=True)
        self._idle += 1
        if state.messages and self._idle >= _MOST_IDLE:
            raise BrokerError(
                f"{self._queue!r} has {state.messages} ready messages, but has delivered none for"
                f" {_MOST_IDLE * _LOOK_AGAIN_S:g} s: another consumer may be its single active consumer"
            )
        return bool(state.messages)

    def _receive(self, delivery: Delivery) -> None:
        self.taken += 1
        self._has_new = self._has_new or not delivery.redelivered
        self._arrived.append(delivery)
        if self._consumers.is_active:
            self._end_when_complete()

    def _end_when_complete(self) -> None:
        if self.taken >= self._count and not self._keeps_consumer:
            self._consumers.end_soon()
