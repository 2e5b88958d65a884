"""What a handler can say of a delivery: the closed menu of outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Done", "Outcome", "Park", "Retry", "Snooze"]


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done; a handler that returns nothing says the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed and may work later; `after` (seconds) asks for the smallest tier that is long enough."""

    reason: str
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Park:
    """It is hopeless: put it into the dead-letter queue now, with this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not yet: come back in about `delay` seconds, without counting an attempt."""

    delay: float


Outcome: TypeAlias = Done | Retry | Park | Snooze
