"""Take a known number of messages from the head of a queue, and no more.

Consumers take them, not `basic.get`: a quorum queue of RabbitMQ 3.10 requeues fetched messages in the
order of a hash, and the messages of consumers in the order of their tags. The broker never delivers more
than the requested count. An ack that would let the consumer exceed it is sent after the consumer has
ended.

A quorum queue delivers requeued messages first, in the order in which they were requeued. Requeueing only
some of the redelivered messages moves them behind the rest. To keep the order, a reader must hold all of
them: `round_out`.
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
    from collections.abc import Iterable

    from hopback.broker.port import Channel
    from hopback.message import Delivery

_LOOK_AGAIN_S = 0.25
"""Seconds without a message after which the queue is asked for its count. A broker delivers far sooner."""
_MOST_IDLE = 20
"""Consecutive counts, 5 s in total, after which `next` raises if the queue delivers none of its messages."""
_MOST_ROUNDED_OUT = 10_000
"""Messages to hold beyond the count to keep the order. With more, the order is given up."""
_ROUND_OUT_ROOM = 4
"""Memory for these messages, as a multiple of a consumer's. With more, the order is given up."""


class QueueMessages:
    """The first `count` messages of a queue, about `prefetch` of them at a time.

    `first` is the prefetch of the first consumer. `is_quorum` is None if the type of the queue is unknown.
    With `keeps_consumer` the last consumer stays active until the channel closes, so that other processes see
    that messages are held. This is for readers that ack no message.
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
        """Number of delivered messages."""
        self.is_empty: bool = False
        """Whether the last `next` returned None because the queue had no ready message."""

    @classmethod
    def handed_over(
        cls, channel: Channel, queue: str, deliveries: Iterable[Delivery], held: int
    ) -> Self:
        """Return chosen messages of a browse session that holds `held` messages. No others are taken."""
        messages = cls(channel, queue, 0, 0, is_quorum=False)
        messages._arrived.extend(deliveries)
        messages._handed = held
        return messages

    @property
    def given(self) -> int:
        """Number of messages that this process has held, including those of the session before."""
        return self.taken + self._handed

    @property
    def holders(self) -> int:
        """Number of consumers of this head that the broker counts.

        Only a quorum queue counts ended consumers. If the type of the queue is unknown, this is the greatest
        possible number.
        """
        return self._consumers.holders

    async def count_consumers(self) -> int:
        return (await self._channel.declare_queue(Queue(self._queue), passive=True)).consumers

    def more(self, count: int) -> None:
        """Take `count` messages in addition to those requested so far."""
        self._count += count

    def limit(self, count: int) -> None:
        """Take no more than `count` messages in total, except those that have already been delivered."""
        self._count = max(count, self.taken)

    def at_hand(self) -> Delivery | None:
        """Return the next message if it has been delivered. After None the queue may still have messages."""
        return self._pop() if self._arrived else None

    async def next(self) -> Delivery | None:
        """Return the next message, or None if the count is reached or the queue has no more."""
        while not self._arrived:
            if self._consumers.lost is not None:
                raise self._consumers.lost
            if self.taken >= self._count:
                return None
            if not await self._wait():
                self.is_empty = True
                return None
        self.is_empty = False
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
        """Hold a message until the channel closes."""
        self._prefetch.kept += 1
        self._consumers.keep(tag)

    def keep_for_now(self, tag: int) -> None:
        """Hold a message that may be settled later."""
        self._prefetch.kept += 1

    async def pause(self) -> None:
        """Stop deliveries until the next call of `next`."""
        await self._consumers.end()

    async def finish(self) -> None:
        """Stop deliveries and wait until the broker has read every ack."""
        await self._consumers.end()
        await await_settlements(self._channel)

    async def give_back(self) -> None:
        """Requeue all held messages in order with one nack.

        This is for queues that would count closing the channel towards the delivery limit.
        """
        await self._consumers.requeue_all()

    async def check(self) -> None:
        """Raise BrokerError if the broker has requeued held messages, as it does after its timeout.

        RabbitMQ 4.3 then cancels the consumer and leaves the channel open.
        """
        await await_settlements(self._channel)
        if self._consumers.lost is not None:
            raise self._consumers.lost
        # The broker does not report this for a consumer that has already been cancelled.
        if self.is_quorum and await self.count_consumers() < self.holders:
            raise BrokerError(f"the broker has requeued messages of {self._queue!r} that were held")

    async def round_out(self, ready: int | None = None) -> bool:
        """Hold messages beyond the count until a never-delivered message arrives.

        Return False if that would take too many. `ready` is the number of messages in the queue, if known. No
        more messages than that are requested.
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
        """Wait for a delivery, or replace the consumer. Return False if the queue has no more messages."""
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
        """Return whether the queue has ready messages: a broker may be slow to deliver them.

        Raise BrokerError if it does not deliver them for several seconds.
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
