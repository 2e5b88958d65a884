"""Publishes in flight on one channel, and the outcome of each.

A confirm has a tag. Confirms may cover several publishes, arrive out of order, and be positive or
negative. A return has no tag. It belongs to the earliest publish in flight with equal exchange,
key, properties and body. The message id is not used, because a dead-letter queue often contains
duplicates of one id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from hopback.wire.properties import canonical_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.wire.events import ReturnedMessage

_Ticket = TypeVar("_Ticket")


class InFlight(Generic[_Ticket]):
    """One unanswered publish. The sender waits on `ticket`."""

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
    """All publishes in flight on one channel, in order."""

    __slots__ = ("_last", "in_flight", "live")

    def __init__(self) -> None:
        self.in_flight: dict[int, InFlight[_Ticket]] = {}
        self.live: int = 0
        """Number of publishes with a waiting sender. The others timed out and only absorb late
        answers.
        """
        self._last = 0

    def add(self, publish: InFlight[_Ticket]) -> int:
        """Record a publish that is being sent and return its tag."""
        self._last = tag = self._last + 1
        self.in_flight[tag] = publish
        self.live += 1
        return tag

    def settle(self, tag: int, *, multiple: bool) -> list[InFlight[_Ticket]]:
        """Remove and return the publishes that a confirm (positive or negative) answers."""
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
        """Set the deadline of all waiting publishes. Earlier publishes never have a later
        deadline.
        """
        for publish in self.in_flight.values():
            if not publish.expired:
                publish.deadline = deadline

    def expire(self, now: float) -> list[InFlight[_Ticket]]:
        """Return the publishes that have timed out.

        They stay in flight without their sender, so that a late confirm or return is not matched to
        a later, equal message.
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
        """How many timed out and were never answered."""
        return len(self.in_flight) - self.live

    def end(self) -> list[InFlight[_Ticket]]:
        """The channel ended: return the publishes that still wait."""
        left = [publish for publish in self.in_flight.values() if not publish.expired]
        self.in_flight.clear()
        self.live = 0
        return left

    def take_back(self, returned: ReturnedMessage) -> InFlight[_Ticket] | None:
        """Record a return at its publish. Return None if no publish in flight matches.

        The first choice is equality in all parts. RabbitMQ may drop a header (BCC), so the next
        choices are the earliest publish with equal exchange, key and body, then with equal exchange
        and key, because they are routed alike.
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
