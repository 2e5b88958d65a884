"""Back-off stays within its bounds for every policy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopback.policy import BackoffWaits, delay, schedule
from tests.properties.hostile import no_deadline

_policies = st.builds(
    lambda first, factor, above, jitter: BackoffWaits(first, factor, first + above, jitter),
    st.floats(0.001, 1000),
    st.floats(1, 100),
    st.floats(0, 10_000),
    st.floats(0, 1),
)


@given(_policies, st.integers(1, 10_000), st.floats(0, 1))
@no_deadline
def test_wait_stays_between_first_wait_and_cap_with_jitter(
    policy: BackoffWaits, attempt: int, chance: float
) -> None:
    """Jitter only adds time, at most its fraction."""
    plain = delay(attempt, policy, 0.0)
    wait = delay(attempt, policy, chance)
    assert policy.first <= plain <= policy.cap
    assert plain <= wait <= policy.cap * (1 + policy.jitter) * (1 + 1e-9)


@given(_policies, st.integers(1, 300))
@no_deadline
def test_waits_never_decrease(policy: BackoffWaits, attempts: int) -> None:
    """The schedule lists all of them."""
    waits = schedule(policy, attempts)
    assert list(waits) == sorted(waits)
    assert waits == tuple(delay(attempt, policy, 0.0) for attempt in range(1, attempts + 1))
