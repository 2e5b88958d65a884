"""Frames, limits, connection states and protocol errors."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from hopback.errors import ProtocolError
from hopback.wire.methods import Side


class ConnectionState(StrEnum):
    AWAIT_HEADER = "await-header"
    AWAIT_START = "await-start"
    AWAIT_START_OK = "await-start-ok"
    AWAIT_TUNE = "await-tune"
    AWAIT_SECURE_OK = "await-secure-ok"
    AWAIT_TUNE_OK = "await-tune-ok"
    AWAIT_OPEN = "await-open"
    AWAIT_OPEN_OK = "await-open-ok"
    OPEN = "open"
    CLIENT_CLOSING = "client-closing"
    SERVER_CLOSING = "server-closing"
    CLOSED = "closed"


class ChannelState(StrEnum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    CLIENT_CLOSING = "client-closing"
    SERVER_CLOSING = "server-closing"


_C, _S = Side.CLIENT, Side.SERVER
_L = ConnectionState
_H = ChannelState

CONNECTION: dict[tuple[ConnectionState, Side, str], ConnectionState] = {
    (_L.AWAIT_START, _S, "connection.start"): _L.AWAIT_START_OK,
    (_L.AWAIT_START_OK, _C, "connection.start-ok"): _L.AWAIT_TUNE,
    (_L.AWAIT_TUNE, _S, "connection.secure"): _L.AWAIT_SECURE_OK,
    (_L.AWAIT_SECURE_OK, _C, "connection.secure-ok"): _L.AWAIT_TUNE,
    (_L.AWAIT_TUNE, _S, "connection.tune"): _L.AWAIT_TUNE_OK,
    (_L.AWAIT_TUNE_OK, _C, "connection.tune-ok"): _L.AWAIT_OPEN,
    (_L.AWAIT_OPEN, _C, "connection.open"): _L.AWAIT_OPEN_OK,
    (_L.AWAIT_OPEN_OK, _S, "connection.open-ok"): _L.OPEN,
    (_L.OPEN, _S, "connection.blocked"): _L.OPEN,
    (_L.OPEN, _S, "connection.unblocked"): _L.OPEN,
    (_L.OPEN, _C, "connection.update-secret"): _L.OPEN,
    (_L.OPEN, _S, "connection.update-secret-ok"): _L.OPEN,
    # If both sides close at the same time, each replies to the other and waits for its reply.
    (_L.CLIENT_CLOSING, _S, "connection.close-ok"): _L.CLOSED,
    (_L.CLIENT_CLOSING, _S, "connection.close"): _L.CLIENT_CLOSING,
    (_L.CLIENT_CLOSING, _C, "connection.close-ok"): _L.CLIENT_CLOSING,
    (_L.SERVER_CLOSING, _C, "connection.close-ok"): _L.CLOSED,
    (_L.SERVER_CLOSING, _C, "connection.close"): _L.SERVER_CLOSING,
    (_L.SERVER_CLOSING, _S, "connection.close-ok"): _L.SERVER_CLOSING,
}
for _state in (
    _L.AWAIT_START_OK,
    _L.AWAIT_TUNE,
    _L.AWAIT_SECURE_OK,
    _L.AWAIT_TUNE_OK,
    _L.AWAIT_OPEN,
    _L.AWAIT_OPEN_OK,
    _L.OPEN,
):
    CONNECTION[_state, _C, "connection.close"] = _L.CLIENT_CLOSING
    CONNECTION[_state, _S, "connection.close"] = _L.SERVER_CLOSING

CHANNEL: dict[tuple[ChannelState, Side, str], ChannelState] = {
    (_H.CLOSED, _C, "channel.open"): _H.OPENING,
    (_H.OPENING, _S, "channel.open-ok"): _H.OPEN,
    (_H.OPENING, _S, "channel.close"): _H.SERVER_CLOSING,
    (_H.OPEN, _C, "channel.close"): _H.CLIENT_CLOSING,
    (_H.OPEN, _S, "channel.close"): _H.SERVER_CLOSING,
    (_H.CLIENT_CLOSING, _S, "channel.close-ok"): _H.CLOSED,
    (_H.CLIENT_CLOSING, _S, "channel.close"): _H.CLIENT_CLOSING,
    (_H.CLIENT_CLOSING, _C, "channel.close-ok"): _H.CLIENT_CLOSING,
    (_H.SERVER_CLOSING, _C, "channel.close-ok"): _H.CLOSED,
    (_H.SERVER_CLOSING, _C, "channel.close"): _H.SERVER_CLOSING,
    (_H.SERVER_CLOSING, _S, "channel.close-ok"): _H.SERVER_CLOSING,
}


class ReplyCode(IntEnum):
    """Reply codes for closing a connection."""

    # Connection errors as defined by AMQP 0-9-1.
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530


class Broken(ProtocolError):
    """A protocol error with a reply code.

    `said` is the text sent to the peer. It is the same as RabbitMQ's. `method_id` is the method that caused
    the error.
    """

    def __init__(self, code: ReplyCode, text: str, said: str = "", method_id: int = 0) -> None:
        self.code = code
        self.said: str = f"{code.name} - {said}" if said else text
        self.method_id = method_id
        super().__init__(text)


def unknown_frame(kind: int, payload: bytes) -> Broken:
    """Return the error for a frame with an unknown type or invalid size."""
    said = f"type {kind}, all octets = {as_erlang(payload)}: unknown_frame"
    text = f"expected an AMQP 0-9-1 frame, got one of type {kind} with {payload[:40]!r}"
    return Broken(ReplyCode.FRAME_ERROR, text, said)


def undecodable(method_id: int, name: str, arguments: bytes) -> Broken:
    """Return the error for invalid method arguments."""
    octets = ",".join(map(str, arguments[:_TOLD_OCTETS]))
    text = f"expected the arguments of {name}, got {arguments[:40]!r}"
    return Broken(ReplyCode.FRAME_ERROR, text, f"cannot decode <<{octets}>>", method_id)


def as_erlang(raw: bytes) -> str:
    """Format bytes like RabbitMQ does."""
    if raw and raw.isascii() and raw.decode().isprintable():
        return f'<<"{raw[:_TOLD_OCTETS].decode()}">>'
    return f"<<{','.join(map(str, raw[:_TOLD_OCTETS]))}>>"


_TOLD_OCTETS = 255  # limit of the reply text


# Frame types and the frame end octet of AMQP 0-9-1.
METHOD = 1
HEADER = 2
BODY = 3
HEARTBEAT = 8
END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
MIN_FRAME = 4096  # minimum frame size of AMQP in bytes

_ENVELOPE = struct.Struct(">BHI")
_HEADER = struct.Struct(">BHIHHQ")
_BODY = struct.Struct(">BBHI")
_pack_header = _HEADER.pack
_pack_body = _BODY.pack
_BASIC = 60  # the class id of basic


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a peer. Exceeding one of them is a protocol error.

    Attributes:
        frame_max: The proposed maximum frame size.
        receive_max: Maximum size of a received frame. It is larger than `frame_max`, because the
            broker may add headers.
        body_max: Maximum size of a message body.
        partial_max: Maximum size of all incomplete messages of a connection.
    """

    frame_max: int = 131_072
    receive_max: int = 4 * 1024 * 1024
    channel_max: int = 2047
    body_max: int = 512 * 1024 * 1024
    partial_max: int = 1024 * 1024 * 1024
    requests_max: int = 4096


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_ENVELOPE.pack(kind, channel, len(payload)), payload)


