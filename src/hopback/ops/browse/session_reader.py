"""Read the messages of a browse session and hold them on a channel."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from hopback.errors import BrokerError
from hopback.ops.browse.cost import check_delivery_count
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
    from hopback.ops.contract.requests import SessionLimits

_SKIPPING_BYTES = 16 * 1024 * 1024
"""Memory for delivered messages in bytes while messages are skipped. Skipped messages are not kept."""
_PREFETCH = 1000
"""Messages in one prefetch: enough that the broker does not wait for acks between two deliveries."""
_REPORT_EVERY = 1000
"""Messages between two progress reports: some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class SessionMessages:
    """The messages of a session. `deliveries` contains them by the ids of their dead letters.

    `ready` is the number of messages in the queue before, `skipped` the number of held messages before the
    first dead letter.
    """

    dead_letters: tuple[DeadLetter, ...]
    deliveries: dict[str, Delivery]
    held_bytes: int
    skipped: int
    ready: int
    order_kept: bool

    @property
    def complete(self) -> bool:
        """Whether the queue had no more ready messages."""
        return self.skipped + len(self.dead_letters) >= self.ready


@dataclass(frozen=True, slots=True)
class SessionReader:
    """The connection of a session and the first `count` messages of its queue, which had `ready` messages."""

    connection: Connection
    channel: Channel
    source: DeadLetterQueue
    cost: Cost
    limits: SessionLimits
    messages: QueueMessages | StreamMessages
    count: int
    ready: int

    @classmethod
    async def open(
        cls, connection: Connection, source: DeadLetterQueue, cost: Cost, limits: SessionLimits
    ) -> Self:
        """Open a channel. No message is taken yet."""
        channel = await connection.open_channel()
        ready = (await channel.declare_queue(Queue(source.name), passive=True)).messages
        count = limits.skip + limits.limit
        messages: QueueMessages | StreamMessages
        if cost.is_stream:  # the broker's count is late, so reading finds the end
            messages = StreamMessages(channel, source.name, count)
        else:
            count = min(count, ready)
            room = min(_SKIPPING_BYTES if limits.skip else ROOM_BYTES, limits.max_bytes)
            messages = QueueMessages(channel, source.name, count, _PREFETCH, room_bytes=room)
        return cls(connection, channel, source, cost, limits, messages, count, ready)

    @property
    def taken(self) -> int:
        """Number of messages that other consumers cannot get, with those held to keep the order."""
        return 0 if self.cost.is_stream else self.messages.taken

    async def read(self, *, forced: bool, on_progress: OnProgress | None) -> SessionMessages:
        """Take messages until a limit is reached or the queue is empty."""
        limits, messages, turns = self.limits, self.messages, Turns()
        dead_letters: list[DeadLetter] = []
        deliveries: dict[str, Delivery] = {}
        held_bytes = seen = 0
        while held_bytes < limits.max_bytes:
            delivery = await messages.next()
            if delivery is None:
                break
            seen += 1
            if seen <= limits.skip:
                messages.keep(delivery.tag)
            else:
                messages.keep_for_now(delivery.tag)  # a job may settle it
                dead_letter = read_dead_letter(delivery, seen, self.source)
                dead_letters.append(dead_letter)
                deliveries[dead_letter.id] = delivery
                held_bytes += measure_memory(delivery)
            if not forced:
                check_delivery_count(self.source.name, delivery, self.cost)
            if on_progress is not None and seen % _REPORT_EVERY == 0:
                on_progress(LookProgress(self.source.name, seen, self.count))
            await turns.after(estimate_memory(delivery))
        is_at_end = self.cost.is_stream and messages.taken < self.count and seen == messages.taken
        await messages.finish()
        return SessionMessages(
            tuple(dead_letters),
            deliveries,
            held_bytes,
            skipped=seen - len(dead_letters),
            ready=seen if is_at_end else max(self.ready, seen),
            order_kept=await self._keep_order(),
        )

    async def _keep_order(self) -> bool:
        """Return whether the queue will have its order again. A classic queue always has."""
        queue = self.source.queue
        if queue is not None and queue.type is QueueType.CLASSIC:
            return True
        return await self.messages.round_out(self.ready)

    async def release(self) -> None:
        """Requeue all messages in order. The broker has requeued those of a lost connection."""
        with suppress(BrokerError):
            if self.cost.is_by_nack:
                await self.messages.give_back()
            await self.channel.close()
        with suppress(BrokerError):
            await self.connection.close()
