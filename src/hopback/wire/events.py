"""What a connection can tell after bytes came in. A closed menu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.wire.contents import Delivered, Got, Published, ReturnedMessage

if TYPE_CHECKING:
    from hopback.errors import ProtocolError

__all__ = ["Event", "HeaderReceived", "MethodReceived", "SettlementReceived", "Violation"]


@dataclass(frozen=True, slots=True)
class HeaderReceived:
    """The client's protocol header: the server may send connection.start."""

    channel: int = 0


@dataclass(frozen=True, slots=True)
class MethodReceived:
    """A control method with its arguments."""

    channel: int
    name: str
    arguments: dict[str, Any]


class SettlementReceived:
    """basic.ack, basic.nack or basic.reject: a confirm for a client, a settlement for a server."""

    __slots__ = ("channel", "multiple", "name", "requeue", "tag")

    def __init__(self, channel: int, name: str, tag: int, multiple: bool, requeue: bool) -> None:
        self.channel = channel
        self.name = name
        self.tag = tag
        self.multiple = multiple
        self.requeue = requeue

    def __repr__(self) -> str:
        return (
            f"<{self.name} channel={self.channel} tag={self.tag} multiple={self.multiple} "
            f"requeue={self.requeue}>"
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer broke the protocol. Our connection.close is among the bytes to send; then hang up."""

    error: ProtocolError
    code: int
    channel: int = 0


Event: TypeAlias = (
    HeaderReceived
    | MethodReceived
    | SettlementReceived
    | Violation
    | Delivered
    | Got
    | Published
    | ReturnedMessage
)
