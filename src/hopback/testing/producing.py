"""A producer at the broker's own side: its messages arrive whatever faults are switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded import EventKind, Refusal
from hopback.broker.embedded.refusal import channel_error, refused

if TYPE_CHECKING:
    from hopback.broker.embedded import Node
    from hopback.broker.embedded.stored import Taken
    from hopback.message import Message

__all__ = ["Producer"]


class Producer:
    """Publishes straight into a node; it consumes nothing, so nothing is said to it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def publish(self, message: Message) -> None:
        """Publish; Returned, Nacked or NotFound as a confirmed publish would raise."""
        session = self._node.connect("test")
        try:
            fate = session.open_channel(self).publish(message, mandatory=message.mandatory)
        except Refusal as refusal:
            raise channel_error(refusal) from None
        finally:
            session.close()
        if fate in (EventKind.RETURNED, EventKind.REFUSED):
            raise refused(fate, message)

    def deliver(self, taken: Taken) -> None:
        """Nothing is consumed here."""

    def cancelled(self, tag: str) -> None:
        """Nothing is consumed here."""

    def closed(self, refusal: Refusal) -> None:
        """The refusal is raised already."""
