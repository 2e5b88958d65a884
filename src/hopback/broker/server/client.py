"""One client: its handshake, its channels, and the rules that keep it from harming others."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hopback.broker.embedded.refusal import Refusal
from hopback.broker.server.channel import ServerChannel, reply_text
from hopback.broker.server.greeting import client_name, server_properties, wire_limits
from hopback.broker.server.line import ServerLine
from hopback.broker.server.outgoing import Envelopes
from hopback.broker.server.users import MECHANISMS
from hopback.errors import ProtocolError
from hopback.wire.connection import WireConnection
from hopback.wire.contents import Published
from hopback.wire.events import MethodReceived
from hopback.wire.handshake import ServerHandshake, Tuning
from hopback.wire.methods import Side
from hopback.wire.properties import decode_properties
from hopback.wire.states import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.broker.embedded.session import Session
    from hopback.broker.server.house import House
    from hopback.errors import BrokerError
    from hopback.message import Properties
    from hopback.wire.events import Event

__all__ = ["Client"]

_log = logging.getLogger("hopback.broker")

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

    def __init__(self, house: House) -> None:
        self.house = house
        self.core = WireConnection(Side.SERVER, wire_limits(house))
        self.line = ServerLine(self.core, self)
        self.envelopes = Envelopes()
        self.peer = ""
        self.doing = 0
        """The method that is being carried out, for the answer to one that fails."""
        self.session: Session | None = None
        """Its connection to the node, from the end of its handshake on."""
        self.peer_port = 0
        self.here = ("", 0)
        """Where it has reached us."""
        self.properties: dict[str, Any] = {}
        """What it says of itself."""
        self.mechanism = ""
        self.heartbeat = 0
        self.connected_at_ms = 0
        self.knows_cancel = False
        self._knows_blocked = False
        self._channels: dict[int, ServerChannel] = {}
        self._handshake: ServerHandshake | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._confirming: list[ServerChannel] = []
        self._last: tuple[bytes, Properties] | None = None
        self._queued = 0
        self.paused = False
        """Whether deliveries wait, because there are enough on the way."""
        self._unread: deque[Event] | None = None
        self._refused = False
        self._later: list[Callable[[], None]] | None = None

    # The line.

    @property
    def name(self) -> str:
        """Where it is and where it has reached us: what RabbitMQ calls a connection."""
        return f"{self.peer}:{self.peer_port} -> {self.here[0]}:{self.here[1]}"

    @property
    def open_channels(self) -> tuple[ServerChannel, ...]:
        """Its channels."""
        return tuple(self._channels.values())

    @property
    def is_blocked(self) -> bool:
        """Whether it waits because it publishes while memory is short."""
        return self._unread is not None

    def on_opened(self, peer: tuple[str, int], here: tuple[str, int]) -> None:
        """Somebody is there, and has some seconds to say who."""
        self.peer, self.peer_port = peer
        self.here = here
        if not self.house.enter(self):
            _log.warning("connection refused: there are %s", self.house.limits.connections)
            self.line.abort()
            return
        limits = self.house.limits
        self._handshake = ServerHandshake(
            self.core,
            lambda mechanism, response: self.house.users.sasl(mechanism, response, self.peer),
            virtual_hosts=lambda name: name in self.house.vhosts,
            admits=lambda user, vhost: self.house.permissions.get(user, vhost) is not None,
            tuning=Tuning(limits.channels, limits.frame_max, limits.heartbeat),
            properties=server_properties(self.house),
            mechanisms=MECHANISMS,
        )
        self._timer = self._loop.call_later(limits.handshake_seconds, self._too_slow)

    def _too_slow(self) -> None:
        _log.warning("connection from %s dropped: no handshake in time", self.peer)
        self.line.abort()

    def on_bytes(self) -> None:
        """The client said something."""
        self.house.stir()

    def on_event(self, event: Event) -> None:
        """Do what the client says, or keep it for later while nobody listens to publishers."""
        if self._unread is not None:
            self._unread.append(event)
        elif self.house.blocked and type(event) is Published:
            self._stop_listening(event)
        elif (channel := self._channels.get(event.channel)) is not None:
            if isinstance(event, MethodReceived) and event.name in _CLOSINGS:
                self._end_channel(channel)
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
            self.connected_at_ms = int(self.house.node.now() * 1000)
            abilities = told.get("capabilities")
            if isinstance(abilities, dict):
                self.knows_cancel = abilities.get("consumer_cancel_notify") is True
                self._knows_blocked = abilities.get("connection.blocked") is True
            self._enter(handshake.virtual_host, handshake.user)
            self.line.start_pulse(handshake.tuning.heartbeat)
        elif self.core.state is ConnectionState.SERVER_CLOSING:
            _log.warning("login from %s refused", self.peer)
            self._await_farewell()
        elif self.core.state is ConnectionState.CLOSED:
            self.line.close()

    def _enter(self, vhost: str, user: str) -> None:
        self.session = self.house.vhosts[vhost].connect(
            client_name(self.properties, self.peer), user, self.house.rights(user, vhost)
        )

    def _on_method(self, event: MethodReceived) -> None:
        match event.name:
            case "channel.open":
                self._open_channel(event.channel)
            case "connection.close":
                self._leave()
                self.line.await_end(_HANG_UP_SECONDS)
            case "connection.close-ok":
                self.line.close()
            case "connection.update-secret":
                self.core.send(0, "connection.update-secret-ok")
            case _:
                pass  # of a channel that is gone

    def _open_channel(self, number: int) -> None:
        if not self.house.may_open_channel():
            refusal = Refusal(506, "RESOURCE_ERROR - too many channels", connection=True)
            self.refuse(refusal)
            return
        if self.session is not None:
            channel = self._channels[number] = ServerChannel(self, self.session, number)
            channel.state.paused = self.paused
            self.core.send(number, "channel.open-ok")

    def _end_channel(self, channel: ServerChannel) -> None:
        del self._channels[channel.number]
        channel.state.close()
        self.house.replies.end(channel)

    def on_writable(self) -> None:
        """The client has read what waited for it."""
        self._resume()

    def on_lost(self, error: BrokerError | None) -> None:
        """The line has ended."""
        self._stop_timer()
        if error is not None and self._handshake is None:
            _log.info("connection from %s lost without a goodbye", self.peer)
        self._leave()
        self.house.leave(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        """What was unsettled goes back."""
        for channel in self._channels.values():
            self.house.replies.end(channel)
        if self.session is not None:
            self.session.close()
        self._channels.clear()

    @property
    def is_open(self) -> bool:
        """Whether the client still listens."""
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
        self.line.wake()

    def _await_farewell(self) -> None:
        """The client reads why and says goodbye, or is left alone."""
        self._stop_timer()
        self._timer = self._loop.call_later(_CLOSE_SECONDS, self.line.abort)

    @contextmanager
    def answer_first(self) -> Iterator[None]:
        """Whoever deletes a queue is answered before its own consumers hear of it, as in RabbitMQ."""
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
        except ProtocolError as error:
            refusal = Refusal(502, f"SYNTAX_ERROR - {error}", connection=True)
            self.refuse(refusal)
            raise refusal from error
        if found.opaque_headers:
            refusal = Refusal(541, "INTERNAL_ERROR", connection=True)
            self.refuse(refusal)
            raise refusal
        self._last = (raw, found)
        return found

    def _stop_listening(self, event: Event) -> None:
        """Memory is short, and this client publishes: it waits, with all that it says."""
        self._unread = deque((event,))
        self.line.pause_reading()
        if self._knows_blocked and self.is_open:
            self.core.send(0, "connection.blocked", reason="low on memory")

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
            self.line.abort()
        if self._unread is None:
            self.line.resume_reading()
        self.line.wake()

    # Writing.

    def confirming(self, channel: ServerChannel) -> None:
        """The channel has confirms that leave with the next write."""
        self._confirming.append(channel)
        self.line.wake()

    def before_write(self) -> None:
        """Gather the confirms."""
        for channel in self._confirming:
            channel.send_confirms()
        self._confirming.clear()

    def queued(self, size: int) -> None:
        """A delivery of this size waits to be written; too much at once, and they stop."""
        self._queued += size
        self.line.wake()
        if self._queued > _TURN_BYTES and not self.paused:
            self._pause(paused=True)
        self.house.spoke()

    def after_write(self) -> None:
        """Go on in a later turn, unless the client does not read."""
        self._queued = 0
        if not self.line.writable:
            self._pause(paused=True)
        elif self.paused:
            self._loop.call_soon(self._resume)

    def _pause(self, *, paused: bool) -> None:
        self.paused = paused
        for channel in self._channels.values():
            channel.state.paused = paused

    def _resume(self) -> None:
        if self.paused and self.line.writable:
            self.paused = False
            for channel in tuple(self._channels.values()):
                channel.state.flow(active=True)

    def shut(self) -> None:
        """The server stops."""
        text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        if self.is_open:
            self.refuse(Refusal(_FORCED, text, connection=True))
            self.line.flush()
        else:
            self.line.abort()


_CLOSINGS = frozenset({"channel.close", "channel.close-ok"})
