"""Looking through a queue once, keeping nothing: for surveys, exports, plans and counts.

Every message is held on a channel of its own until the end and then given back in order; it costs
what one browse session costs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.deadletters.taking import Head

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.broker.port import Broker
    from hopback.message import Delivery

__all__ = ["walk"]

_PREFETCH = 1000
_ROOM_BYTES = 16 * 1024 * 1024
"""A queue is read faster than it is understood: no more than this may wait for us."""
_BREATH = 32


async def walk(broker: Broker, queue: str, count: int) -> AsyncGenerator[Delivery, None]:
    """The first `count` messages, in order; close the generator to give them back, in order.

    Of a quorum queue more may be held than are shown, so that the order is kept.
    """
    connection = await broker.connect(f"hopback look {queue}")
    try:
        head = Head(
            await connection.open_channel(), queue, count, _PREFETCH, room_bytes=_ROOM_BYTES
        )
        place = 0
        while (delivery := await head.next()) is not None:
            head.keep(delivery.tag)
            yield delivery
            place += 1
            if place % _BREATH == 0:
                await asyncio.sleep(0)  # others want to run as well
        await head.round_out()
    finally:
        await connection.close()
