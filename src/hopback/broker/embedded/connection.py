"""Connections to the embedded broker, and the order of their notifications."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from hopback.broker.embedded.channel import EmbeddedChannel
from hopback.errors import BrokerError, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.broker import EmbeddedBroker
    from hopback.broker.embedded.faults import Faults
    from hopback.broker.embedded.session import Session
    from hopback.version import BrokerVersion


class OrderedCalls:
    """Runs callbacks in order, but never from within `put`.

    Each iteration of the event loop runs the callbacks that were already waiting. Callbacks added
    in the meantime run in a later iteration, similar to messages on a network.
    """

    __slots__ = ("_faults", "_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: Faults) -> None:
        self._loop = loop
        self._faults = faults
        self._waiting: deque[tuple[float, Callable[[Any], object], Any]] = deque()
        self._scheduled = False

    def put(self, call: Callable[[Any], object], argument: Any) -> None:
        latency = self._faults.latency
        due = self._loop.time() + latency if latency else 0.0
        self._waiting.append((due, call, argument))
        if not self._scheduled:
            self._schedule()

    def flush(self) -> None:
        while self._waiting:
            self._call()

    def drop(self) -> None:
        self._waiting.clear()

    def _schedule(self) -> None:
        self._scheduled = True
        due = self._waiting[0][0]
        if due:
            self._loop.call_at(due, self._turn)
        else:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = self._loop.time()
        for _ in range(len(self._waiting)):
            if not self._waiting or self._waiting[0][0] > now:
                break
            self._call()
        if self._waiting and not self._scheduled:
            self._schedule()

    def _call(self) -> None:
        _, call, argument = self._waiting.popleft()
        try:
            call(argument)
        except Exception as error:  # errors in a client's callback are reported by asyncio
            context = {"message": f"{call!r} raised", "exception": error}
            self._loop.call_exception_handler(context)


class EmbeddedConnection:
    """A connection to the node. It does not reconnect."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        loop = asyncio.get_running_loop()
        self.replies: OrderedCalls = OrderedCalls(loop, broker.faults)
        self.session: Session = broker.node.connect(name, broker.user)
        self._channels: list[EmbeddedChannel] = []
        self.reading: bool = True
        """Whether the broker is reading. It stops when the client publishes during an alarm."""
        self._unread: deque[Callable[[], object]] = deque()
        self._closing = False
        self._ended: asyncio.Future[BrokerError | None] = loop.create_future()

    @property
    def version(self) -> BrokerVersion:
        return self.broker.version

    async def open_channel(self) -> EmbeddedChannel:
        """Open a channel with confirms enabled."""
        if self._ended.done():
            error = self._ended.result() or ConnectionLost("connection closed by us")
            raise error.with_traceback(None)
        if self._closing:
            raise ConnectionLost("connection is closing")
        channel = EmbeddedChannel(self)
        self._channels.append(channel)
        await channel.wait_open()
        return channel

    async def close(self) -> None:
        """Close the connection and requeue unsettled deliveries. Can be called more than once."""
        if not self._closing and not self._ended.done():
            self._closing = True
            self.session.close()
            self.replies.put(self._end, None)
        await self.wait_closed()

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the connection is closed. Returns the error, or None after `close`."""
        return await asyncio.shield(self._ended)

    def cut(self, *, buffered: bool = True) -> None:
        self.session.close()
        if buffered:
            self.replies.flush()
        else:
            self.replies.drop()
        self.fail(ConnectionLost("connection lost: a fault was injected"))

    def fail(self, error: BrokerError) -> None:
        """End the connection once all earlier notifications were delivered."""
        self.replies.put(self._end, error)

    def release(self, channel: EmbeddedChannel) -> None:
        if channel in self._channels:
            self._channels.remove(channel)

    def stop_reading(self) -> None:
        """Stop reading, because the client has published during an alarm."""
        self.reading = False

    def postpone(self, call: Callable[[], object]) -> None:
        """Store a call until the broker reads again."""
        self._unread.append(call)

    def wait_unblocked(self) -> None:
        self.reading = True
        while self._unread:
            self._unread.popleft()()
        self.admit()

    def admit(self) -> None:
        """Wake up publishers that are waiting, if there is room."""
        for channel in self._channels:
            channel.admit()

    def _end(self, error: BrokerError | None) -> None:
        if self._ended.done():
            return
        self._ended.set_result(error)
        self.broker.forget(self)
        for channel in tuple(self._channels):
            channel.end(error)
