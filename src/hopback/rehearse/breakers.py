"""The breakers of all processes of a station, in step, as the fluid model has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.policy.breaker import BreakerPolicy

__all__ = ["Breakers"]


@dataclass(slots=True)
class Breakers:
    """How near they are to opening, and until when they are open."""

    policy: BreakerPolicy | None
    progress: float = 0.0
    openings: int = 0
    until: float = -math.inf
    probe_end: float | None = None

    def runs_to_open(self, fail: float) -> float:
        """Expected runs of one process until so many in a row have failed."""
        policy = self.policy
        if policy is None or fail <= 0:
            return math.inf
        if fail >= 1:
            return float(policy.failures)
        rare = fail ** -min(policy.failures, 500)
        return (rare - 1) / (1 - fail)

    def open(self, now: float) -> None:
        """Everything fails: pause, each time in a row for twice as long."""
        assert self.policy is not None  # noqa: S101 - who has no policy never opens
        doubled = self.policy.cool_down * 2.0 ** min(self.openings, 32)
        self.until = now + min(doubled, self.policy.longest_cool_down)
        self.openings += 1
        self.progress = 0.0
        self.probe_end = None

    def close(self) -> None:
        """A probe worked."""
        self.openings = 0
        self.progress = 0.0
        self.probe_end = None
