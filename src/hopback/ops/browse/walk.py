"""Read messages of a queue in order and return them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.ops.browse.cost import check_spent
from hopback.ops.browse.head import Head
from hopback.ops.browse.memory import rough_size
from hopback.ops.browse.stream_head import StreamHead
from hopback.ops.browse.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.broker.port import Broker
    from hopback.message import Delivery
    from hopback.ops.contract.values import Cost


_WALK_PREFETCH = 1000  # enough that the broker never waits for us between two deliveries
_WALK_ROOM_BYTES = 16 * 1024 * 1024
"""A queue is read faster than it is understood: no more than this may wait for us."""


async def walk(
    broker: Broker, queue: str, count: int, cost: Cost, *, offset: int | None = None
) -> AsyncGenerator[Delivery, None]:
    """The first `count` messages, in order; close the generator to give them back, in order.

    A stream is read from `offset` on, and has nothing to be given back.

    Of a quorum queue more may be held than are shown, so that the order is kept. `cost` says how they go
    back; UnsafeOperation for a message that a lost connection could bring to its delivery limit.
    """
    connection = await broker.connect(f"hopback look {queue}")
    head: Head | StreamHead | None = None
    try:
        channel = await connection.open_channel()
        if cost.is_stream:
            head = StreamHead(channel, queue, count, offset)
        else:
            head = Head(channel, queue, count, _WALK_PREFETCH, room_bytes=_WALK_ROOM_BYTES)
        turns = Turns()
        while (delivery := await head.next()) is not None:
            head.keep(delivery.tag)
            if cost.is_by_nack:
                check_spent(queue, delivery, cost)
            yield delivery
            await turns.after(rough_size(delivery))
        await head.round_out()
    finally:
        with suppress(BrokerError):  # a connection that is gone has given everything back
            if cost.is_by_nack and head is not None:
                await head.give_back()
            elif isinstance(
                head, StreamHead
            ):  # RabbitMQ 3.10 counts one that is not cancelled for ever
                await head.finish()
        await connection.close()
