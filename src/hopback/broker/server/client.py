"""The connection of a client: socket, handshake, channels, and limits to protect other clients."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hopback import __version__
from hopback.broker.embedded.refusal import Refusal
from hopback.broker.server.channel import ServerChannel, reply_text
from hopback.broker.server.outgoing import Envelopes
from hopback.broker.server.users import MECHANISMS
from hopback.errors import BrokerError, ProtocolError
from hopback.message import Properties
from hopback.wire.connection import WireConnection
from hopback.wire.events import Event, MethodReceived, Published
from hopback.wire.frames import ConnectionState, Limits
from hopback.wire.handshake import ServerHandshake, Tuning
from hopback.wire.methods import Side
from hopback.wire.properties import decode_properties
from hopback.wire.transport import Owner, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.broker.embedded.session import Session
    from hopback.broker.server.served import ServedBroker
    from hopback.fields import Headers


_log = logging.getLogger("hopback.broker")

_HIGH_WATER = 512 * 1024
"""If a client reads too slowly, deliveries are paused when this number of bytes is waiting."""
_GOODBYE_SECONDS = 3.0
"""Seconds to wait so that a client can read the error after a protocol violation. If we closed the
socket right away, unread data would be lost.
"""
_FLOOD = 8 * 1024 * 1024
"""The server stops reading requests while this number of bytes is waiting to be sent."""


class SocketOwner(Owner, Protocol):
    """Called by the socket of a client."""

    def on_opened(self, peer: tuple[str, int], here: tuple[str, int]) -> None:
        """A connection was accepted."""

    def before_write(self) -> None:
        """The output buffer is about to be written. Confirms can be added now."""

    def after_write(self) -> None:
        """The output buffer was written."""

    def on_bytes(self) -> None:
        """The client has sent data."""


class ClientSocket(Wire):
    """A wire that limits the memory and time used by a single client."""

    def __init__(self, connection: WireConnection, owner: SocketOwner) -> None:
        super().__init__(connection, owner)
        self._told = owner
        self._socket: asyncio.Transport | None = None
        self._choked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream has one
        self._socket = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().connection_made(transport)
        peer, here = (
            (str(address[0]), int(address[1])) if address else ("", 0)
            for address in map(transport.get_extra_info, ("peername", "sockname"))
        )
        self._told.on_opened(peer, here)

    def data_received(self, data: bytes) -> None:
        """Process received bytes. If there is a bug in the broker, only this connection is closed."""
        self._told.on_bytes()
        try:
            super().data_received(data)
        except Exception:
            _log.exception("a client's bytes led to an error in the broker")
            self.abort()

    def fail(self, error: BrokerError) -> None:
        """Close the connection with an error, and give the client time to read it."""
        self._error = self._error or error
        self.await_end(_GOODBYE_SECONDS)

    def resume_writing(self) -> None:
        if self._choked:
            self._choked = False
            self.resume_reading()
        super().resume_writing()

    def flush(self) -> None:
        """Write the output buffer, including confirms."""
        self._told.before_write()
        super().flush()
        found = self._socket
        if found is not None and not self._choked and found.get_write_buffer_size() > _FLOOD:
            self._choked = True
            self.pause_reading()
        self._told.after_write()


_CAPABILITIES: Headers = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def wire_limits(broker: ServedBroker) -> Limits:
    """Accept bodies up to twice the maximum, so that larger messages are rejected with RabbitMQ's
    text.
    """
    limits = broker.limits
    largest = limits.message_bytes or broker.node.profile.max_body_bytes
    return Limits(
        frame_max=limits.frame_max,
        receive_max=limits.frame_max,
        channel_max=limits.channels,
        body_max=2 * largest,
        partial_max=4 * largest,
        requests_max=65_536,
    )


def server_properties(broker: ServedBroker) -> Headers:
    """Return the server properties. Some clients check `product` and `version`."""
    return {
        "capabilities": _CAPABILITIES,
        "cluster_name": broker.cluster_name,
        "information": "Hopback's embedded broker for development and tests. This is not RabbitMQ.",
        "platform": f"Hopback {__version__}",
        "product": "RabbitMQ",
        "version": broker.full_version,
    }


def client_name(told: dict[str, Any], peer: str) -> str:
    """Return the connection name set by the client, or its address."""
    name = told.get("connection_name")
    return name if isinstance(name, str) else peer


_TURN_BYTES = 256 * 1024
"""After delivering this number of bytes to a client, other clients have a turn."""
_CLOSE_SECONDS = 3.0
"""Seconds to wait for `connection.close-ok`."""
_HANG_UP_SECONDS = 15.0
"""Seconds to wait for the client to close its socket after `connection.close-ok`. RabbitMQ does
this as well. Clients that write on many channels would otherwise get a broken pipe.
"""
_FORCED = 320
"""AMQP's CONNECTION_FORCED: the broker is stopping, or an operator has closed the connection."""


