"""Take the messages of a browse session and hold them on a channel."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from hopback.errors import BrokerError
from hopback.ops.brokers.browse_cost import check_delivery_count
from hopback.ops.browse.memory import estimate_memory, measure_memory
from hopback.ops.browse.prefetch import ROOM_BYTES
from hopback.ops.browse.queue_messages import QueueMessages
from hopback.ops.browse.stream_messages import StreamMessages
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.values import Cost, DeadLetter, LookProgress, OnProgress
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.requests import SessionRequest

_SKIPPING_BYTES = 16 * 1024 * 1024
"""Bytes of memory for delivered messages while messages are skipped, because skipped messages are
not kept.
"""
_PREFETCH = 1000
"""The prefetch in messages. It is large enough for the broker to deliver without waiting."""
_REPORT_EVERY = 1000
"""Messages between progress reports, which take some tens of milliseconds."""


class SessionReader:
    """The connection of a session and the messages it holds.

    `count` is how many messages to take, and `ready` is how many there were in the queue. `seen` is
    the number of messages taken, including skipped ones. `deliveries` contains the messages by the
    ids of their dead letters.
    """

    def __init__(
        self,
        connection: Connection,
        channel: Channel,
        source: DeadLetterQueue,
        cost: Cost,
        request: SessionRequest,
        ready: int,
    ) -> None:
        self.connection = connection
        self.channel = channel
        self.source = source
        self.request = request
        self.ready: int = ready
        self.seen: int = 0
        self.dead_letters: list[DeadLetter] = []
        self.deliveries: dict[str, Delivery] = {}
        self.held_bytes: int = 0
        self.order_kept: bool = True
        self._cost = cost
        self._count = request.skip + request.limit
        self._messages: QueueMessages | StreamMessages
        if cost.is_stream:  # the broker's count is outdated, so read until the end
            self._messages = StreamMessages(channel, source.name, self._count)
        else:
            self._count = min(self._count, ready)
            room = min(_SKIPPING_BYTES if request.skip else ROOM_BYTES, request.max_bytes)
            is_quorum = None if source.queue is None else source.queue.type is QueueType.QUORUM
            self._messages = QueueMessages(
                channel, source.name, self._count, _PREFETCH, room_bytes=room, is_quorum=is_quorum
            )

    @classmethod
    async def open(
        cls, connection: Connection, source: DeadLetterQueue, cost: Cost, request: SessionRequest
    ) -> Self:
        """Open a channel. This does not take any messages yet."""
        channel = await connection.open_channel()
        ready = (await channel.declare_queue(Queue(source.name), passive=True)).messages
        return cls(connection, channel, source, cost, request, ready)

    @property
    def taken(self) -> int:
        """The number of messages that others cannot receive, including those held to keep the order."""
        return 0 if self._cost.is_stream else self._messages.taken

    @property
    def consumers(self) -> int:
        """The number of consumers that the broker counts. A quorum queue counts several."""
        return 0 if isinstance(self._messages, StreamMessages) else self._messages.holders

    async def read(self, on_progress: OnProgress | None) -> None:
        """Take messages until a limit is reached or the queue is empty."""
        request, messages, turns = self.request, self._messages, Turns()
        while self.held_bytes < request.max_bytes:
            delivery = await messages.next()
            if delivery is None:
                break
            self.seen += 1
            if self.seen <= request.skip:
                messages.keep(delivery.tag)
            else:
                messages.keep_for_now(delivery.tag)  # a job may settle it
                dead_letter = read_dead_letter(delivery, self.seen, self.source)
                self.dead_letters.append(dead_letter)
                self.deliveries[dead_letter.id] = delivery
                self.held_bytes += measure_memory(delivery)
            if not request.force:
                check_delivery_count(self.source.name, delivery, self._cost)
            if on_progress is not None and self.seen % _REPORT_EVERY == 0:
                on_progress(LookProgress(self.source.name, self.seen, self._count))
            await turns.after(estimate_memory(delivery))
        is_at_end = messages.taken < self._count and self.seen == messages.taken
        await messages.finish()
        self.order_kept = await self._keep_order()
        self.ready = max(0 if self._cost.is_stream and is_at_end else self.ready, self.seen)

    async def _keep_order(self) -> bool:
        """Return whether the order in the queue will be restored, which is always the case for
        classic queues.
        """
        queue = self.source.queue
        if queue is not None and queue.type is QueueType.CLASSIC:
            return True
        return await self._messages.round_out(self.ready)

    async def release(self) -> None:
        """Requeue all messages in order. If the connection was lost, the broker has already done this."""
        with suppress(BrokerError):
            if self._cost.is_by_nack:
                await self._messages.give_back()
            await self.channel.close()
        with suppress(BrokerError):
            await self.connection.close()
