"""Read the messages of a queue in order and requeue them."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.ops.brokers.browse_cost import check_delivery_count
from hopback.ops.brokers.consumers import look_connection_name
from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.queue_messages import QueueMessages
from hopback.ops.browse.stream_messages import StreamMessages
from hopback.ops.browse.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from hopback.broker.port import Connection
    from hopback.message import Delivery
    from hopback.ops.contract.values import Cost

_PREFETCH = 1000
"""The prefetch in messages. It is large enough for the broker to deliver without waiting."""
_ROOM_BYTES = 16 * 1024 * 1024
"""Bytes of memory for delivered messages that have not been read yet, because reading is slower
than the broker.
"""


@asynccontextmanager
async def walk(
    connect: Callable[[str], AbstractAsyncContextManager[Connection]],
    queue: str,
    count: int,
    cost: Cost,
    *,
    offset: int | None = None,
) -> AsyncIterator[AsyncIterator[Delivery]]:
    """Read the first `count` messages in order. They are requeued in order when the context exits.

    `connect` is `ManagedBroker.query` for a few messages, and `new_connection` for whole queues. A
    stream is read from `offset`. To keep the order of a quorum queue, more messages may be held
    than are read. `cost` determines how messages are requeued. Raises UnsafeOperation if a message
    could reach its delivery limit because of a lost connection.
    """
    async with (
        connect(look_connection_name(queue)) as connection,
        aclosing(_read(connection, queue, count, cost, offset)) as messages,
    ):
        yield messages


async def _read(
    connection: Connection, queue: str, count: int, cost: Cost, offset: int | None
) -> AsyncGenerator[Delivery, None]:
    channel, turns = await connection.open_channel(), Turns()
    reader: QueueMessages | StreamMessages
    if cost.is_stream:
        reader = StreamMessages(channel, queue, count, offset)
    else:
        reader = QueueMessages(
            channel, queue, count, _PREFETCH, room_bytes=_ROOM_BYTES, keeps_consumer=True
        )
    try:
        while (delivery := await reader.next()) is not None:
            reader.keep(delivery.tag)
            if cost.is_by_nack:
                check_delivery_count(queue, delivery, cost)
            yield delivery
            await turns.after(estimate_memory(delivery))
        await reader.round_out()
    finally:
        # if the connection was lost, the broker has requeued the messages
        with suppress(BrokerError):
            if cost.is_by_nack:
                await reader.give_back()
            elif cost.is_stream:
                await reader.finish()
            await channel.close()