def too_large(size: int, frame_max: int) -> ProtocolError:
    """Return the error for properties that do not fit into a frame."""
    return ProtocolError(
        f"expected properties and headers of at most {frame_max - 12} bytes (one frame), got {size}."
        " Shorten the headers"
    )


def content_frames(
    out: list[bytes],
    channel: int,
    method: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
    header_max: int = 0,
) -> None:
    """Append the frames of a message to `out`.

    Raises ProtocolError if the properties do not fit into a frame, because the broker would close
    the connection. Only a broker may send larger header frames (`header_max`), after adding
    `x-death`.
    """
    room = frame_max - 8
    length = len(properties) + 12
    # RabbitMQ does not count the envelope, so frames of this size must be accepted.
    if length > frame_max and length > header_max - 8:
        raise too_large(len(properties), frame_max)
    size = len(body)
    header = _pack_header(HEADER, channel, length, _BASIC, 0, size)
    if 0 < size <= room:
        out += (method, header, properties, _pack_body(END, BODY, channel, size), body, b"\xce")
        return
    out += (method, header, properties, b"\xce")
    view = memoryview(body)
    for start in range(0, size, room):
        part = view[start : start + room]
        out += (_ENVELOPE.pack(BODY, channel, len(part)), part, b"\xce")  # type: ignore[arg-type]
