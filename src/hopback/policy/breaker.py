"""When everything fails: a circuit breaker as a pure state machine.

A closed breaker counts failures in a row. At the limit it opens: the queue is paused. After the
cool-down it lets probes through (half open). A success closes it. A failure opens it again for twice
as long, up to a limit. Time is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from hopback.errors import InvalidTopology, Problem


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When to pause, for how long (seconds), and how many probes to let through at a time."""

    failures: int = 50
    cool_down: float = 10.0
    longest_cool_down: float = 300.0
    probes: int = 1

    def __post_init__(self) -> None:
        # A queue without probes would stay paused forever.
        wrong = tuple(
            Problem(name, f"{least} or more", repr(found))
            for name, least in (("failures", 1), ("cool_down", 0), ("probes", 1))
            if not least <= (found := getattr(self, name)) < math.inf
        )
        if wrong:
            raise InvalidTopology(wrong, where="breaker policy")


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of one queue: failures in a row, how often it opened in a row, until when."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    openings: int = 0
    until: float = 0.0


def after_run(breaker: Breaker, policy: BreakerPolicy, *, failed: bool, now: float) -> Breaker:
    """The state after a handler has run. Runs that were active when it opened do not change it."""
    if breaker.state is BreakerState.OPEN:
        return breaker
    if not failed:
        return Breaker()
    failures = breaker.failures + 1
    if breaker.state is BreakerState.HALF_OPEN or failures >= policy.failures:
        # Open. Each opening in a row lasts twice as long as the one before.
        # The exponent is bounded: a float overflows long before a cool-down becomes useful.
        doubled = policy.cool_down * 2.0 ** min(breaker.openings, 32)
        return Breaker(
            state=BreakerState.OPEN,
            openings=breaker.openings + 1,
            until=now + min(doubled, policy.longest_cool_down),
        )
    return replace(breaker, failures=failures)


def at(breaker: Breaker, now: float) -> Breaker:
    """The state at a moment: an open breaker whose cool-down is over is half open."""
    if breaker.state is BreakerState.OPEN and now >= breaker.until:
        return replace(breaker, state=BreakerState.HALF_OPEN)
    return breaker
