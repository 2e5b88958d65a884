"""Faults to inject: on demand, or at random with a seed."""

from __future__ import annotations

import random
from enum import StrEnum


class Fault(StrEnum):
    """A fault to inject in tests."""

    REFUSE_CONNECTION = "refuse-connection"
    """A connection is refused."""
    LOSE_CONFIRM = "lose-confirm"
    """A message is stored, but its publisher gets no confirm."""
    NACK = "nack"
    """A publish is refused and not stored."""
    RETURN = "return"
    """A mandatory publish is returned as unroutable and not stored."""
    CUT_BEFORE_PUBLISH = "cut-before-publish"
    """The connection breaks before a publish has arrived."""
    CUT_AFTER_PUBLISH = "cut-after-publish"
    """The connection breaks after a publish was stored, before its confirm."""
    CUT_AFTER_SETTLE = "cut-after-settle"
    """The connection breaks just after a settlement."""
    CUT_BEFORE_SETTLE = "cut-before-settle"
    """The connection breaks before a settlement has arrived."""


class Faults:
    """The faults of one embedded broker. If all are off, they cost one comparison.

    `latency` is the delay of everything the broker sends, in seconds.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._next: dict[Fault, int] = {}
        self._chances: dict[Fault, float] = {}
        self.latency: float = 0.0
        self.active: bool = False

    def inject(self, fault: Fault, times: int = 1) -> None:
        """Let it happen the next `times` times that it can."""
        self._next[fault] = self._next.get(fault, 0) + times
        self._refresh()

    def chance(self, fault: Fault, probability: float) -> None:
        """Inject the fault with this probability at every occasion. 0 switches it off."""
        if not 0 <= probability <= 1:
            raise ValueError(f"expected a probability between 0 and 1, got {probability}")
        self._chances[fault] = probability
        self._refresh()

    def clear(self) -> None:
        """Switch everything off."""
        self._next.clear()
        self._chances.clear()
        self.latency = 0.0
        self._refresh()

    def strikes(self, fault: Fault) -> bool:
        """Whether it happens this time."""
        if self._next.get(fault, 0) > 0:
            self._next[fault] -= 1
            self._refresh()
            return True
        chance = self._chances.get(fault, 0.0)
        return chance > 0 and self._random.random() < chance

    def _refresh(self) -> None:
        self.active = any(self._next.values()) or any(self._chances.values())
