"""One client: its socket, its handshake, its channels, and the rules that keep it from harming others."""

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
"""How much may wait for a slow reader before deliveries to it stop."""
_GOODBYE_SECONDS = 3.0
"""How long a client that broke the protocol may take to read why. Hanging up at once would throw away
what it has not read yet."""
_FLOOD = 8 * 1024 * 1024
"""How much may wait in answers alone before we stop reading what it asks."""


class SocketOwner(Owner, Protocol):
    """Who is told what happens on a client's socket."""

    def on_opened(self, peer: tuple[str, int], here: tuple[str, int]) -> None:
        """Somebody is there: where it is, and where it has reached us."""

    def before_write(self) -> None:
        """What is queued will be written now: add what was held back to be gathered."""

    def after_write(self) -> None:
        """What was queued is with the socket."""

    def on_bytes(self) -> None:
        """The client said something."""


class ClientSocket(Wire):
    """A wire that keeps a slow or flooding client from taking memory, or others from their turn."""

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
        """Bytes in; a fault of ours costs this client its connection and nobody else anything."""
        self._told.on_bytes()
        try:
            super().data_received(data)
        except Exception:
            _log.exception("a client's bytes led to an error in the broker")
            self.abort()

    def fail(self, error: BrokerError) -> None:
        """Say why the connection ends, and let the client read it."""
        self._error = self._error or error
        self.await_end(_GOODBYE_SECONDS)

    def resume_writing(self) -> None:
        if self._choked:
            self._choked = False
            self.resume_reading()
        super().resume_writing()

    def flush(self) -> None:
        """Write what is queued now, confirms gathered."""
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
    """Twice the largest body is read, so that RabbitMQ's own words can be said about it."""
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
    """What clients look at: `product` and `version` decide how some of them behave."""
    return {
        "capabilities": _CAPABILITIES,
        "cluster_name": broker.cluster_name,
        "information": "Hopback's embedded broker, for development and tests; not RabbitMQ itself.",
        "platform": f"Hopback {__version__}",
        "product": "RabbitMQ",
        "version": broker.full_version,
    }


def client_name(told: dict[str, Any], peer: str) -> str:
    """What the client calls itself, or else where it is."""
    name = told.get("connection_name")
    return name if isinstance(name, str) else peer


_TURN_BYTES = 256 * 1024
"""How much is handed out to one client before others have their turn."""
_CLOSE_SECONDS = 3.0
"""How long a client that is told why may take to answer `connection.close`; then it is cut off."""
_HANG_UP_SECONDS = 15.0
"""How long a client that has said goodbye may take to hang up. RabbitMQ waits too; clients that write
on many channels at once would otherwise see a broken pipe."""
_FORCED = 320
"""AMQP's CONNECTION_FORCED: the broker stops or an operator asked, so the client did nothing wrong."""


class Client:
    """A connection to the server, from its first byte to its last."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.core: WireConnection = WireConnection(Side.SERVER, wire_limits(broker))
        self.socket: ClientSocket = ClientSocket(self.core, self)
        self.envelopes: Envelopes = Envelopes()
        self.peer: str = ""
        self.doing = 0
        """The method that is being carried out, for the answer to one that fails."""
        self.session: Session | None = None
        """Its connection to the node, from the end of its handshake on."""
        self.peer_port: int = 0
        self.here: tuple[str, int] = ("", 0)
        """Where it has reached us."""
        self.properties: dict[str, Any] = {}
        """What it says of itself."""
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
        """Whether deliveries wait, because there are enough on the way."""
        self._unread: deque[Event] | None = None
        self._refused = False
        self._later: list[Callable[[], None]] | None = None

    # The socket.

    @property
    def name(self) -> str:
        """Where it is and where it has reached us: what RabbitMQ calls a connection."""
        return f"{self.peer}:{self.peer_port} -> {self.here[0]}:{self.here[1]}"

    @property
    def open_channels(self) -> tuple[ServerChannel, ...]:
        return tuple(self._channels.values())

    @property
    def is_blocked(self) -> bool:
        """Whether it waits because it publishes while memory is short."""
        return self._unread is not None

    def on_opened(self, peer: tuple[str, int], here: tuple[str, int]) -> None:
        """Somebody is there, and has some seconds to say who."""
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
        """Do what the client says, or keep it for later while nobody listens to publishers."""
        if self._unread is not None:
            self._unread.append(event)
        elif self.broker.blocked and type(event) is Published:
            # Memory is short, and this client publishes: it waits, with all that it says.
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
                pass  # of a channel that is gone

    def on_writable(self) -> None:
        """The client has read what waited for it."""
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
        """What was unsettled goes back."""
        for channel in self._channels.values():
            self.broker.replies.end(channel)
        if self.session is not None:
            self.session.close()
        self._channels.clear()

    @property
    def is_open(self) -> bool:
        return self.core.state is ConnectionState.OPEN

    def refuse(self, refusal: Refusal) -> None:
        """End the connection because of what the client did."""
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
        """The client reads why and says goodbye, or is left alone."""
        self._stop_timer()
        self._timer = self._loop.call_later(_CLOSE_SECONDS, self.socket.abort)

    @contextmanager
    def answer_first(self) -> Iterator[None]:
        """A client that deletes a queue is answered before its own consumers hear of it, as in RabbitMQ."""
        self._later = []
        try:
            yield
        finally:
            later, self._later = self._later, None
            for say in later:
                say()

    def keep_for_later(self, say: Callable[[], None]) -> bool:
        """Whether it is said after the answer that is being given."""
        if self._later is None:
            return False
        self._later.append(say)
        return True

    # Publishing.

    def read_properties(self, raw: bytes) -> Properties:
        """Decoded; most publishers send the same again and again."""
        if self._last is not None and self._last[0] == raw:
            return self._last[1]
        try:
            found = decode_properties(raw)
        except ProtocolError:
            found = Properties(opaque_headers=raw or b"\0")
        if found.opaque_headers:
            self.doing = 0  # RabbitMQ names no method here
            refusal = Refusal(541, "INTERNAL_ERROR", connection=True)
            self.refuse(refusal)
            raise refusal
        self._last = (raw, found)
        return found

    def listen_again(self) -> None:
        """There is room again: do what the client said meanwhile."""
        if self._unread is None:
            return
        unread, self._unread = self._unread, None
        if self._knows_blocked and self.is_open:
            self.core.send(0, "connection.unblocked")
        try:
            for event in unread:
                self.on_event(event)
        except Exception:  # it is another client, or the clock, that has brought us here
            _log.exception("what a blocked client had said led to an error in the broker")
            self.socket.abort()
        if self._unread is None:
            self.socket.resume_reading()
        self.socket.wake()

    # Writing.

    def confirming(self, channel: ServerChannel) -> None:
        """The channel has confirms that leave with the next write."""
        self._confirming.append(channel)
        self.socket.wake()

    def before_write(self) -> None:
        """Gather the confirms."""
        for channel in self._confirming:
            channel.send_confirms()
        self._confirming.clear()

    def queued(self, size: int) -> None:
        """A delivery of this size waits to be written; too much at once, and they stop."""
        self._queued += size
        self.socket.wake()
        if self._queued > _TURN_BYTES and not self.paused:
            self._pause(paused=True)
        self.broker.spoke()

    def after_write(self) -> None:
        """Go on in a later turn, unless the client does not read."""
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
