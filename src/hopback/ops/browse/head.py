"""Taking a known number of messages from the head of a queue, never one more.

Consumers do it, never `basic.get`: a quorum queue of RabbitMQ 3.10 gives back what was fetched in the
order of a hash, and what consumers hold in the order of their tags. So there is one consumer at a time,
each with a greater tag than the one before. None holds more than its prefetch, and no ack is sent that
would let it go on beyond the count: such acks wait until the consumer is ended. What is never acked
(skipped, failed) fills its prefetch; then a larger one follows. Large messages make small prefetches.

A quorum queue hands out first what came back first. Who gives back a few of many that had come back
before puts them behind the others. To keep the order one has to hold all of those: `round_out`.

Limits on what is held would not hold if they counted bodies only: 25,000 headers of a few bytes fit into
one frame and take some megabytes once they are read. Work on one message is bounded by its size, and after
so much of it the others in the process get their turn: health checks, heartbeats, other people's requests.
That is counted in bytes, not in time, so that it is the same on every machine.

A stream is read from an offset on, as often as one likes, and nothing is taken away by it. It gives every
consumer a copy, wants a prefetch, and sends on as acks come in. It tells no end: what was there has been read
when nothing more comes for a while. A reader that stops early begins the next time where it was, by the
offset that each message carries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.ops.brokers.consumers import LOOK_TAG
from hopback.ops.browse.memory import rough_size
from hopback.ops.browse.source import round_trip
from hopback.ops.jobs.quorum_cursor import FIRST
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Channel
    from hopback.message import Delivery


ROOM_BYTES = 64 * 1024 * 1024
"""How much one consumer may hold, by the size of the messages so far."""
_LOOK_AGAIN_S = 0.25
"""After so long without a message the queue is asked whether it has any: a broker answers in far less."""
_MOST_IDLE = 20
"""Number of such questions in a row, 5 s in all. If the queue has messages and delivers none, taking them
fails."""
_LARGEST_PREFETCH = 65_535  # what `basic.qos` can say
_MOST_ROUNDED_OUT = 10_000
"""So many more are held to keep the order; beyond that holding them costs more than the order is worth."""


class Head:
    """The first `count` messages of a queue, about `prefetch` of them at a time."""

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
        first: int = FIRST,
    ) -> None:
        """`first` is the prefetch of the first consumer: by default a few messages, to see how large they
        are."""
        self._tag = tag
        self._channel = channel
        self._queue = queue
        self._count = count
        self._first = max(min(first, _LARGEST_PREFETCH), 1)
        self._wanted = prefetch
        self._room = room_bytes
        self._prefetch = 0
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._consumer: str | None = None
        self._consumers = 0
        self._ending: asyncio.Task[None] | None = None
        self._before = 0
        self._acked = 0
        self._kept = 0
        self._late_acks: list[int] = []
        self._lost: BrokerError | None = None
        self._last_tag = 0
        self._hold: Callable[[int], None] | None = getattr(channel, "hold", None)
        """How the channel is told of what stays, if it remembers that by less."""
        self._bytes = 0
        self._unsettled: dict[int, int] = {}
        """Number of unsettled messages of each consumer, by the number in its tag."""
        self._consumer_of: dict[int, int] = {}
        """The consumer of each message that may still be acked, by delivery tag."""
        self._is_quorum = is_quorum
        self._idle = 0
        self.fresh: bool = False
        self.taken: int = 0
        self.is_empty: bool = False

    @property
    def holders(self) -> int:
        """Number of consumers of this source that the broker counts: active ones, and ended ones with
        messages.

        Only a quorum queue counts the latter. If the type of the queue is unknown, this is the greatest
        possible number.
        """
        is_active = self._consumer is not None
        if self._is_quorum is False:
            return int(is_active)
        return len(self._unsettled.keys() | ({self._consumers} if is_active else set()))

    async def count_consumers(self) -> int:
        """Return the number of consumers of the queue."""
        return (await self._channel.declare_queue(Queue(self._queue), passive=True)).consumers

    def limit(self, count: int) -> None:
        """Take no more than `count` messages in all, besides those that were delivered already."""
        self._count = max(count, self.taken)

    @property
    def given(self) -> int:
        """How many were ever in our hands."""
        return self.taken

    def more(self, count: int) -> None:
        """So many more are wanted than was said."""
        self._count += count

    def at_hand(self) -> Delivery | None:
        """The next message if it is here already."""
        return self._pop() if self._arrived else None

    async def next(self) -> Delivery | None:
        """The next message, or None when the count is reached or the queue has no more."""
        while not self._arrived:
            if self._lost is not None:
                raise self._lost
            if self.taken >= self._count:
                return None
            if not await self._more():
                self.is_empty = True
                return None
        self.is_empty = False
        return self._pop()

    def _pop(self) -> Delivery:
        """The first that arrived; only now is it weighed, one message at a time."""
        delivery = self._arrived.popleft()
        self._bytes += rough_size(delivery)
        return delivery

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        # Whether the consumer, with one ack more, could hand over more than was asked for.
        too_many = self._before + self._acked + 1 + self._prefetch > self._count
        if self._consumer is not None and too_many:
            self._late_acks.append(tag)
            self._end_soon()
            return
        self._channel.ack(tag)
        self._acked += 1
        self._forget(tag)

    def _forget(self, tag: int) -> None:
        consumer = self._consumer_of.pop(tag, 0)
        if consumer:
            self._unsettled[consumer] -= 1
            if not self._unsettled[consumer]:
                del self._unsettled[consumer]

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""
        self._kept += 1
        self._consumer_of.pop(tag, None)
        if self._hold is not None:
            self._hold(tag)

    def keep_for_now(self, tag: int) -> None:
        """This message stays in our hands, and may be settled yet."""
        self._kept += 1

    async def pause(self) -> None:
        """Let nothing more be handed over until the next one is asked for."""
        await self._end_consumer()

    async def finish(self) -> None:
        """Return when the broker has read every ack."""
        await self._end_consumer()
        await round_trip(self._channel)

    async def give_back(self) -> None:
        """Return all that is held, in order, by one nack: where closing the channel would be counted."""
        await self._end_consumer()
        if self._last_tag:
            self._channel.nack(self._last_tag, requeue=True, multiple=True)
            await round_trip(self._channel)

    async def check(self) -> None:
        """Raise if what is in our hands has gone back; a broker ends a channel that holds too long.

        RabbitMQ 4.3 ends only the consumer, and the channel knows nothing of it.
        """
        await round_trip(self._channel)
        if self._lost is not None:
            raise self._lost
        # A consumer that was ended before is not told.
        if self._is_quorum and await self.count_consumers() < self.holders:
            raise BrokerError(f"the broker has requeued messages of {self._queue!r} that were held")

    async def round_out(self, ready: int | None = None) -> bool:
        """Hold on beyond the count until a message comes that never came back before.

        `ready` is how many messages the queue had, if that is known: then nothing is waited for.
        """
        block = 100
        most = self.taken + _MOST_ROUNDED_OUT
        while self.taken and not self.fresh and self.taken != ready:
            step = min(block, most - self.taken, block if ready is None else ready - self.taken)
            if step <= 0 or self._bytes > 4 * self._room:
                return False
            self._count = self.taken + step
            self._wanted = max(self._wanted, step)
            block *= 10
            while (delivery := await self.next()) is not None:
                self.keep(delivery.tag)
            if self.taken < self._count:
                return True
        return True

    async def _more(self) -> bool:
        """Wait for messages; False if the queue has no more."""
        if self._consumer is None:
            await self._start_consumer()
            return True
        # It cannot give what is wanted: it is full of kept ones, or of a wrong size.
        is_full = bool(self._late_acks) or self._kept * 2 >= self._prefetch
        is_small = self._prefetch < self._next_prefetch() // 2
        if is_full or is_small or self._prefetch > self._fitting() * 2:
            await self._end_consumer()
            return True
        self._news.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._news.wait()
        except TimeoutError:
            has_room = self.taken - self._before - self._acked < self._prefetch
            if has_room and not self._arrived and not self._late_acks:
                await self._end_consumer()
                if self._arrived:
                    return True
                return await self._has_ready()
        else:
            self._idle = 0
        return True

    async def _has_ready(self) -> bool:
        """Whether the queue has messages, although it has not delivered one for a while: a broker may be
        slow.

        BrokerError if it never delivers them.
        """
        state = await self._channel.declare_queue(Queue(self._queue), passive=True)
        self._idle += 1
        if state.messages and self._idle >= _MOST_IDLE:
            raise BrokerError(
                f"{self._queue!r} has {state.messages} ready messages, but has delivered none for"
                f" {_MOST_IDLE * _LOOK_AGAIN_S:g} s: another consumer may be its single active consumer"
            )
        return bool(state.messages)

    def _fitting(self) -> int:
        """How many messages of this size there is room for; a job holds one back until the next comes."""
        average = max(self._bytes // max(self.taken, 1), 1)
        return max(min(self._room // average, _LARGEST_PREFETCH), 2)

    def _next_prefetch(self) -> int:
        """More for each consumer that was filled with what stays: few consumers keep the order."""
        if not self.taken:
            return min(self._first, self._count)
        left = max(self._count - self.taken, 1)
        return min(self._wanted, self._fitting(), left)

    async def _start_consumer(self) -> None:
        if self._kept * 2 >= self._prefetch > 0:
            self._wanted = min(max(self._wanted, 4 * self._prefetch), _LARGEST_PREFETCH)
        self._prefetch = self._next_prefetch()
        self._before, self._acked, self._kept = self.taken, 0, 0
        self._consumers += 1
        await self._channel.qos(self._prefetch)
        self._consumer = await self._channel.consume(
            self._queue,
            self._on_delivery,
            on_cancel=self._on_cancel,
            tag=f"{self._tag}{self._consumers:09d}",
        )
        if self.taken >= self._count:
            self._end_soon()

    def _end_soon(self) -> None:
        """End the consumer without waiting for it; the acks that wait follow."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"end consumer of {self._queue}")

    async def _end(self) -> None:
        with suppress(BrokerError):  # the next take or ack raises it
            if self._consumer is not None:
                await self._channel.cancel(self._consumer)
            self._consumer = None
            for late in self._late_acks:
                self._channel.ack(late)
                self._forget(late)
        self._late_acks.clear()
        self._ending = None
        self._news.set()

    async def _end_consumer(self) -> None:
        if self._ending is None and (self._consumer is not None or self._late_acks):
            self._end_soon()
        if self._ending is not None:
            await asyncio.shield(self._ending)
            self._consumer = None

    def _on_delivery(self, delivery: Delivery) -> None:
        self.taken += 1
        self._last_tag = delivery.tag
        if self._is_quorum is not False:
            self._consumer_of[delivery.tag] = self._consumers
            self._unsettled[self._consumers] = self._unsettled.get(self._consumers, 0) + 1
        self.fresh = self.fresh or not delivery.redelivered
        self._arrived.append(delivery)
        self._news.set()
        if self.taken >= self._count and self._consumer is not None:
            self._end_soon()

    def _on_cancel(self, _tag: str) -> None:
        self._consumer = None
        self._lost = BrokerError(f"the broker ended the consumer of {self._queue!r}")
        self._news.set()
