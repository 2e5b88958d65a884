"""Read a stream from an offset, without removing messages."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.ops.browse.source import round_trip

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.message import Delivery


_OFFSET = "x-stream-offset"
_CREDIT = 64
"""Messages on their way to us: of a megabyte each they are no danger, of a kibibyte enough to be fast."""
_QUIET_S = 1.0
"""After so long without a message the end is reached: a broker sends what it has at once."""


def offset_of(delivery: Delivery) -> int:
    """Where in its stream a message stands; -1 for one of another kind of queue."""
    said = delivery.properties.headers.get(_OFFSET)
    return said if isinstance(said, int) and not isinstance(said, bool) else -1


class StreamHead:
    """The first `count` messages of a stream from `offset` on; None is where it begins now."""

    def __init__(self, channel: Channel, queue: str, count: int, offset: int | None = None) -> None:
        self._channel = channel
        self._queue = queue
        self._count = count
        self._offset = offset
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._consumer = ""
        self._lost: BrokerError | None = None
        self.taken: int = 0

    async def next(self) -> Delivery | None:
        """The next message, or None when the count or the end is reached."""
        if self.taken >= self._count:
            return None
        if not self._consumer:
            await self._begin()
        while not self._arrived:
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            try:
                async with asyncio.timeout(_QUIET_S):
                    await self._news.wait()
            except TimeoutError:
                return None
        delivery = self._arrived.popleft()
        self.taken += 1
        if self.taken % (_CREDIT // 2) == 0:  # what was read makes room for as many more
            self._channel.ack(delivery.tag, multiple=True)
        return delivery

    def keep(self, tag: int) -> None:
        """A stream keeps everything by itself."""

    keep_for_now = keep

    async def finish(self) -> None:
        """Let nothing more come."""
        if self._consumer and self._lost is None:
            await self._channel.cancel(self._consumer)

    async def give_back(self) -> None:
        """Nothing was taken."""

    async def check(self) -> None:
        """Raise if what is in our hands has gone back; a broker ends a channel that holds too long."""
        await round_trip(self._channel)

    async def round_out(self, ready: int | None = None) -> bool:
        """A stream has the same order for all of its readers."""
        return True

    async def _begin(self) -> None:
        await self._channel.qos(_CREDIT)
        begins: str | int = "first" if self._offset is None else self._offset
        self._consumer = await self._channel.consume(
            self._queue, self._on_delivery, on_cancel=self._on_cancel, arguments={_OFFSET: begins}
        )

    def _on_delivery(self, delivery: Delivery) -> None:
        # A broker sends whole chunks: what stands before the offset in the first one is not meant.
        if self._offset is None or offset_of(delivery) >= self._offset:
            self._arrived.append(delivery)
            self._news.set()

    def _on_cancel(self, _tag: str) -> None:
        self._lost = BrokerError(f"the broker ended the consumer of {self._queue!r}")
        self._news.set()
