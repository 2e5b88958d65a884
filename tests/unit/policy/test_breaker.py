"""The circuit breaker: opens after failures in a row, probes, closes, and waits longer each time."""

from __future__ import annotations

import pytest

from hopback.errors import InvalidDeclaration
from hopback.policy.breaker import Breaker, BreakerPolicy, BreakerState, after_run, at

POLICY = BreakerPolicy(failures=3, cool_down=10, longest_cool_down=35)


def fail(breaker: Breaker, times: int, now: float = 0.0) -> Breaker:
    """The breaker after this number of failures."""
    for _ in range(times):
        breaker = after_run(breaker, POLICY, failed=True, now=now)
    return breaker


def test_breaker_stays_closed_below_limit() -> None:
    assert fail(Breaker(), 2).state is BreakerState.CLOSED


def test_success_resets_failure_count_of_breaker() -> None:
    recovered = after_run(fail(Breaker(), 2), POLICY, failed=False, now=0)
    assert fail(recovered, 2).state is BreakerState.CLOSED


def test_breaker_opens_at_limit_for_cool_down() -> None:
    opened = fail(Breaker(), 3, now=100)
    assert (opened.state, opened.until) == (BreakerState.OPEN, 110)


def test_breaker_is_half_open_after_cool_down() -> None:
    opened = fail(Breaker(), 3, now=100)
    assert at(opened, 109.9).state is BreakerState.OPEN
    assert at(opened, 110).state is BreakerState.HALF_OPEN


def test_successful_probe_closes_breaker() -> None:
    half_open = at(fail(Breaker(), 3), 10)
    assert after_run(half_open, POLICY, failed=False, now=10) == Breaker()


def test_failed_probe_doubles_cool_down_up_to_limit() -> None:
    """10, 20, then 35 seconds instead of 40."""
    breaker, now, waits = fail(Breaker(), 3), 0.0, []
    for _ in range(3):
        waits.append(breaker.until - now)
        now = breaker.until
        breaker = after_run(at(breaker, now), POLICY, failed=True, now=now)
    assert waits == [10, 20, 35]


def test_late_results_do_not_change_open_breaker() -> None:
    opened = fail(Breaker(), 3, now=100)
    assert after_run(opened, POLICY, failed=False, now=101) == opened
    assert after_run(opened, POLICY, failed=True, now=101) == opened


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"cool_down": -1}, {"probes": 0}])
def test_breaker_without_finite_cool_down_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidDeclaration, match=next(iter(wrong))):
        BreakerPolicy(**wrong)
