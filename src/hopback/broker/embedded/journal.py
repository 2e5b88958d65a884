"""Events inside the broker. Without a listener they are not created."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.stored import Entry, StoredContent
    from hopback.fields import Headers


class EventKind(StrEnum):
    """An event of a message or of one of its copies."""

    PUBLISHED = "published"
    """A client published it to an exchange."""
    ENQUEUED = "enqueued"
    """A copy was added to a queue."""
    RETURNED = "returned"
    """It was returned to its publisher as unroutable."""
    REFUSED = "refused"
    """A queue rejected its copy. The publisher gets a nack."""
    DELIVERED = "delivered"
    ACKED = "acked"
    REQUEUED = "requeued"
    """It was requeued."""
    DELAYED = "delayed"
    """It was returned to its queue and is delayed before it becomes ready."""
    DIED = "died"
    """It leaves its queue for `reason`, as a dead letter if the queue has a dead-letter
    exchange.
    """
    HELD = "held"
    """Its queue keeps the dead letter until the target has confirmed it."""
    FORWARDED = "forwarded"
    """All targets confirmed a held dead letter."""
    DROPPED = "dropped"
    """It was lost. `reason` is the kind of loss."""


class Loss(StrEnum):
    """Ways in which a message is lost or removed, as in RabbitMQ."""

    UNROUTABLE = "unroutable"
    """Published without mandatory, and no queue was bound."""
    NO_DEAD_LETTER_EXCHANGE = "no dead-letter exchange"
    """It died in a queue without a dead-letter exchange."""
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
    """An injected fault dropped it on publish."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    `origin` numbers the publish and `copy` the copy in a queue. `parent` is the copy that died in
    another queue and became this one. Each is 0 if it does not apply.
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
    """Reports events to one listener. `node.journal` is None without a listener."""

    __slots__ = ("_listener", "_now")

    def __init__(self, now: Callable[[], float], listener: Callable[[Event], object]) -> None:
        self._now = now
        self._listener = listener

    def content(
        self, kind: EventKind, content: StoredContent, queue: str = "", reason: str = ""
    ) -> None:
        """Report an event of a message that is not in a queue."""
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
