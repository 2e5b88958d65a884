"""What is done about a delivery, and the ordered effects that do it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hopback.message import Message
    from hopback.topology.plan import Leave, Route, Tier


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is done with."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It goes to the retry queue of `tier` by `route`; `counted` is False for a snooze.

    With `delayed` the tier is no queue of the plan: it waits in the queues of delays, just so long.
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
    """It goes to the dead-letter queue, with its reason if we publish it there.

    Where the broker moves it (`by` is reject) nothing can be written on it: the reason lives in
    our logs and events only, and the dead letter tells its queue by `x-death`.
    """

    by: Leave
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """It waits in our hands for `delay` seconds and then goes back to the head of its queue."""

    delay: float


@dataclass(frozen=True, slots=True)
class Keep:
    """An error in Hopback itself: the message can neither be rewritten nor parked as it came.

    It stays unsettled, and an event says why. The broker takes it back when the channel closes.
    """

    attempt: int
    reason: str


Decision: TypeAlias = Ack | Retry | Park | Requeue | Keep


class Settlement(StrEnum):
    """The three ways a delivery can be settled."""

    ACK = "ack"
    DEAD_LETTER = "dead-letter"
    """`basic.nack(requeue=False)`, never `basic.reject`: on 4.3 that raises a count that travels."""
    RELEASE = "release"
    """`basic.nack(requeue=True)`."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish mandatory, persistent and confirmed; the next effect waits for the confirm."""

    message: Message


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait this many seconds with the delivery in hand."""

    delay: float


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the delivery: always the last effect, and at most one."""

    how: Settlement


Effect: TypeAlias = Publish | Hold | Settle