class Client:
    """A connection of a client to the server."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.core: WireConnection = WireConnection(Side.SERVER, wire_limits(broker))
        self.socket: ClientSocket = ClientSocket(self.core, self)
        self.envelopes: Envelopes = Envelopes()
        self.peer: str = ""
        self.doing: int = 0
        """The id of the current method. An error that closes the connection contains it."""
        self.session: Session | None = None
        """The session on the node, or None before the handshake has completed."""
        self.peer_port: int = 0
        self.here: tuple[str, int] = ("", 0)
        self.properties: dict[str, Any] = {}
        self.mechanism: str = ""
        self.heartbeat: int = 0
        self.connected_at_ms: int = 0
        self.knows_cancel: bool = False
        self._knows_blocked = False
        self._channels: dict[int, ServerChannel] = {}
        self._handshake: ServerHandshake | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._confirming: list[ServerChannel] = []
        self._last: tuple[bytes, Properties] | None = None
        self._queued = 0
        self.paused: bool = False
        """Whether deliveries are paused, because there are enough in transit."""
        self._unread: deque[Event] | None = None
        self._refused = False
        self._later: list[Callable[[], None]] | None = None

    @property
    def name(self) -> str:
        """The name of the connection, as in RabbitMQ. It consists of both addresses."""
        return f"{self.peer}:{self.peer_port} -> {self.here[0]}:{self.here[1]}"

    @property
    def open_channels(self) -> tuple[ServerChannel, ...]:
        return tuple(self._channels.values())

    @property
    def is_blocked(self) -> bool:
        """Whether the client is blocked, because it publishes and memory is low."""
        return self._unread is not None

    def on_opened(self, peer: tuple[str, int], here: tuple[str, int]) -> None:
        """Start the handshake. There is a timeout."""
        self.peer, self.peer_port = peer
        self.here = here
        if not self.broker.enter(self):
            _log.warning("connection refused: there are %s", self.broker.limits.connections)
            self.socket.abort()
            return
        limits = self.broker.limits
        self._handshake = ServerHandshake(
            self.core,
            lambda mechanism, response: self.broker.users.sasl(mechanism, response, self.peer),
            virtual_hosts=lambda name: name in self.broker.vhosts,
            admits=lambda user, vhost: self.broker.permissions.get(user, vhost) is not None,
            tuning=Tuning(limits.channels, limits.frame_max, limits.heartbeat),
            properties=server_properties(self.broker),
            mechanisms=MECHANISMS,
        )
        self._timer = self._loop.call_later(limits.handshake_seconds, self._too_slow)

    def _too_slow(self) -> None:
        _log.warning("connection from %s dropped: no handshake in time", self.peer)
        self.socket.abort()

    def on_bytes(self) -> None:
        self.broker.stir()

    def on_event(self, event: Event) -> None:
        """Handle an event, or store it while the client is blocked."""
        if self._unread is not None:
            self._unread.append(event)
        elif self.broker.blocked and type(event) is Published:
            # Memory is low and the client publishes, so store this event and all later ones.
            self._unread = deque((event,))
            self.socket.pause_reading()
            if self._knows_blocked and self.is_open:
                self.core.send(0, "connection.blocked", reason="low on memory")
        elif (channel := self._channels.get(event.channel)) is not None:
            if isinstance(event, MethodReceived) and event.name in _CLOSINGS:
                del self._channels[channel.number]
                channel.state.close()
                self.broker.replies.end(channel)
            else:
                channel.on_event(event)
        elif self._handshake is not None:
            self._shake_hands(self._handshake, event)
        elif isinstance(event, MethodReceived):
            self._on_method(event)

    def _shake_hands(self, handshake: ServerHandshake, event: Event) -> None:
        handshake.on_event(event)
        if handshake.done:
            self._handshake = None
            self._stop_timer()
            told = self.properties = handshake.client_properties
            self.mechanism, self.heartbeat = handshake.mechanism, handshake.tuning.heartbeat
            self.connected_at_ms = int(self.broker.node.now() * 1000)
            abilities = told.get("capabilities")
            if isinstance(abilities, dict):
                self.knows_cancel = abilities.get("consumer_cancel_notify") is True
                self._knows_blocked = abilities.get("connection.blocked") is True
            self.session = self.broker.vhosts[handshake.virtual_host].connect(
                client_name(self.properties, self.peer),
                handshake.user,
                self.broker.rights(handshake.user, handshake.virtual_host),
            )
            self.socket.start_heartbeat(handshake.tuning.heartbeat)
        elif self.core.state is ConnectionState.SERVER_CLOSING:
            _log.warning("login from %s refused", self.peer)
            self._await_farewell()
        elif self.core.state is ConnectionState.CLOSED:
            self.socket.close()

    def _on_method(self, event: MethodReceived) -> None:
        match event.name:
            case "channel.open":
                if not self.broker.may_open_channel():
                    refusal = Refusal(506, "RESOURCE_ERROR - too many channels", connection=True)
                    self.refuse(refusal)
                    return
                if self.session is not None:
                    channel = self._channels[event.channel] = ServerChannel(
                        self, self.session, event.channel
                    )
                    channel.state.paused = self.paused
                    self.core.send(event.channel, "channel.open-ok")
            case "connection.close":
                self._leave()
                self.socket.await_end(_HANG_UP_SECONDS)
            case "connection.close-ok":
                self.socket.close()
            case "connection.update-secret":
                self.core.send(0, "connection.update-secret-ok")
            case _:
                pass  # the channel is already closed

    def on_writable(self) -> None:
        """Resume deliveries when the client has read its backlog."""
        self._resume()

    def on_lost(self, error: BrokerError | None) -> None:
        self._stop_timer()
        if error is not None and self._handshake is None:
            _log.info("connection from %s lost without a goodbye", self.peer)
        self._leave()
        self.broker.leave(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        """Close all channels and requeue unsettled deliveries."""
        for channel in self._channels.values():
            self.broker.replies.end(channel)
        if self.session is not None:
            self.session.close()
        self._channels.clear()

    @property
    def is_open(self) -> bool:
        return self.core.state is ConnectionState.OPEN

    def refuse(self, refusal: Refusal) -> None:
        """Close the connection with an error."""
        if self._refused:
            return
        self._refused = True
        level = logging.INFO if refusal.code == _FORCED else logging.WARNING
        _log.log(level, "connection from %s closed: %s %r", self.peer, refusal.code, refusal.text)
        if self.is_open:
            self.core.send(
                0,
                "connection.close",
                reply_code=refusal.code,
                reply_text=reply_text(refusal),
                class_id=self.doing >> 16,
                method_id=self.doing & 0xFFFF,
            )
        self._leave()
        self._await_farewell()
        self.socket.wake()

    def _await_farewell(self) -> None:
        """Wait for `connection.close-ok` and close the socket."""
        self._stop_timer()
        self._timer = self._loop.call_later(_CLOSE_SECONDS, self.socket.abort)

    @contextmanager
    def answer_first(self) -> Iterator[None]:
        """Respond like RabbitMQ if a client deletes a queue before cancelling its consumers."""
        self._later = []
        try:
            yield
        finally:
            later, self._later = self._later, None
            for say in later:
                say()

    def keep_for_later(self, say: Callable[[], None]) -> bool:
        """Delay a notification until the current response was sent. Returns True if it was delayed."""
        if self._later is None:
            return False
        self._later.append(say)
        return True

    def read_properties(self, raw: bytes) -> Properties:
        """Decode properties. The last result is cached, because most publishers always use the same
        properties.
        """
        if self._last is not None and self._last[0] == raw:
            return self._last[1]
        try:
            found = decode_properties(raw)
        except ProtocolError:
            found = Properties(opaque_headers=raw or b"\0")
        if found.opaque_headers:
            self.doing = 0  # RabbitMQ does not specify the method in this case
            refusal = Refusal(541, "INTERNAL_ERROR", connection=True)
            self.refuse(refusal)
            raise refusal
        self._last = (raw, found)
        return found

    def listen_again(self) -> None:
        """Unblock the client and handle the stored events."""
        if self._unread is None:
            return
        unread, self._unread = self._unread, None
        if self._knows_blocked and self.is_open:
            self.core.send(0, "connection.unblocked")
        try:
            for event in unread:
                self.on_event(event)
        except Exception:  # the caller may be another client or a timer
            _log.exception("input of a formerly blocked client led to an error in the broker")
            self.socket.abort()
        if self._unread is None:
            self.socket.resume_reading()
        self.socket.wake()

    def mark_confirming(self, channel: ServerChannel) -> None:
        """Remember that a channel has confirms to send with the next write."""
        self._confirming.append(channel)
        self.socket.wake()

    def before_write(self) -> None:
        """Add the confirms of all channels to the output."""
        for channel in self._confirming:
            channel.send_confirms()
        self._confirming.clear()

    def count_queued(self, size: int) -> None:
        """Count a delivery that was queued. Pauses deliveries if there are too many bytes."""
        self._queued += size
        self.socket.wake()
        if self._queued > _TURN_BYTES and not self.paused:
            self._pause(paused=True)
        self.broker.spoke()

    def after_write(self) -> None:
        """Continue in a later iteration, if the client is reading."""
        self._queued = 0
        if not self.socket.writable:
            self._pause(paused=True)
        elif self.paused:
            self._loop.call_soon(self._resume)

    def _pause(self, *, paused: bool) -> None:
        self.paused = paused
        for channel in self._channels.values():
            channel.state.paused = paused

    def _resume(self) -> None:
        if self.paused and self.socket.writable:
            self.paused = False
            for channel in tuple(self._channels.values()):
                channel.state.flow(active=True)

    def shut(self) -> None:
        text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        if self.is_open:
            self.refuse(Refusal(_FORCED, text, connection=True))
            self.socket.flush()
        else:
            self.socket.abort()


_CLOSINGS = frozenset({"channel.close", "channel.close-ok"})
