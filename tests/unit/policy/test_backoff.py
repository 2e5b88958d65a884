"""Back-off: growth, cap, jitter, and how it is shown."""

from __future__ import annotations

import pytest

from hopback.policy import BackoffWaits, delay, schedule, show_schedule


def test_backoff_waits_grow_to_cap() -> None:
    assert schedule(BackoffWaits(1, 2, 10, 0), 6) == (1, 2, 4, 8, 10, 10)


def test_jitter_adds_up_to_its_fraction() -> None:
    policy = BackoffWaits(10, 2, 60, 0.5)
    assert [delay(1, policy, chance) for chance in (-1, 0, 0.5, 1, 9)] == [10, 10, 12.5, 15, 15]
    assert delay(0, policy, 0) == delay(1, policy, 0)


def test_backoff_of_huge_attempt_stays_at_cap() -> None:
    assert delay(10**9, BackoffWaits(1, 10, 300, 0), 0) == 300


def test_backoff_schedule_is_printed_as_durations() -> None:
    assert show_schedule(BackoffWaits(30, 10, 1800, 0.1), 3) == "30s, 5m, 30m (+ up to 10%)"
    assert show_schedule(BackoffWaits(0.25, 2, 10, 0), 2) == "250ms, 500ms"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.0, 2.0, 10.0, 0.0), "first: expected more than 0 seconds, got 0.0"),
        ((1.0, 0.5, 10.0, 0.0), "factor: expected at least 1, got 0.5"),
        ((5.0, 2.0, 1.0, 0.0), "cap: expected at least `first`, got 1.0"),
        ((1.0, 2.0, float("inf"), 0.0), "cap: expected at least `first`, got inf"),
        ((1.0, 2.0, 10.0, 1.5), "jitter: expected 0 to 1, got 1.5"),
        ((float("nan"), 2.0, 10.0, 0.0), "first: expected more than 0 seconds, got nan"),
    ],
)
def test_invalid_backoff_policy_is_refused_with_field(
    values: tuple[float, float, float, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        BackoffWaits(*values)
