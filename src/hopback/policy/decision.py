"""Decisions about a delivery and the effects to carry them out."""

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

    `counted` is False for a snooze. If `delayed` is True, the message is sent to the delay queues
    instead.
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

    If the broker moves the message (`by` is reject), no headers can be added. The reason is then
    only reported in logs and events.
    """

    by: Leave
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Requeue the message after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the message unsettled because of an internal error.

    This happens if the message cannot be moved, neither with nor without changes. The broker
    requeues it when the channel is closed.
    """

    attempt: int
    reason: str


Decision: TypeAlias = Ack | Retry | Park | Requeue | Keep


class Settlement(StrEnum):
    """Ways to settle a delivery."""

    ACK = "ack"
    DEAD_LETTER = "dead-letter"
    """`basic.nack(requeue=False)`. RabbitMQ 4.3 increments a persistent counter on `basic.reject`."""
    RELEASE = "release"
    """`basic.nack(requeue=True)`."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message and wait for the confirm."""

    message: Message


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait for a number of seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the delivery. This is always the last effect."""

    how: Settlement


Effect: TypeAlias = Publish | Hold | Settle
