"""The circuit breaker: opens after failures in a row, probes, closes, and waits longer each time."""

from __future__ import annotations

import pytest

from hopback.errors import InvalidDeclaration
from hopback.policy.breaker import Breaker, BreakerPolicy, BreakerState, after_run, at

POLICY = BreakerPolicy(failures=3, cool_down=10, longest_cool_down=35)


def fail(breaker: Breaker, times: int, now: float = 0.0) -> Breaker:
    """The breaker after so many failures."""
    for _ in range(times):
        breaker = after_run(breaker, POLICY, failed=True, now=now)
    return breaker


def test_it_stays_closed_below_the_limit() -> None:
    """Two failures of three leave the queue running."""
    assert fail(Breaker(), 2).state is BreakerState.CLOSED


def test_a_success_in_between_starts_the_count_again() -> None:
    """Only failures in a row open the breaker."""
    recovered = after_run(fail(Breaker(), 2), POLICY, failed=False, now=0)
    assert fail(recovered, 2).state is BreakerState.CLOSED


def test_it_opens_at_the_limit_for_the_cool_down() -> None:
    """The third failure opens it until now + cool-down."""
    opened = fail(Breaker(), 3, now=100)
    assert (opened.state, opened.until) == (BreakerState.OPEN, 110)


def test_it_is_half_open_when_the_cool_down_is_over() -> None:
    """Just before the end it is open, at the end it lets probes through."""
    opened = fail(Breaker(), 3, now=100)
    assert at(opened, 109.9).state is BreakerState.OPEN
    assert at(opened, 110).state is BreakerState.HALF_OPEN


def test_a_probe_that_works_closes_it() -> None:
    """One success from half open forgets all."""
    half_open = at(fail(Breaker(), 3), 10)
    assert after_run(half_open, POLICY, failed=False, now=10) == Breaker()


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    """10, 20, then 35 seconds instead of 40."""
    breaker, now, waits = fail(Breaker(), 3), 0.0, []
    for _ in range(3):
        waits.append(breaker.until - now)
        now = breaker.until
        breaker = after_run(at(breaker, now), POLICY, failed=True, now=now)
    assert waits == [10, 20, 35]


def test_what_was_running_when_it_opened_changes_nothing() -> None:
    """Late results of an open breaker neither close nor prolong it."""
    opened = fail(Breaker(), 3, now=100)
    assert after_run(opened, POLICY, failed=False, now=101) == opened
    assert after_run(opened, POLICY, failed=True, now=101) == opened


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"cool_down": -1}, {"probes": 0}])
def test_a_breaker_that_would_stay_open_is_refused(wrong: dict[str, int]) -> None:
    """The error names the field and the least it may be."""
    with pytest.raises(InvalidDeclaration, match=next(iter(wrong))):
        BreakerPolicy(**wrong)
