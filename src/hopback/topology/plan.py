"""The failure plan of a queue: the handling of messages whose handler failed.

A plan specifies the waits of a failed message (tiers), the number of attempts, the ways into and out
of the retry queue, the way into the dead-letter queue, and the source of the attempt count. The five
documented designs and Hopback's own design are values of this type.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Leave(StrEnum):
    """How a message leaves its queue."""

    REJECT = "reject"
    """The broker moves it: `basic.nack(requeue=False)` and the queue's dead-letter exchange."""
    PUBLISH = "publish"
    """We move it: a confirmed publish, then the ack."""


class Return(StrEnum):
    """How a message returns after its wait."""

    QUEUE = "queue"
    """Straight to its own queue, through the default exchange."""
    EXCHANGE = "exchange"
    """Through an exchange that may route it to others as well."""


class Count(StrEnum):
    """The source of the attempt count."""

    X_DEATH = "x-death"
    """The broker's record, sound while only the broker moves the message, and our own header."""
    HEADER = "header"
    """Our own header, and the design's own one beside it."""


class Fact(StrEnum):
    """Content of a stamp."""

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
    """A header that a documented design writes, and the fact it carries.

    A stamp whose fact is unknown (no HTTP status, no exception) is left out. `once` keeps a value
    that is already there.
    """

    header: str
    fact: Fact
    once: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """A way into a retry queue, for messages whose original routing key matches `pattern`."""

    exchange: str
    routing_key: str
    queue: str
    pattern: str = "#"


@dataclass(frozen=True, slots=True)
class Tier:
    """One wait of a plan. The first matching route is used."""

    name: str
    delay_ms: int
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Parking:
    """The dead-letter queue of a plan, and the way into it."""

    queue: str
    by: Leave
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class LocalWait:
    """A snooze in the process before a requeue, for classic queues only.

    The wait is the remaining time, but at least `min_ms` and at most a random time up to `max_ms`.
    A message that was requeued before waits at most `max_ms + min_ms`.
    """

    min_ms: int = 500
    max_ms: int = 2000


@dataclass(frozen=True, slots=True)
class Redrive:
    """Where a re-driven message goes, and whether its attempts begin anew."""

    exchange: str
    routing_key: str
    reset: bool = True
    keep_deaths: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The failure plan of `queue`.

    `attempts` is the maximum number of handler runs. The failure of the last run parks.
    `tiers` are used in order, the last one for all further attempts.
    `count_header` is the design's own counter of failures, read and written in addition to ours.
    `snooze` is None if a snoozed message waits in a retry queue without counting.
    `snooze_exhausts`: a snooze at the last attempt parks instead of waiting once more.
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
"""Default number of re-drives of one message. A fourth re-drive is probably a loop."""
