"""The failure plan of a queue: what happens to a message whose handler failed.

A plan says how long a failed message waits (tiers), how often it may be handled (attempts), how
it leaves for the retry queue, how it returns, how it is parked and what counts its attempts. The
five documented designs and Hopback's own are values of this one type.
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
    """How a message comes back when its wait is over."""

    QUEUE = "queue"
    """Straight to its own queue, through the default exchange."""
    EXCHANGE = "exchange"
    """Through an exchange that may route it to others as well."""


class Count(StrEnum):
    """What counts the attempts."""

    X_DEATH = "x-death"
    """The broker's record, sound while only the broker moves the message, and our own header."""
    HEADER = "header"
    """Our own header, and the design's own one beside it."""


class Fact(StrEnum):
    """What a stamp can say of a failed delivery."""

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
    """One waiting time; the first of its routes that matches is taken."""

    name: str
    delay_ms: int
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Parking:
    """Where a hopeless message rests, and how it gets there."""

    queue: str
    by: Leave
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class LocalWait:
    """A snooze spent in the process before a requeue; for classic queues only.

    The wait is the time still due, but at least `min_ms` and at most a random time up to `max_ms`.
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
    """What happens to the messages of `queue` when their handler fails.

    `attempts` is how often the handler may run; the failure of the last run parks.
    `tiers` are used in order, the last one for all further attempts.
    `count_header` is the design's own counter (failures so far), read and written beside ours.
    `snooze` is None where a snoozed message waits in a retry queue without counting.
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
"""How often a message may be re-driven when nothing else is said; a fourth time is a loop."""
