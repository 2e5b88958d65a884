"""A connection to the embedded broker."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hopback.broker.embedded.channel import EmbeddedChannel
from hopback.broker.embedded.line import Line
from hopback.errors import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.broker import EmbeddedBroker
    from hopback.errors import BrokerError
    from hopback.version import BrokerVersion

__all__ = ["EmbeddedConnection"]


class EmbeddedConnection:
    """Fills the port's `Connection`. It never heals itself: when it ends, it has ended."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        loop = asyncio.get_running_loop()
        self.line = Line(loop, broker.faults)
        self.session = broker.node.connect(name, broker.user)
        self._channels: list[EmbeddedChannel] = []
        self.reading = True
        """Whether the broker reads what we send; a publish during an alarm stops that."""
        self._unread: deque[Callable[[], object]] = deque()
        self._closing = False
        self._ended: asyncio.Future[BrokerError | None] = loop.create_future()

    @property
    def version(self) -> BrokerVersion:
        """The broker's version."""
        return self.broker.version

    async def open_channel(self) -> EmbeddedChannel:
        """A new channel in confirm mode."""
        self._check()
        channel = EmbeddedChannel(self)
        self._channels.append(channel)
        await channel.opened()
        return channel

    def _check(self) -> None:
        if self._ended.done():
            error = self._ended.result() or ConnectionLost("connection closed by us")
            raise error.with_traceback(None)
        if self._closing:
            raise ConnectionLost("connection is closing")

    async def close(self) -> None:
        """Close in order; what was unsettled goes back to its queues. Safe to repeat."""
        if not self._closing and not self._ended.done():
            self._closing = True
            self.session.close()
            self.line.put(self._end, None)
        await self.wait_closed()

    async def wait_closed(self) -> BrokerError | None:
        """Return when the connection has ended: the reason, or None if we closed it."""
        return await asyncio.shield(self._ended)

    def cut(self, *, buffered: bool = True) -> None:
        """End it without a word."""
        self.session.close()
        if buffered:
            self.line.flush()
        else:
            self.line.drop()
        self.fail(ConnectionLost("connection lost: a fault was injected"))

    def fail(self, error: BrokerError) -> None:
        """Tell everyone, after what was said before."""
        self.line.put(self._end, error)

    def release(self, channel: EmbeddedChannel) -> None:
        """A channel has ended."""
        if channel in self._channels:
            self._channels.remove(channel)

    def stop_reading(self) -> None:
        """The broker has run out of something, and we have published: it stops listening to us."""
        self.reading = False

    def postpone(self, call: Callable[[], object]) -> None:
        """Sent while nobody reads it."""
        self._unread.append(call)

    def unblocked(self) -> None:
        """The broker reads on."""
        self.reading = True
        while self._unread:
            self._unread.popleft()()
        self.admit()

    def admit(self) -> None:
        """Let publishers look again whether there is room."""
        for channel in self._channels:
            channel.admit()

    def _end(self, error: BrokerError | None) -> None:
        if self._ended.done():
            return
        self._ended.set_result(error)
        self.broker.forget(self)
        for channel in tuple(self._channels):
            channel.end(error)
