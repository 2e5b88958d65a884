"""Events inside the broker. They are only created if there is a listener."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.stored import Entry, StoredContent
    from hopback.fields import Headers


class EventKind(StrEnum):
    """An event of a message or a copy of it."""

    PUBLISHED = "published"
    """A client published the message to an exchange."""
    ENQUEUED = "enqueued"
    """A copy was added to a queue."""
    RETURNED = "returned"
    """The message was returned to the publisher as unroutable."""
    REFUSED = "refused"
    """A queue rejected a copy, and the publisher gets a nack."""
    DELIVERED = "delivered"
    ACKED = "acked"
    REQUEUED = "requeued"
    """A delivery was requeued."""
    DELAYED = "delayed"
    """A delivery was returned to its queue, but is not ready until a delay has passed."""
    DIED = "died"
    """A copy was removed from its queue because of `reason`. It becomes a dead letter if the queue
    has a dead-letter exchange.
    """
    HELD = "held"
    """The source queue keeps the dead letter until its target has confirmed it."""
    FORWARDED = "forwarded"
    """All targets have confirmed a held dead letter."""
    DROPPED = "dropped"
    """The message was lost. `reason` explains why."""


class Loss(StrEnum):
    """Reasons why RabbitMQ loses or removes a message."""

    UNROUTABLE = "unroutable"
    """The message was unroutable and not mandatory."""
    NO_DEAD_LETTER_EXCHANGE = "no dead-letter exchange"
    """The message died in a queue that has no dead-letter exchange."""
    MISSING_EXCHANGE = "missing dead-letter exchange"
    UNROUTABLE_DEAD_LETTER = "unroutable dead letter"
    CYCLE = "dead-letter cycle"
    FULL = "full dead-letter queue"
    PURGED = "purged"
    QUEUE_DELETED = "queue deleted"
    QUEUE_EXPIRED = "queue expired"
    CRASH = "queue crashed"
    RESTART = "restart"
    """The message or its queue was not durable."""
    STRATEGY_CHANGED = "dead-letter strategy changed"
    FAULT = "fault"
    """It was dropped by an injected fault."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the broker.

    `origin` identifies the publish and `copy` the copy in a queue. `parent` is the copy this one
    was dead-lettered from. They are 0 if they do not apply.
    """

    at: float
    kind: EventKind
    origin: int
    copy: int
    parent: int
    queue: str
    reason: str
    exchange: str
    routing_key: str
    headers: Headers
    body: bytes


class EventReporter:
    """Passes events to a listener. If there is none, `node.journal` is None."""

    __slots__ = ("_listener", "_now")

    def __init__(self, now: Callable[[], float], listener: Callable[[Event], object]) -> None:
        self._now = now
        self._listener = listener

    def content(
        self, kind: EventKind, content: StoredContent, queue: str = "", reason: str = ""
    ) -> None:
        """Report an event for a message that is not in a queue."""
        self._tell(kind, content, 0, queue, reason)

    def entry(self, kind: EventKind, entry: Entry, queue: str, reason: str = "") -> None:
        self._tell(kind, entry.content, entry.number, queue, reason)

    def _tell(
        self, kind: EventKind, content: StoredContent, copy: int, queue: str, reason: str
    ) -> None:
        event = Event(
            at=self._now(),
            kind=kind,
            origin=content.origin,
            copy=copy,
            parent=content.parent,
            queue=queue,
            reason=reason,
            exchange=content.exchange,
            routing_key=content.keys[0],
            headers=content.headers,
            body=content.body,
        )
        self._listener(event)
