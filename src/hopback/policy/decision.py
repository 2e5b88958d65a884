"""Decisions about deliveries, and the effects that carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hopback.message import Message
    from hopback.topology.plan import Leave, Route, Tier


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge the message."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Move the message to the retry queue of `tier`.

    `counted` is False if the message is snoozed. If `delayed` is True, it is sent to the delay
    queues instead.
    """

    tier: Tier
    route: Route
    by: Leave
    attempt: int
    reason: str
    counted: bool = True
    delayed: bool = False


@dataclass(frozen=True, slots=True)
class Park:
    """Move the message to the dead-letter queue.

    The broker cannot add any headers when it moves a message (`by` is reject). In this case, the
    reason is only available in logs and events.
    """

    by: Leave
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    delay: float


@dataclass(frozen=True, slots=True)
class Keep:
    """Don't settle the message, because of an internal error.

    This means that the message could not be moved, not even unchanged. The broker requeues it when
    the channel is closed.
    """

    attempt: int
    reason: str


Decision: TypeAlias = Ack | Retry | Park | Requeue | Keep


class Settlement(StrEnum):
    """How a delivery is settled."""

    ACK = "ack"
    DEAD_LETTER = "dead-letter"
    """`basic.nack(requeue=False)`. RabbitMQ 4.3 increments a persistent counter on `basic.reject`."""
    RELEASE = "release"
    """`basic.nack(requeue=True)`."""


@dataclass(frozen=True, slots=True)
class Publish:
    message: Message


@dataclass(frozen=True, slots=True)
class Hold:
    delay: float


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the delivery. There are no more effects after this."""

    how: Settlement


Effect: TypeAlias = Publish | Hold | Settle
