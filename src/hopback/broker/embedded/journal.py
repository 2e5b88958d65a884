"""What happens inside the broker, event by event. It costs nothing while nobody listens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.stored import Entry, StoredContent
    from hopback.fields import Headers


class EventKind(StrEnum):
    """What happened to a message, or to one copy of it."""

    PUBLISHED = "published"
    """A client handed it to an exchange."""
    ENQUEUED = "enqueued"
    """A copy of it stands in a queue."""
    RETURNED = "returned"
    """It was given back to its publisher: no queue wanted it."""
    REFUSED = "refused"
    """A queue refused its copy; the publisher hears a nack."""
    DELIVERED = "delivered"
    ACKED = "acked"
    REQUEUED = "requeued"
    """It came back to its queue."""
    DELAYED = "delayed"
    """It came back and waits before it is ready again."""
    DIED = "died"
    """It leaves its queue for `reason`: as a dead letter if the queue says so."""
    HELD = "held"
    """A dead letter that its queue keeps until the target has taken it."""
    FORWARDED = "forwarded"
    """A held dead letter was taken by all its targets."""
    DROPPED = "dropped"
    """It is gone; `reason` says which of the broker's ways to lose it this was."""


class Loss(StrEnum):
    """The ways in which RabbitMQ, too, lets a message go."""

    UNROUTABLE = "unroutable"
    """Published without mandatory, and no queue was bound."""
    NO_DEAD_LETTER_EXCHANGE = "no dead-letter exchange"
    """It died in a queue that has none."""
    MISSING_EXCHANGE = "missing dead-letter exchange"
    UNROUTABLE_DEAD_LETTER = "unroutable dead letter"
    CYCLE = "dead-letter cycle"
    FULL = "full dead-letter queue"
    PURGED = "purged"
    QUEUE_DELETED = "queue deleted"
    QUEUE_EXPIRED = "queue expired"
    CRASH = "queue crashed"
    RESTART = "restart"
    """It was not durable, or its queue was not."""
    STRATEGY_CHANGED = "dead-letter strategy changed"
    FAULT = "fault"
    """A fault switch swallowed it on its way in."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    `origin` numbers the publish, `copy` the copy in a queue and `parent` the copy that this one
    was before it died in another queue (each 0 where there is none).
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
    """Tells its one listener; `node.journal` is None while there is none."""

    __slots__ = ("_listener", "_now")

    def __init__(self, now: Callable[[], float], listener: Callable[[Event], object]) -> None:
        self._now = now
        self._listener = listener

    def content(
        self, kind: EventKind, content: StoredContent, queue: str = "", reason: str = ""
    ) -> None:
        """Tell of a message that stands in no queue."""
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
