"""A circuit breaker as a pure state machine. It pauses a queue while all of its messages fail.

A closed breaker counts failures in a row. At the limit it opens: the queue is paused. After the
cool-down it lets probes through (half open). A success closes it. A failure opens it again for twice
as long, up to a limit. Time is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from hopback.durations import Duration, read_seconds
from hopback.errors import InvalidDeclaration, Problem


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, init=False)
class BreakerPolicy:
    """Threshold, pauses and number of concurrent probes of a breaker.

    The queue pauses after `failures` failures in a row. The first pause is `cool_down`, and each
    further one twice as long, up to `longest_cool_down`. Both become seconds.
    """

    failures: int = 50
    cool_down: float = 10.0
    longest_cool_down: float = 300.0
    probes: int = 1

    def __init__(
        self,
        failures: int = 50,
        cool_down: Duration = 10.0,
        longest_cool_down: Duration = 300.0,
        probes: int = 1,
    ) -> None:
        where = "BreakerPolicy"
        first = read_seconds(cool_down, "cool_down", where=where)
        longest = read_seconds(longest_cool_down, "longest_cool_down", where=where)
        for name, found in (("failures", failures), ("probes", probes)):
            if not 1 <= found < math.inf:  # a queue without probes would stay paused forever
                raise InvalidDeclaration((Problem(name, "1 or more", repr(found)),), where=where)
        object.__setattr__(self, "failures", failures)
        object.__setattr__(self, "cool_down", first)
        object.__setattr__(self, "longest_cool_down", longest)
        object.__setattr__(self, "probes", probes)


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker of one queue: consecutive failures, consecutive openings, and the end of the pause."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    openings: int = 0
    until: float = 0.0


def after_run(breaker: Breaker, policy: BreakerPolicy, *, failed: bool, now: float) -> Breaker:
    """Return the state after a run. Runs that were active when the breaker opened do not change it."""
    if breaker.state is BreakerState.OPEN:
        return breaker
    if not failed:
        return Breaker()
    failures = breaker.failures + 1
    if breaker.state is BreakerState.HALF_OPEN or failures >= policy.failures:
        # Open. Each consecutive opening lasts twice as long as the one before.
        # The exponent is bounded: a float overflows long before a cool-down becomes useful.
        doubled = policy.cool_down * 2.0 ** min(breaker.openings, 32)
        return Breaker(
            state=BreakerState.OPEN,
            openings=breaker.openings + 1,
            until=now + min(doubled, policy.longest_cool_down),
        )
    return replace(breaker, failures=failures)


def at(breaker: Breaker, now: float) -> Breaker:
    """Return the state at a given time. An open breaker is half open after its cool-down."""
    if breaker.state is BreakerState.OPEN and now >= breaker.until:
        return replace(breaker, state=BreakerState.HALF_OPEN)
    return breaker
