"""A broken rule of the protocol, with the code that tells the peer."""

from __future__ import annotations

from enum import IntEnum

from hopback.errors import ProtocolError

__all__ = ["Broken", "ReplyCode"]


class ReplyCode(IntEnum):
    """AMQP's reply codes for a connection that has to end."""

    # As AMQP 0-9-1 numbers the faults that end a connection.
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530


class Broken(ProtocolError):
    """A protocol error whose reply code is known."""

    def __init__(self, code: ReplyCode, text: str) -> None:
        self.code = code
        super().__init__(text)
