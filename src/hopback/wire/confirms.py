"""Track unconfirmed messages of a channel.

A confirm can cover several messages, and confirms may arrive out of order. A returned message does
not have a delivery tag. It is matched by exchange, routing key, properties and body. The message id
is not used for this, because it may not be unique.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from hopback.wire.properties import canonical_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.wire.events import ReturnedMessage

_Ticket = TypeVar("_Ticket")


class InFlight(Generic[_Ticket]):
    """An unconfirmed message. The sender is waiting for `ticket`."""

    __slots__ = (
        "body",
        "deadline",
        "exchange",
        "expired",
        "mandatory",
        "properties",
        "returned",
        "routing_key",
        "ticket",
    )

    def __init__(
        self,
        ticket: _Ticket,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        mandatory: bool,
        deadline: float,
    ) -> None:
        self.ticket: _Ticket = ticket
        self.exchange: str = exchange
        self.routing_key: str = routing_key
        self.properties: bytes = properties
        self.body: bytes = body
        self.mandatory: bool = mandatory
        self.deadline: float = deadline
        self.returned: ReturnedMessage | None = None
        self.expired: bool = False


class Confirms(Generic[_Ticket]):
    """All unconfirmed messages of a channel, in order."""

    __slots__ = ("_last", "in_flight", "live")

    def __init__(self) -> None:
        self.in_flight: dict[int, InFlight[_Ticket]] = {}
        self.live: int = 0
        """The number of messages whose sender is still waiting. The others have timed out."""
        self._last = 0

    def add(self, publish: InFlight[_Ticket]) -> int:
        """Add a message and return its delivery tag."""
        self._last = tag = self._last + 1
        self.in_flight[tag] = publish
        self.live += 1
        return tag

    def settle(self, tag: int, *, multiple: bool) -> list[InFlight[_Ticket]]:
        """Remove and return the messages that are covered by a confirm."""
        if multiple:
            tags = list(self._through(tag))
            settled = [self.in_flight.pop(known) for known in tags]
        else:
            found = self.in_flight.pop(tag, None)
            settled = [] if found is None else [found]
        for publish in settled:
            if not publish.expired:
                self.live -= 1
        return settled

    def _through(self, tag: int) -> Iterator[int]:
        for known in self.in_flight:
            if tag and known > tag:
                return
            yield known

    def postpone(self, deadline: float) -> None:
        """Set the deadline of all messages that have not timed out."""
        for publish in self.in_flight.values():
            if not publish.expired:
                publish.deadline = deadline

    def expire(self, now: float) -> list[InFlight[_Ticket]]:
        """Return the messages that have timed out.

        They are still tracked, so that a late confirm or return is not matched with a later
        message.
        """
        overdue: list[InFlight[_Ticket]] = []
        for publish in self.in_flight.values():
            if publish.deadline > now:
                break
            if not publish.expired:
                publish.expired = True
                overdue.append(publish)
        self.live -= len(overdue)
        return overdue

    @property
    def abandon_count(self) -> int:
        """How many messages timed out and are still unconfirmed."""
        return len(self.in_flight) - self.live

    def end(self) -> list[InFlight[_Ticket]]:
        """Remove all messages and return those whose sender is still waiting."""
        left = [publish for publish in self.in_flight.values() if not publish.expired]
        self.in_flight.clear()
        self.live = 0
        return left

    def take_back(self, returned: ReturnedMessage) -> InFlight[_Ticket] | None:
        """Find the unconfirmed message that was returned. Returns None if there is none.

        An exact match is preferred. RabbitMQ removes the BCC header, so the second choice is a
        message with the same body, and the third one any message with the same routing key.
        """
        exchange, key = returned.exchange, returned.routing_key
        alike = [
            publish
            for publish in self.in_flight.values()
            if publish.routing_key == key
            and publish.exchange == exchange
            and publish.mandatory
            and publish.returned is None
        ]
        found = _most_alike(alike, returned)
        if found is not None:
            found.returned = returned
        return found


def _most_alike(
    alike: list[InFlight[_Ticket]], returned: ReturnedMessage
) -> InFlight[_Ticket] | None:
    same_body = [publish for publish in alike if publish.body == returned.body]
    for publish in same_body:
        if publish.properties == returned.raw_properties:
            return publish
    if same_body:
        wanted = canonical_properties(returned.raw_properties)
        for publish in same_body:
            if canonical_properties(publish.properties) == wanted:
                return publish
    return next(iter(same_body or alike), None)
