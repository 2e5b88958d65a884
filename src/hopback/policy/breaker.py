"""A circuit breaker that pauses a queue when all of its messages fail.

When too many runs fail in a row, the breaker opens and the queue is paused. After a while the
breaker is half open, which means that a few messages are let through. If one of them succeeds, the
breaker closes. If it fails, the breaker opens again for twice as long, up to a limit.
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
    """Settings of a circuit breaker.

    Attributes:
        failures: Number of consecutive failures after which the queue is paused.
        cool_down: Length of the first pause. It is doubled for each further pause.
        longest_cool_down: Maximum length of a pause.
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
            # the queue would stay paused forever if there were no probes
            if not 1 <= found < math.inf:
                raise InvalidDeclaration((Problem(name, "1 or more", repr(found)),), where=where)
        object.__setattr__(self, "failures", failures)
        object.__setattr__(self, "cool_down", first)
        object.__setattr__(self, "longest_cool_down", longest)
        object.__setattr__(self, "probes", probes)


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of a circuit breaker."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    openings: int = 0
    until: float = 0.0


def after_run(breaker: Breaker, policy: BreakerPolicy, *, failed: bool, now: float) -> Breaker:
    """Return the state after a run.

    If the breaker is open, the run was started before that and is ignored.
    """
    if breaker.state is BreakerState.OPEN:
        return breaker
    if not failed:
        return Breaker()
    failures = breaker.failures + 1
    if breaker.state is BreakerState.HALF_OPEN or failures >= policy.failures:
        # Open the breaker and double the pause. The exponent is limited to avoid an overflow.
        doubled = policy.cool_down * 2.0 ** min(breaker.openings, 32)
        return Breaker(
            state=BreakerState.OPEN,
            openings=breaker.openings + 1,
            until=now + min(doubled, policy.longest_cool_down),
        )
    return replace(breaker, failures=failures)


def at(breaker: Breaker, now: float) -> Breaker:
    """Return the state at a certain time. An open breaker becomes half open after the cool-down."""
    if breaker.state is BreakerState.OPEN and now >= breaker.until:
        return replace(breaker, state=BreakerState.HALF_OPEN)
    return breaker
