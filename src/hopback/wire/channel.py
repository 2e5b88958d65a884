"""One channel of a connection: its state, the replies it owes or awaits, a message half received."""

from __future__ import annotations

from collections import deque

from hopback.wire.frames import ChannelState
from hopback.wire.methods import Side
from hopback.wire.settlement import Settlements

__all__ = ["ChannelCore"]


class ChannelCore:
    """What the protocol knows of one channel. Pure data with a few rules; no I/O."""

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
        """Open and between messages: the only condition in which a message may begin."""
        self.owed: dict[Side, deque[tuple[str, ...]]] = {role: deque() for role in Side}
        """The replies that each side still owes the other, in order."""
        self.settlements: Settlements = Settlements(number)
        self.content_id: int = 0
        self.content_method: bytes = b""
        self.content_properties: bytes | None = None
        self.body_left: int = 0
        self.chunks: list[bytes] = []

    def enter(self, state: ChannelState) -> None:
        """Move to `state`; whatever was half received on a channel that ends is dropped."""
        self.state = state
        self.open = state is ChannelState.OPEN
        if not self.open:
            self.end_content()
            for replies in self.owed.values():
                replies.clear()

    def begin_content(self, method_id: int, method: bytes) -> None:
        """A content method came; a header and a body have to follow."""
        self.open = False
        self.content_id = method_id
        self.content_method = method

    def end_content(self) -> None:
        """The message is complete, or dropped."""
        self.open = self.state is ChannelState.OPEN
        self.content_id = 0
        self.content_method = b""
        self.content_properties = None
        self.body_left = 0
        self.chunks = []
