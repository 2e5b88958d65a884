"""Exponential backoff."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopback.durations import format_duration


@dataclass(frozen=True, slots=True)
class BackoffWaits:
    """Parameters of an exponential backoff, in seconds.

    `jitter` is the maximum fraction to add to a delay. It keeps clients from all retrying at the
    same time.
    """

    first: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        _require(0 < self.first < math.inf, "first", "more than 0 seconds", self.first)
        _require(1 <= self.factor < math.inf, "factor", "at least 1", self.factor)
        _require(self.first <= self.cap < math.inf, "cap", "at least `first`", self.cap)
        _require(0 <= self.jitter <= 1, "jitter", "0 to 1", self.jitter)


def delay(attempt: int, policy: BackoffWaits, chance: float) -> float:
    """Return the delay after the given attempt, starting at 1."""
    plain = _plain(max(attempt, 1), policy)
    return plain + plain * policy.jitter * max(0.0, min(1.0, chance))


def schedule(policy: BackoffWaits, attempts: int) -> tuple[float, ...]:
    """Return the delays for the given number of attempts, without jitter."""
    return tuple(_plain(attempt, policy) for attempt in range(1, attempts + 1))


def show_schedule(policy: BackoffWaits, attempts: int) -> str:
    """Format the schedule: `1s, 2s, 4s (+ up to 10 %)`."""
    waits = ", ".join(format_duration(round(wait * 1000)) for wait in schedule(policy, attempts))
    return f"{waits} (+ up to {policy.jitter:.0%})" if policy.jitter else waits


def _plain(attempt: int, policy: BackoffWaits) -> float:
    try:
        # Floats raise an error when they overflow. Integers would just keep growing.
        return min(policy.first * float(policy.factor) ** (attempt - 1), policy.cap)
    except OverflowError:
        return policy.cap


def _require(holds: bool, name: str, expected: str, got: float) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {got}")
