"""Inject faults, either on demand or at random with a fixed seed."""

from __future__ import annotations

import random
from enum import StrEnum


class Fault(StrEnum):
    REFUSE_CONNECTION = "refuse-connection"
    """Refuse a connection."""
    LOSE_CONFIRM = "lose-confirm"
    """Store the message, but do not confirm it."""
    NACK = "nack"
    """Reject a publish and do not store the message."""
    RETURN = "return"
    """Return a mandatory publish as unroutable and do not store the message."""
    CUT_BEFORE_PUBLISH = "cut-before-publish"
    """Cut the connection before a publish has arrived."""
    CUT_AFTER_PUBLISH = "cut-after-publish"
    """Cut the connection after the message was stored, but before the confirm."""
    CUT_AFTER_SETTLE = "cut-after-settle"
    """Cut the connection right after a settlement."""
    CUT_BEFORE_SETTLE = "cut-before-settle"
    """Cut the connection before a settlement has arrived."""


class Faults:
    """The faults of an embedded broker. They have almost no overhead while none is enabled.

    `latency` delays everything that the broker sends, in seconds.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._next: dict[Fault, int] = {}
        self._chances: dict[Fault, float] = {}
        self.latency: float = 0.0
        self.active: bool = False

    def inject(self, fault: Fault, times: int = 1) -> None:
        """Inject the fault at the next `times` opportunities."""
        fault = _known(fault)
        self._next[fault] = self._next.get(fault, 0) + times
        self._refresh()

    def chance(self, fault: Fault, probability: float) -> None:
        """Inject the fault at random with this probability. 0 disables it."""
        if not 0 <= probability <= 1:
            raise ValueError(f"expected a probability between 0 and 1, got {probability}")
        self._chances[_known(fault)] = probability
        self._refresh()

    def clear(self) -> None:
        """Disable all faults."""
        self._next.clear()
        self._chances.clear()
        self.latency = 0.0
        self._refresh()

    def strikes(self, fault: Fault) -> bool:
        """Return True if the fault should be injected now."""
        if self._next.get(fault, 0) > 0:
            self._next[fault] -= 1
            self._refresh()
            return True
        chance = self._chances.get(fault, 0.0)
        return chance > 0 and self._random.random() < chance

    def _refresh(self) -> None:
        self.active = any(self._next.values()) or any(self._chances.values())


def _known(fault: Fault) -> Fault:
    """Return the fault. A name is accepted, too. Raises ValueError if it is unknown."""
    if fault not in [*Fault]:
        raise ValueError(f"fault: expected one of {', '.join(Fault)}, got {fault!r}")
    return Fault(fault)
