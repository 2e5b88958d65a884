"""Read the messages of a queue in order and requeue them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.ops.brokers.consumers import look_connection_name
from hopback.ops.browse.cost import check_delivery_count
from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.queue_messages import QueueMessages
from hopback.ops.browse.stream_messages import StreamMessages
from hopback.ops.browse.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.message import Delivery
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.contract.values import Cost

_PREFETCH = 1000
"""Messages in one prefetch: enough that the broker does not wait for acks between two deliveries."""
_ROOM_BYTES = 16 * 1024 * 1024
"""Memory for delivered messages that were not read yet, in bytes. Reading is slower than the broker."""


async def walk(
    broker: ManagedBroker,
    queue: str,
    count: int,
    cost: Cost,
    *,
    offset: int | None = None,
    shares_connection: bool = False,
) -> AsyncGenerator[Delivery, None]:
    """Return the first `count` messages in order. Closing the generator requeues them in order.

    A stream is read from `offset` on. A quorum queue may have to hold more messages than it returns, so
    that the order is kept. `cost` specifies how messages are requeued. Raise UnsafeOperation for a message
    that a lost connection could bring to its delivery limit.

    Reading takes a new connection. A short reading `shares_connection`: it uses the query connection.
    """
    connect = broker.connect if shares_connection else broker.broker.connect
    connection = await connect(look_connection_name(queue))
    reader: QueueMessages | StreamMessages | None = None
    try:
        channel = await connection.open_channel()
        if cost.is_stream:
            reader = StreamMessages(channel, queue, count, offset)
        else:
            reader = QueueMessages(
                channel, queue, count, _PREFETCH, room_bytes=_ROOM_BYTES, keeps_consumer=True
            )
        turns = Turns()
        while (delivery := await reader.next()) is not None:
            reader.keep(delivery.tag)
            if cost.is_by_nack:
                check_delivery_count(queue, delivery, cost)
            yield delivery
            await turns.after(estimate_memory(delivery))
        await reader.round_out()
    finally:
        with suppress(BrokerError):  # the broker has requeued the messages of a lost connection
            if cost.is_by_nack and reader is not None:
                await reader.give_back()
            elif isinstance(reader, StreamMessages):
                await reader.finish()
        await connection.close()
