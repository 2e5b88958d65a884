"""Frames: the envelope of everything on the wire, and the limits it must keep."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hopback.errors import ProtocolError

__all__ = [
    "BODY",
    "END",
    "HEADER",
    "HEARTBEAT",
    "HEARTBEAT_FRAME",
    "METHOD",
    "MIN_FRAME",
    "PROTOCOL_HEADER",
    "Limits",
    "content_frames",
    "frame",
]

# The types of frames, and the byte that ends each, as AMQP 0-9-1 numbers them.
METHOD = 1
HEADER = 2
BODY = 3
HEARTBEAT = 8
END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
MIN_FRAME = 4096  # what every peer must accept, and the least that may be agreed on

_ENVELOPE = struct.Struct(">BHI")
_HEADER = struct.Struct(">BHIHHQ")
_BODY = struct.Struct(">BBHI")
_pack_header = _HEADER.pack
_pack_body = _BODY.pack
_BASIC = 60  # the number of the class basic


@dataclass(frozen=True, slots=True)
class Limits:
    """What we accept from a peer; everything beyond is a protocol error.

    `frame_max` counts the whole frame, as AMQP does, and is what we propose. `receive_max` is what
    we bear: headers that the broker adds may push a header frame over the agreed size.
    `body_max` is one message's body.
    `partial_max` bounds the bytes of all unfinished messages of a connection together.
    """

    frame_max: int = 131_072
    receive_max: int = 4 * 1024 * 1024
    channel_max: int = 2047
    body_max: int = 512 * 1024 * 1024
    partial_max: int = 1024 * 1024 * 1024
    requests_max: int = 4096


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return b"%b%b\xce" % (_ENVELOPE.pack(kind, channel, len(payload)), payload)


def content_frames(
    out: list[bytes],
    channel: int,
    method: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
    header_max: int = 0,
) -> None:
    """Append a message to `out`: its method frame (ready made), header frame and body frames.

    The parts are joined once, with everything else of the same loop turn. Properties that do not
    fit one frame are refused here: the broker would close the whole connection. Only a broker may
    send a larger header frame (`header_max`): it has added `x-death` to what fitted before.
    """
    room = frame_max - 8
    length = len(properties) + 12
    if length > room and length > header_max - 8:
        raise ProtocolError(
            f"expected properties and headers of at most {room - 12} bytes (one frame), got "
            f"{len(properties)}; shorten the headers"
        )
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
