"""What a handler can say of a delivery: the closed menu of outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.durations import duration_seconds

if TYPE_CHECKING:
    from hopback.topology.durations import Duration

__all__ = ["Done", "Outcome", "Park", "Retry", "Snooze"]


def _read(duration: Duration) -> float:
    """Seconds; a text that is no duration stays, so that the outcome is refused with the menu."""
    try:
        return duration_seconds(duration)
    except ValueError:
        return duration  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done; a handler that returns nothing says the same."""


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """It failed and may work later; `after` asks for the smallest tier that is long enough.

    What is longer than every tier waits in the queues of delays, where the application has declared
    them, and comes back when it said; elsewhere it waits in the longest tier.
    """

    reason: str
    after: float | None = None
    """Seconds, whether they were said as `"2h"`, as a number or as a timedelta."""

    def __init__(self, reason: str, after: Duration | None = None) -> None:
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "after", None if after is None else _read(after))


@dataclass(frozen=True, slots=True)
class Park:
    """It is hopeless: put it into the dead-letter queue now, with this reason."""

    reason: str


@dataclass(frozen=True, slots=True, init=False)
class Snooze:
    """Not yet: come back after `delay`, without counting an attempt."""

    delay: float
    """Seconds, whether they were said as `"2h"`, as a number or as a timedelta."""

    def __init__(self, delay: Duration) -> None:
        object.__setattr__(self, "delay", _read(delay))


Outcome: TypeAlias = Done | Retry | Park | Snooze
