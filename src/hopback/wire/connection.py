"""An AMQP 0-9-1 connection without I/O.

`WireConnection` is used by clients and servers. It checks all input and output against the state
tables. It limits the sizes of frames and messages and the number of pending requests. Replies that
have no alternative, such as close-ok, are sent automatically.

A server must reply to requests in order. `receive` therefore stops before a request that this class
answers, and after a `channel.open`. If `unread` is True, call `receive(b"")` to continue after
handling the events.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from hopback.errors import ProtocolError
from hopback.wire.channel import Assembler, ChannelCore
from hopback.wire.events import (
    Content,
    Delivered,
    Event,
    Got,
    HeaderReceived,
    MethodReceived,
    SettlementReceived,
    Violation,
)
from hopback.wire.frames import (
    BODY,
    CHANNEL,
    CONNECTION,
    END,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    Broken,
    ChannelState,
    ConnectionState,
    Limits,
    ReplyCode,
    as_erlang,
    content_frames,
    frame,
    undecodable,
    unknown_frame,
)
from hopback.wire.methods import (
    BY_ID,
    METHODS,
    MethodSpec,
    Side,
    decode_arguments,
    encode_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_envelope = struct.Struct(">BHI").unpack_from
_method_id = struct.Struct(">I").unpack_from
_settlement = struct.Struct(">QB").unpack_from

_ACK, _NACK, _REJECT = (60 << 16) | 80, (60 << 16) | 120, (60 << 16) | 90
_SETTLEMENTS: Final = {_ACK: "basic.ack", _NACK: "basic.nack", _REJECT: "basic.reject"}
_LARGEST_HEADER: Final = 4 * 1024 * 1024
"""Maximum size of a header frame sent by a server, in bytes. Clients accept more than the
negotiated size.
"""
_RABBITMQ_STATES: Final = {
    ConnectionState.AWAIT_START_OK: "starting",
    ConnectionState.AWAIT_SECURE_OK: "securing",
    ConnectionState.AWAIT_TUNE_OK: "tuning",
    ConnectionState.AWAIT_OPEN: "opening",
    ConnectionState.OPEN: "running",
}
_SHORTEST: Final = {METHOD: 4, HEADER: 12}
"""Minimum payload size in bytes."""
_TEXT_ERRORS: Final = {Side.CLIENT: "surrogateescape", Side.SERVER: "strict"}
_CLOSING: Final = {
    Side.CLIENT: ConnectionState.CLIENT_CLOSING,
    Side.SERVER: ConnectionState.SERVER_CLOSING,
}
_CHANNEL_CLOSING: Final = {
    Side.CLIENT: ChannelState.CLIENT_CLOSING,
    Side.SERVER: ChannelState.SERVER_CLOSING,
}
_ANSWERED_AFTER: Final = {
    Side.CLIENT: frozenset[int](),
    Side.SERVER: frozenset({METHODS["channel.close"].id, METHODS["connection.close"].id}),
}
"""Requests that this class answers. The events before them have to be handled first."""
_SETTLEMENTS_FOR: Final = {
    role: frozenset(known for known in _SETTLEMENTS if role.other in BY_ID[known].senders)
    for role in Side
}
_CONTENTS_FOR: Final = {
    role: frozenset(
        found.id for found in BY_ID.values() if found.content and role.other in found.senders
    )
    for role in Side
}


class WireConnection:
    """One side of a connection.

    Received bytes are passed to `receive`, which returns events. Outgoing commands are queued by
    `send` and `publish`. `take` returns the bytes to write.
    """

    def __init__(self, role: Side, limits: Limits | None = None) -> None:
        self.role = role
        self.limits: Limits = limits or Limits()
        self.state: ConnectionState = ConnectionState.AWAIT_HEADER
        self.channels: dict[int, ChannelCore] = {}
        self.frame_max: int = self.limits.frame_max
        self.channel_max: int = self.limits.channel_max
        self._accept_max = max(self.limits.receive_max, self.frame_max)
        if role is Side.CLIENT:
            self._accept_max -= 8  # RabbitMQ does not count the envelope
        self._header_max = _LARGEST_HEADER if role is Side.SERVER else 0
        self._buffer = bytearray()
        self._needed = 0
        self._held = b""
        self._held_at = 0
        self._held_fault: ProtocolError | None = None
        self.unread: bool = False
        """True if `receive(b"")` will return more events."""
        self._ended_by_peer: set[int] = set()
        """Channels closed by the broker. RabbitMQ may still send deliveries on them until the
        channel is opened again.
        """
        self._assembler = Assembler(self.limits)
        self._out: list[bytes] = []
        self._contents = _CONTENTS_FOR[role]
        self._after = _ANSWERED_AFTER[role]
        if role is Side.CLIENT:
            self._out.append(PROTOCOL_HEADER)
            self.state = ConnectionState.AWAIT_START

    def tune(self, *, frame_max: int, channel_max: int) -> None:
        """Set the negotiated limits."""
        self.frame_max = frame_max
        self.channel_max = channel_max

    def receive(self, data: bytes) -> list[Event]:
        """Process received bytes and return the events. A violation is always the last event."""
        events: list[Event] = []
        position = 0
        if self.unread:
            self.unread = False
            if self._held_fault is not None:
                return [self._violation(self._held_fault)]
            held, position = self._held, self._held_at
            self._held, self._held_at = b"", 0
            if data:
                data, position = held[position:] + data, 0
            else:
                data = held
        if self.state is ConnectionState.CLOSED:
            return events
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return events
            data = bytes(self._buffer)
            self._buffer.clear()
        try:
            position = self._read(data, position, events)
            if self.unread:
                # Don't copy the data, because a client may open and close channels frequently.
                self._held, self._held_at = data, position
            elif position < len(data):
                self._buffer += data[position:]
        except ProtocolError as error:
            self._on_fault(error, events)
        except (IndexError, struct.error):
            self._on_fault(ProtocolError("expected a whole frame, got a short one"), events)
        return events

    def _on_fault(self, error: ProtocolError, events: list[Event]) -> None:
        """Report a protocol error. A server handles earlier requests first."""
        if events and self.role is Side.SERVER:
            self._held_fault = error
            self.unread = True
        else:
            events.append(self._violation(error))

    def _violation(self, error: ProtocolError) -> Violation:
        fault = error if isinstance(error, Broken) else Broken(ReplyCode.SYNTAX_ERROR, str(error))
        code = fault.code
        self._buffer.clear()
        if self.state is ConnectionState.AWAIT_HEADER:
            self._out.append(PROTOCOL_HEADER)
        elif (self.state, self.role, "connection.close") in CONNECTION:
            raw = fault.said.encode("utf-8", "backslashreplace")
            text = raw if len(raw) <= 255 else raw[:252] + b"..."
            class_id, method_id = fault.method_id >> 16, fault.method_id & 0xFFFF
            told = {"reply_code": code, "reply_text": text}
            self.send(0, "connection.close", **told, class_id=class_id, method_id=method_id)
        self.state = ConnectionState.CLOSED
        return Violation(error, code)

    def _read(  # noqa: C901 - the hot path, in one piece
        self, data: bytes, position: int, events: list[Event]
    ) -> int:
        """Read all complete frames and return the start of the next one."""
        end = len(data)
        if self.state is ConnectionState.AWAIT_HEADER:
            position = self._read_protocol_header(data, events)
            if not position:
                return 0
        channels, accept_max, after = self.channels, self._accept_max, self._after
        settlements = _SETTLEMENTS_FOR[self.role]
        self._needed = 0
        while end - position >= 7:
            kind, number, size = _envelope(data, position)
            if size > accept_max or not 1 <= kind <= 8:
                self._check_envelope(data, position, kind, size)
            following = position + 8 + size
            if following > end:
                self._needed = following - position
                break
            if data[following - 1] != END:
                raise Broken(
                    ReplyCode.FRAME_ERROR, f"expected a frame end (0xCE), got {data[following - 1]}"
                )
            if (
                after
                and events
                and kind == METHOD
                and size >= 4
                and _method_id(data, position + 7)[0] in after
            ):
                self.unread = True
                break
            channel = channels.get(number)
            if channel is None or not METHOD <= kind <= BODY:
                self._on_rare(kind, number, data[position + 7 : following - 1], events)
                if after and number in channels:
                    # A channel was opened. The next frames have to wait for the reply.
                    self.unread = following < end
                    return int(following)
            elif kind == METHOD:
                if size < 4:
                    raise unknown_frame(kind, data[position + 7 : following - 1])
                (method_id,) = _method_id(data, position + 7)
                if method_id in self._contents and channel.open:
                    found, following = self._assembler.at_once(
                        channel, method_id, data, position, following
                    )
                    if found is not None:
                        self._emit(channel, found, events)
                elif method_id in settlements and channel.open:
                    events.append(_settlement_at(data, position, method_id, number, size))
                else:
                    self._on_method(channel, method_id, data[position + 7 : following - 1], events)
            else:
                self._on_part(kind, channel, data[position + 7 : following - 1], events)
            position = following
        return position

    def _read_protocol_header(self, data: bytes, events: list[Event]) -> int:
        if not PROTOCOL_HEADER.startswith(data[:8]):
            raise Broken(ReplyCode.FRAME_ERROR, f"expected {PROTOCOL_HEADER!r}, got {data[:8]!r}")
        if len(data) < 8:
            return 0
        self.state = ConnectionState.AWAIT_START
        events.append(HeaderReceived())
        return 8

    def _check_envelope(self, data: bytes, position: int, kind: int, size: int) -> None:
        """Raise an error for an invalid frame.

        A server reads small frames of unknown types completely.
        """
        if data[position : position + 4] == b"AMQP":
            version = ".".join(map(str, data[position + 5 : position + 8]))
            raise Broken(
                ReplyCode.FRAME_ERROR, f"expected AMQP 0.9.1, the peer speaks AMQP {version}"
            )
        if size > self._accept_max and (self.role is Side.SERVER or 1 <= kind <= 8):
            raise Broken(
                ReplyCode.FRAME_ERROR,
                f"expected a frame of at most {self._accept_max} bytes, got one of {size}",
                f"type {kind}, all octets = <<>>: {{frame_too_large,{size},{self.frame_max - 8}}}",
            )
        if self.role is Side.CLIENT:
            start = data[position : position + 8]
            found = "an HTTP answer" if start.startswith(b"HTTP/") else repr(start)
            raise Broken(ReplyCode.FRAME_ERROR, f"expected an AMQP 0-9-1 frame, got {found}")

    def _emit(self, channel: ChannelCore, found: Content, events: list[Event]) -> None:
        """Add a message to the events. A delivery is unsettled from now on."""
        if isinstance(found, Delivered):
            if type(found) is Got:
                self._expect_reply(channel, self.role.other, "basic.get-ok")
            channel.settlements.unsettled[found.tag] = True
        events.append(found)  # type: ignore[arg-type]

    def _on_part(
        self, kind: int, channel: ChannelCore, payload: bytes, events: list[Event]
    ) -> None:
        """Handle a header frame or a body frame."""
        if self._ignores(channel):
            return
        take = self._assembler.header if kind == HEADER else self._assembler.body
        found = take(channel, payload)
        if found is not None:
            self._emit(channel, found, events)

    def _ignores(self, channel: ChannelCore) -> bool:
        """Return True if frames should be ignored because the channel or connection is being
        closed.
        """
        return (
            channel.state is _CHANNEL_CLOSING[self.role]
            or self.state is _CLOSING[self.role]
            or channel.number in self._ended_by_peer
        )

    def _on_rare(self, kind: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Handle heartbeats, methods on channel 0, the first frame of a channel and invalid frames."""
        if kind == HEARTBEAT and not payload and not number:
            return
        if not METHOD <= kind <= BODY and (kind != HEARTBEAT or payload):
            raise unknown_frame(kind, payload)
        if len(payload) < _SHORTEST.get(kind, 0):
            raise unknown_frame(kind, payload)
        if kind == HEARTBEAT or (kind != METHOD and number == 0):
            raise Broken(
                ReplyCode.UNEXPECTED_FRAME,
                f"expected no frame of type {kind} on channel {number}, got one",
                f"type {kind}, all octets = {as_erlang(payload)}",
            )
        if number == 0:
            self._on_connection_method(payload, events)
            return
        if self.state is _CLOSING[self.role] or number in self._ended_by_peer:
            return
        if self.state is not ConnectionState.OPEN:
            raise Broken(
                ReplyCode.CHANNEL_ERROR, f"expected no frame of type {kind} on channel {number} now"
            )
        if kind != METHOD:
            raise ChannelCore(number).out_of_place(f"one of type {kind}")
        if self.role is Side.SERVER and len(self.channels) >= self.channel_max > 0:
            # Like in RabbitMQ, this limits the number of channels and not the channel number.
            raise Broken(
                ReplyCode.NOT_ALLOWED,
                f"NOT_ALLOWED - number of channels opened ({len(self.channels)}) has reached the"
                f" negotiated channel_max ({self.channel_max})",
            )
        if self.role is Side.CLIENT and number > self.channel_max:
            raise Broken(
                ReplyCode.CHANNEL_ERROR,
                f"expected a channel up to {self.channel_max}, got {number}",
            )
        self._on_method(ChannelCore(number), int(_method_id(payload)[0]), payload, events)

    def _method_of(self, method_id: int) -> MethodSpec:
        found = BY_ID.get(method_id)
        if found is None or self.role.other not in found.senders:
            name = found.name if found else f"{method_id >> 16}.{method_id & 0xFFFF}"
            text = f"expected a method of a {self.role.other}, got {name}"
            raise Broken(ReplyCode.COMMAND_INVALID, text, "unimplemented method", method_id)
        return found

    def _on_connection_method(self, payload: bytes, events: list[Event]) -> None:
        found = int(_method_id(payload)[0])
        method = BY_ID.get(found) or self._method_of(found)
        following = CONNECTION.get((self.state, self.role.other, method.name))
        if following is None:
            if self.state is _CLOSING[self.role]:
                return
            state = _RABBITMQ_STATES.get(self.state, self.state)
            raise Broken(
                ReplyCode.CHANNEL_ERROR if self.role is Side.SERVER else ReplyCode.COMMAND_INVALID,
                f"{method.name} is not allowed in state {self.state}",
                f"unexpected method in connection state {state}",
                method.id,
            )
        arguments = self._arguments(method, payload)
        self.state = following
        if method.name == "connection.close":
            self.send(0, "connection.close-ok")
        events.append(MethodReceived(0, method.name, arguments))

    def _on_method(
        self, channel: ChannelCore, method_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if self._ignores(channel) and method_id not in _CLOSE_IDS:
            if method_id != _OPEN_OK or channel.state is not ChannelState.OPENING:
                return
            self._ended_by_peer.discard(channel.number)
        is_opening = channel.state is ChannelState.CLOSED and self.role is Side.SERVER
        method = (BY_ID.get(method_id) if is_opening else None) or self._method_of(method_id)
        arguments = self._arguments(method, payload)
        self._check_place(channel, method, self.role.other)
        self._advance(channel, method, self.role.other, arguments)
        # These requests have only one possible reply.
        if method.name == "channel.close":
            self.send(channel.number, "channel.close-ok")
            if self.role is Side.CLIENT:
                self._ended_by_peer.add(channel.number)
        elif method.name == "channel.flow" and self.role is Side.CLIENT:
            self.send(channel.number, "channel.flow-ok", active=arguments["active"])
        elif method.name == "basic.cancel" and self.role is Side.CLIENT and not arguments["nowait"]:
            self.send(channel.number, "basic.cancel-ok", consumer_tag=arguments["consumer_tag"])
        events.append(MethodReceived(channel.number, method.name, arguments))

    def _arguments(self, method: MethodSpec, payload: bytes) -> dict[str, Any]:
        """Decode the arguments of a method. A server rejects invalid UTF-8, like RabbitMQ does."""
        try:
            return decode_arguments(method, payload, _TEXT_ERRORS[self.role])
        except UnicodeDecodeError:
            raise Broken(
                ReplyCode.FRAME_ERROR,
                f"expected UTF-8 in the short strings of {method.name}, got {payload[4:44]!r}",
                "Malformed UTF-8 in shortstr",
            ) from None
        except ProtocolError:
            raise undecodable(method.id, method.name, payload[4:]) from None

    def _check_place(self, channel: ChannelCore, method: MethodSpec, sender: Side) -> None:
        """Check that `sender` is allowed to send `method` on this channel."""
        is_closed = channel.state is ChannelState.CLOSED
        if method.name.startswith("connection.") and not is_closed:
            text = f"{method.name} belongs on channel 0"
            raise Broken(
                ReplyCode.COMMAND_INVALID, text, "unimplemented method", method_id=method.id
            )
        if channel.content_id and method.name != "channel.close":
            raise channel.out_of_place(method.name)
        moves = (channel.state, sender, method.name) in CHANNEL
        if not moves and (channel.state is not ChannelState.OPEN or method.name in _MOVING):
            where = f"on channel {channel.number} in state {channel.state}"
            said = "expected 'channel.open'" if is_closed else f"second '{method.name}' seen"
            code = ReplyCode.CHANNEL_ERROR
            if method.name == "channel.close-ok" and not is_closed:
                code, said = ReplyCode.COMMAND_INVALID, "unimplemented method"
            raise Broken(code, f"{method.name} is not allowed {where}", said, method.id)

    def _advance(
        self, channel: ChannelCore, method: MethodSpec, sender: Side, arguments: Mapping[str, Any]
    ) -> None:
        """Update the state after a method was sent or received."""
        following = CHANNEL.get((channel.state, sender, method.name))
        if following is not None:
            self._assembler.drop(channel)
            channel.enter(following)
            if channel.state is ChannelState.CLOSED:
                self.channels.pop(channel.number, None)
            else:
                self.channels[channel.number] = channel
        elif method.is_reply:
            self._expect_reply(channel, sender, method.name)
            if method.name == "basic.recover-ok":
                channel.settlements.forget()
        elif method.awaits_reply(arguments):
            owed = channel.owed[sender.other]
            if len(owed) >= self.limits.requests_max:
                raise Broken(
                    ReplyCode.RESOURCE_ERROR, "expected fewer requests at once on one channel"
                )
            owed.append(method.replies)

    def _expect_reply(self, channel: ChannelCore, sender: Side, name: str) -> None:
        owed = channel.owed[sender]
        if not owed or name not in owed[0]:
            expected = " or ".join(owed[0]) if owed else "no reply"
            raise Broken(ReplyCode.COMMAND_INVALID, f"expected {expected}, got {name}")
        owed.popleft()

    def send(self, number: int, name: str, **arguments: Any) -> None:
        """Queue a method. Raises ProtocolError if it is not allowed in the current state."""
        method = METHODS[name]
        if self.role not in method.senders:
            raise ProtocolError(f"a {self.role} does not send {name}")
        payload = encode_arguments(method, arguments)
        if len(payload) > self.frame_max - 8:
            raise ProtocolError(
                f"expected {name} to fit a frame of {self.frame_max} bytes, got {len(payload) + 8}"
            )
        if number == 0:
            following = CONNECTION.get((self.state, self.role, name))
            if following is None:
                raise ProtocolError(f"{name} is not allowed in state {self.state}")
            for each in self.channels.values():
                each.settlements.flush(self._out)
                if name == "connection.close":
                    each.open = False
            self.state = following
        else:
            channel = self.channels.get(number)
            if channel is None:
                channel = ChannelCore(number)
            else:
                channel.settlements.flush(self._out)
            moves = (channel.state, self.role, name) in CHANNEL
            if not moves and (channel.state is not ChannelState.OPEN or name in _MOVING):
                raise ProtocolError(
                    f"{name} is not allowed on channel {number} in state {channel.state}"
                )
            self._advance(channel, method, self.role, arguments)
        self._out.append(frame(METHOD, number, payload))

    def content(self, number: int, method: bytes, properties: bytes, body: bytes) -> None:
        """Queue a message."""
        content_frames(
            self._out, number, method, properties, body, self.frame_max, self._header_max
        )

    def reply_with_content(
        self, number: int, name: str, method: bytes, properties: bytes, body: bytes
    ) -> None:
        """Queue a message that is a reply (`basic.get-ok`)."""
        self._expect_reply(self.channels[number], self.role, name)
        self.content(number, method, properties, body)

    def write(self, frames: bytes) -> None:
        """Queue encoded frames."""
        self._out.append(frames)

    @property
    def unfinished_bytes(self) -> int:
        """The number of bytes of incomplete messages."""
        return self._assembler.partial + len(self._buffer) + len(self._held) - self._held_at

    def heartbeat(self) -> None:
        self._out.append(HEARTBEAT_FRAME)

    def take(self) -> bytes:
        """Return the bytes to write, including pending settlements."""
        out = self._out
        for channel in self.channels.values():
            settlements = channel.settlements
            if settlements.pending:
                settlements.flush(out)
        if not out:
            return b""
        self._out = []
        return b"".join(out)


def _settlement_at(
    data: bytes, position: int, method_id: int, channel: int, size: int
) -> SettlementReceived:
    """Decode the settlement frame at `position`."""
    if size != 13:
        arguments = data[position + 11 : position + 7 + size]
        raise undecodable(method_id, _SETTLEMENTS[method_id], arguments)
    tag, bits = _settlement(data, position + 11)
    multiple = bits & 1 == 1 and method_id != _REJECT
    requeue = bits & (1 if method_id == _REJECT else 2) != 0 and method_id != _ACK
    return SettlementReceived(channel, _SETTLEMENTS[method_id], tag, multiple, requeue)


_CLOSE_IDS: Final = frozenset({METHODS["channel.close"].id, METHODS["channel.close-ok"].id})
_OPEN_OK: Final = METHODS["channel.open-ok"].id
_MOVING: Final = frozenset(name for _, _, name in CHANNEL)
