"""Failure plans.

A plan defines what happens to messages that could not be handled: the retry delays (tiers), the
number of attempts, how messages are moved to the retry queues and the dead-letter queue, and how
attempts are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Leave(StrEnum):
    """How a message is moved to another queue."""

    REJECT = "reject"
    """The consumer rejects it with `basic.nack(requeue=False)`, and the broker dead-letters it."""
    PUBLISH = "publish"
    """The consumer publishes it, waits for the confirm, and acks the delivery."""


class Return(StrEnum):
    """How a message returns after the delay."""

    QUEUE = "queue"
    """The retry queue sends it directly to its queue, through the default exchange."""
    EXCHANGE = "exchange"
    """The retry queue sends it to an exchange, which may route it to other queues as well."""


class Count(StrEnum):
    """Where attempts are counted."""

    X_DEATH = "x-death"
    """Attempts are counted in `x-death` and in Hopback's header. `x-death` is reliable as long as only
    the broker moves the message.
    """
    HEADER = "header"
    """Attempts are counted in Hopback's header, and in `count_header` if the plan has one."""


class Fact(StrEnum):
    """Values that can be written to a header."""

    NOW = "now"
    QUEUE = "queue"
    ATTEMPT = "attempt"
    RETRIES = "retries"
    REASON = "reason"
    ERROR = "error"
    STATUS = "status"
    ORIGIN_EXCHANGE = "origin-exchange"
    ORIGIN_ROUTING_KEY = "origin-routing-key"


@dataclass(frozen=True, slots=True)
class Stamp:
    """A header that is added to moved messages.

    It is omitted if the value is not known, for example if there is no HTTP status. If `once` is
    True, an existing header is not overwritten.
    """

    header: str
    fact: Fact
    once: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A route into a retry queue. It is used if the original routing key matches `pattern`."""

    exchange: str
    routing_key: str
    queue: str
    pattern: str = "#"


@dataclass(frozen=True, slots=True)
class Tier:
    """A retry delay. The first matching route is used."""

    name: str
    delay_ms: int
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Parking:
    """The dead-letter queue of a plan."""

    queue: str
    by: Leave
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class LocalWait:
    """Settings for snoozing in the process, which is only possible with classic queues.

    The message is held for the remaining time, but at least for `min_ms` and at most for a random
    time up to `max_ms`. If it was requeued before, the maximum is `max_ms + min_ms`.
    """

    min_ms: int = 500
    max_ms: int = 2000


@dataclass(frozen=True, slots=True)
class Redrive:
    """The target of a re-drive. If `reset` is True, attempts are counted from one again.

    `keep_deaths` keeps the `x-death` header, because some designs count attempts in it.
    """

    exchange: str
    routing_key: str
    reset: bool = True
    keep_deaths: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The failure plan of a queue.

    Attributes:
        attempts: Maximum number of attempts. After the last one, the message is dead-lettered.
        tiers: The retry delays. The last one is also used for all further attempts.
        count_header: A header of the design that counts failures, in addition to Hopback's.
        snooze: Settings for snoozing in the process. If None, snoozed messages wait in a retry
            queue.
        snooze_exhausts: If True, a snooze at the last attempt dead-letters the message.
    """

    queue: str
    attempts: int
    tiers: tuple[Tier, ...]
    leave: Leave
    returns: Return
    parking: Parking
    count: Count
    redrive: Redrive
    count_header: str | None = None
    snooze: LocalWait | None = None
    snooze_exhausts: bool = False
    retry_stamps: tuple[Stamp, ...] = ()
    park_stamps: tuple[Stamp, ...] = ()


MAX_REDRIVES = 3
"""How often a message can be re-driven by default. This protects against loops."""
