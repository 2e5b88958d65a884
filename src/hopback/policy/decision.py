"""The decisions about a delivery, and the ordered effects that carry them out. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hopback.message import Message
    from hopback.topology.plan import Leave, Route, Tier


@dataclass(frozen=True, slots=True)
class Ack:
    """Ack the message. Its handling is complete."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Move to the retry queue of `tier` by `route`. `counted` is False for a snooze.

    With `delayed` the tier is not a queue of the plan. The message waits for the exact time in the
    delay queues.
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
    """Move to the dead-letter queue, with a reason if Hopback publishes the message there.

    If the broker moves it (`by` is reject), no header can be written. The reason is only in logs
    and events, and `x-death` names the queue of the dead letter.
    """

    by: Leave
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Hold the delivery for `delay` seconds, then requeue it at the head of its queue."""

    delay: float


@dataclass(frozen=True, slots=True)
class Keep:
    """An error in Hopback itself: the message can neither be rewritten nor parked unchanged.

    It stays unsettled, and an event reports the reason. The broker requeues it when the channel
    closes.
    """

    attempt: int
    reason: str


Decision: TypeAlias = Ack | Retry | Park | Requeue | Keep


class Settlement(StrEnum):
    """How a delivery is settled."""

    ACK = "ack"
    DEAD_LETTER = "dead-letter"
    """`basic.nack(requeue=False)`. On 4.3 `basic.reject` would raise a count that moves with the
    message.
    """
    RELEASE = "release"
    """`basic.nack(requeue=True)`."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish mandatory, persistent and confirmed. The next effect waits for the confirm."""

    message: Message


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the delivery for this number of seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the delivery. It is the last effect and occurs at most once."""

    how: Settlement


Effect: TypeAlias = Publish | Hold | Settle
