"""Connections to RabbitMQ."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from hopback.broker.rabbitmq.channel import RabbitChannel, connection_fault
from hopback.errors import (
    BrokerError,
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
)
from hopback.version import BrokerVersion
from hopback.wire.connection import WireConnection as Core
from hopback.wire.events import Event, MethodReceived
from hopback.wire.frames import ConnectionState
from hopback.wire.handshake import ClientHandshake, Tuning
from hopback.wire.methods import Side
from hopback.wire.transport import Wire

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from hopback.wire.url import Address

ANSWER_TIMEOUT_S = 30.0
"""Timeout for responses in seconds. On a busy cluster, declaring a quorum queue can take several
seconds. If there is no response, AnswerTimeout is raised and the channel is closed.
"""
_CLOSE_TIMEOUT = 5.0  # seconds to wait for the broker to confirm the close


class RabbitConnection:
    """A connection and its channels. It does not reconnect."""

    def __init__(
        self,
        address: Address,
        name: str,
        *,
        window: int,
        confirm_timeout: float,
        answer_timeout: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.blocked: bool = False
        """Whether the broker has blocked publishing on this connection."""
        self._window = window
        self._confirm_timeout = confirm_timeout
        self._answer_timeout = answer_timeout
        self._watchers: list[Callable[[bool, str], object]] = []
        self._loop = asyncio.get_running_loop()
        self._core = Core(Side.CLIENT)
        self.wire: Wire = Wire(self._core, self)
        self._handshake: ClientHandshake | None = ClientHandshake(
            self._core,
            address.credentials,
            virtual_host=address.virtual_host,
            tuning=Tuning(address.channel_max, address.frame_max, address.heartbeat),
            name=name,
        )
        self.server_properties: dict[str, Any] = {}
        self._channels: dict[int, RabbitChannel] = {}
        self._free: deque[int] = deque()
        self._next = 1
        self._channel_max = 0
        self.opened: Future[None] = self._loop.create_future()
        self._ended: Future[BrokerError | None] = self._loop.create_future()

    @property
    def version(self) -> BrokerVersion:
        """The version reported by the broker."""
        return BrokerVersion.parse(str(self.server_properties.get("version", "0")))

    @property
    def has_broker(self) -> bool:
        """Whether the peer has responded with valid AMQP."""
        return self._handshake is None or bool(self._handshake.server_properties)

    async def open_channel(self) -> RabbitChannel:
        """Open a channel with confirms enabled."""
        self._check()
        # Reuse the numbers of closed channels as late as possible.
        if self._next <= self._channel_max:
            number = self._next
            self._next += 1
        elif self._free:
            number = self._free.popleft()
        else:
            raise ConnectionFailed(
                f"expected at most {self._channel_max} channels at once (channel_max), got one more"
            )
        channel = RabbitChannel(
            number,
            self.wire,
            self._release,
            window=self._window,
            confirm_timeout=self._confirm_timeout,
            answer_timeout=self._answer_timeout,
        )
        channel.publishing.blocked = self.blocked
        self._channels[channel.number] = channel
        await channel.open()
        return channel

    async def close(self) -> None:
        """Close the connection and requeue unsettled deliveries. Can be called more than once."""
        if self._ended.done():
            return
        if self._core.state is ConnectionState.OPEN:
            self._core.send(0, "connection.close", reply_code=200, reply_text="closed by client")
            self.wire.flush()
            for channel in self._channels.values():
                channel.leave()
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), _CLOSE_TIMEOUT)
        except TimeoutError:
            self.wire.abort()
            await asyncio.shield(self._ended)

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the connection is closed. Returns the error, or None after `close`."""
        return await asyncio.shield(self._ended)

    def watch_blocking(self, watcher: Callable[[bool, str], object]) -> None:
        """Register a function that is called when the broker blocks or unblocks this connection."""
        self._watchers.append(watcher)

    def _check(self) -> None:
        if self._ended.done():
            error = self._ended.result() or ConnectionLost("connection closed by us")
            raise error.with_traceback(None)
        if self._core.state is not ConnectionState.OPEN:
            raise ConnectionLost("connection is closing")

    def _release(self, channel: RabbitChannel) -> None:
        if self._channels.pop(channel.number, None) is not None:
            self._free.append(channel.number)

    def on_event(self, event: Event) -> None:
        """Pass an event to its channel."""
        channel = self._channels.get(event.channel)
        if channel is not None:
            channel.on_event(event)
        elif self._handshake is not None:
            self._shake_hands(self._handshake, event)
        elif isinstance(event, MethodReceived):
            self._on_method(event)

    def _shake_hands(self, handshake: ClientHandshake, event: Event) -> None:
        try:
            handshake.on_event(event)
        except (ConnectionFailed, ProtocolError) as error:
            self.wire.fail(error)
            return
        if handshake.done:
            self._handshake = None
            self.server_properties = handshake.server_properties
            self._channel_max = handshake.tuning.channel_max
            self.wire.start_heartbeat(handshake.tuning.heartbeat)
            self.opened.set_result(None)

    def _on_method(self, event: MethodReceived) -> None:
        match event.name:
            case "connection.close":
                self.wire.fail(connection_fault(event.arguments))
            case "connection.close-ok":
                self.wire.close()
            case "connection.blocked":
                self._block(True, event.arguments["reason"])
            case "connection.unblocked":
                self._block(False, "")
            case _:
                raise ProtocolError(f"expected no {event.name} now")

    def _block(self, blocked: bool, reason: str) -> None:
        self.blocked = blocked
        for watcher in self._watchers:
            watcher(blocked, reason)
        for channel in self._channels.values():
            channel.publishing.block(blocked)
            channel.postpone_answers()

    def on_writable(self) -> None:
        for channel in self._channels.values():
            channel.publishing.admit()

    def on_lost(self, error: BrokerError | None) -> None:
        if self._ended.done():
            return
        self._ended.set_result(error)
        for channel in list(self._channels.values()):
            channel.end(error)
        if not self.opened.done():
            failed = error
            if not isinstance(failed, ConnectionFailed):
                # For some errors during the handshake, RabbitMQ closes the socket and does not give
                # a reason. Show how far we got.
                failed = ConnectionFailed(f"during the handshake: {error or 'closed by us'}")
                failed.__cause__ = error
            self.opened.set_exception(failed)
            self.opened.exception()  # mark as retrieved, since there may be no caller
