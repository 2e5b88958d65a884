"""Back-off stays within its bounds, whatever the policy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopback.policy import BackoffWaits, delay, schedule
from tests.properties.hostile import moderately

_policies = st.builds(
    lambda first, factor, above, jitter: BackoffWaits(first, factor, first + above, jitter),
    st.floats(0.001, 1000),
    st.floats(1, 100),
    st.floats(0, 10_000),
    st.floats(0, 1),
)


@given(_policies, st.integers(1, 10_000), st.floats(0, 1))
@moderately
def test_a_wait_is_never_shorter_than_configured_nor_beyond_its_cap(
    policy: BackoffWaits, attempt: int, chance: float
) -> None:
    """Jitter only adds, and adds at most its fraction."""
    plain = delay(attempt, policy, 0.0)
    wait = delay(attempt, policy, chance)
    assert policy.first <= plain <= policy.cap
    assert plain <= wait <= policy.cap * (1 + policy.jitter) * (1 + 1e-9)


@given(_policies, st.integers(1, 300))
@moderately
def test_waits_never_fall(policy: BackoffWaits, attempts: int) -> None:
    """Each wait is at least as long as the one before, and the schedule lists them all."""
    waits = schedule(policy, attempts)
    assert list(waits) == sorted(waits)
    assert waits == tuple(delay(attempt, policy, 0.0) for attempt in range(1, attempts + 1))
