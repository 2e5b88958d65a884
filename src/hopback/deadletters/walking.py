"""Looking through a queue once, keeping nothing: for surveys, exports, plans and counts.

Every message is held on a channel of its own until the end and then given back in order; it costs
what one browse session costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.deadletters.held_size import rough_size
from hopback.deadletters.taking import Head
from hopback.deadletters.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.broker.port import Broker
    from hopback.message import Delivery

__all__ = ["walk"]

_PREFETCH = 1000
_ROOM_BYTES = 16 * 1024 * 1024
"""A queue is read faster than it is understood: no more than this may wait for us."""


async def walk(broker: Broker, queue: str, count: int) -> AsyncGenerator[Delivery, None]:
    """The first `count` messages, in order; close the generator to give them back, in order.

    Of a quorum queue more may be held than are shown, so that the order is kept.
    """
    connection = await broker.connect(f"hopback look {queue}")
    try:
        head = Head(
            await connection.open_channel(), queue, count, _PREFETCH, room_bytes=_ROOM_BYTES
        )
        turns = Turns()
        while (delivery := await head.next()) is not None:
            head.keep(delivery.tag)
            yield delivery
            await turns.after(rough_size(delivery))
        await head.round_out()
    finally:
        await connection.close()
