"""The state of a channel.

A message consists of method, header and body frames. A message whose frames have all been received
is decoded in a single step, which is faster. Otherwise its frames are collected one by one.
"""

from __future__ import annotations

import struct
from collections import deque

from hopback.wire.events import Content, read_content
from hopback.wire.frames import (
    BODY,
    END,
    HEADER,
    Broken,
    ChannelState,
    Limits,
    ReplyCode,
    unknown_frame,
)
from hopback.wire.methods import Side
from hopback.wire.settlement import Settlements


class ChannelCore:
    """The protocol state of a channel."""

    __slots__ = (
        "body_left",
        "chunks",
        "content_id",
        "content_method",
        "content_properties",
        "number",
        "open",
        "owed",
        "settlements",
        "state",
    )

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.state: ChannelState = ChannelState.CLOSED
        self.open: bool = False
        """True if the channel is open and no message is being received."""
        self.owed: dict[Side, deque[tuple[str, ...]]] = {role: deque() for role in Side}
        """Expected replies of each side, in order."""
        self.settlements: Settlements = Settlements(number)
        self.content_id: int = 0
        self.content_method: bytes = b""
        self.content_properties: bytes | None = None
        self.body_left: int = 0
        self.chunks: list[bytes] = []

    def enter(self, state: ChannelState) -> None:
        """Change the state. Incomplete messages are dropped when the channel is closed."""
        self.state = state
        self.open = state is ChannelState.OPEN
        if not self.open:
            self.end_content()
            for replies in self.owed.values():
                replies.clear()

    def begin_content(self, method_id: int, method: bytes) -> None:
        """Start a message. The header and the body must follow."""
        self.open = False
        self.content_id = method_id
        self.content_method = method

    def out_of_place(self, found: str) -> Broken:
        """Return the error for an unexpected frame."""
        expected = "expected method frame, got non method frame instead"
        if self.content_properties is not None:
            expected = "expected content body, got non content body frame instead"
        elif self.content_id:
            expected = "expected content header for class 60, got non content header frame instead"
        text = f"expected no such frame on channel {self.number} now, got {found}"
        return Broken(ReplyCode.UNEXPECTED_FRAME, text, expected, self.content_id)

    def end_content(self) -> None:
        """Reset the state after a message is complete or was dropped."""
        self.open = self.state is ChannelState.OPEN
        self.content_id = 0
        self.content_method = b""
        self.content_properties = None
        self.body_left = 0
        self.chunks = []


_envelope = struct.Struct(">BHI").unpack_from
_header = struct.Struct(">HHQ").unpack_from
_lengths = struct.Struct(">BHIHHQ").unpack_from
_SHORTEST_HEADER = 12  # class, weight and body size, without properties
_BASIC = 60  # the only class with content


class Assembler:
    """Assembles messages from frames and limits their sizes."""

    __slots__ = ("_body_max", "_partial", "_partial_max")

    def __init__(self, limits: Limits) -> None:
        self._body_max = limits.body_max
        self._partial_max = limits.partial_max
        self._partial = 0

    @property
    def partial(self) -> int:
        """The number of bytes of incomplete bodies."""
        return self._partial

    def at_once(
        self, channel: ChannelCore, method_id: int, data: bytes, position: int, following: int
    ) -> tuple[Content | None, int]:
        """Decode the message at `position` if it is complete, and return its end.

        `following` is the end of the method frame. If the message is incomplete, it is started on
        its channel.
        """
        end = len(data)
        if end - following >= 19:
            kind, number, size, class_id, _, body_size = _lengths(data, following)
            body_at = following + 8 + size
            after: int = body_at + 8 + body_size
            if (
                after <= end
                and 0 < body_size <= self._body_max
                and kind == HEADER
                and number == channel.number
                and size >= 14
                and class_id == _BASIC
                and data[body_at - 1] == END
                and data[after - 1] == END
                and _envelope(data, body_at) == (BODY, number, body_size)
            ):
                found = read_content(
                    method_id,
                    number,
                    data[position + 11 : following - 1],
                    data[following + 19 : body_at - 1],
                    data[body_at + 7 : after - 1],
                )
                return found, after
        channel.begin_content(method_id, data[position + 11 : following - 1])
        return None, following

    def header(self, channel: ChannelCore, payload: bytes) -> Content | None:
        """Handle a content header. Returns the message if it does not have a body."""
        if len(payload) < _SHORTEST_HEADER:
            raise unknown_frame(HEADER, payload)
        if not channel.content_id or channel.content_properties is not None:
            raise channel.out_of_place("a content header")
        class_id, _, size = _header(payload)
        if class_id != _BASIC:
            raise Broken(
                ReplyCode.UNEXPECTED_FRAME,
                f"expected a header of class 60, got class {class_id}",
                f"expected content header for class 60, got one for class {class_id} instead",
                channel.content_id,
            )
        if size > self._body_max:
            raise Broken(
                ReplyCode.RESOURCE_ERROR,
                f"expected a body of at most {self._body_max} bytes, got one of {size}",
            )
        channel.content_properties = payload[12:]
        channel.body_left = size
        return None if size else self._complete(channel)

    def body(self, channel: ChannelCore, payload: bytes) -> Content | None:
        """Handle a body frame. Returns the message if it is complete."""
        if channel.content_properties is None:
            raise channel.out_of_place("a message body")
        if len(payload) > channel.body_left:
            raise Broken(
                ReplyCode.FRAME_ERROR,
                "expected a body of the announced size, got a larger one",
                "content body frame exceeds remaining content size",
                channel.content_id,
            )
        if not payload:
            return None
        channel.body_left -= len(payload)
        channel.chunks.append(payload)
        self._partial += len(payload)
        if not channel.body_left:
            return self._complete(channel)
        if self._partial > self._partial_max:
            raise Broken(ReplyCode.RESOURCE_ERROR, "expected less data in incomplete messages")
        return None

    def _complete(self, channel: ChannelCore) -> Content:
        found = read_content(
            channel.content_id,
            channel.number,
            channel.content_method,
            channel.content_properties or b"",
            b"".join(channel.chunks),
        )
        self.drop(channel)
        return found

    def drop(self, channel: ChannelCore) -> None:
        """Drop the message of a channel."""
        self._partial -= sum(map(len, channel.chunks))
        channel.end_content()
