"""Pauses a queue when everything fails: the shell around the circuit breaker of `policy`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hopback.policy.breaker import Breaker, BreakerState, after_run, at
from hopback.policy.outcome import Done, Snooze

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.policy.breaker import BreakerPolicy
    from hopback.runtime.answer import Answer

__all__ = ["Brake", "Tell"]


class Tell(Protocol):
    """Says what happened to the queue."""

    def __call__(self, name: str, reason: str, **more: float | None) -> None:
        """Emit the event `name`."""


class Brake:
    """Watches the answers of one queue and limits how much is handled at once."""

    def __init__(self, policy: BreakerPolicy | None, concurrency: int, tell: Tell) -> None:
        self._policy = policy
        self._concurrency = concurrency
        self._tell = tell
        self._limit: Callable[[int], None] = lambda _size: None
        self._breaker = Breaker()
        self._probing: asyncio.TimerHandle | None = None
        self._time = asyncio.get_running_loop().time

    def control(self, limit: Callable[[int], None]) -> None:
        """`limit` is how the work is told how much it may handle at once."""
        self._limit = limit

    @property
    def state(self) -> BreakerState:
        """The state of the breaker."""
        return self._breaker.state

    @property
    def released(self) -> bool:
        """Whether nothing is held back."""
        return self._breaker.state is BreakerState.CLOSED

    def observe(self, answer: Answer) -> None:
        """A handler has run: tell the breaker, and pause or go on as it says."""
        if self._policy is None:
            return
        now, before = self._time(), self._breaker.state
        failed = not isinstance(answer.outcome, Done | Snooze)
        self._breaker = after_run(self._breaker, self._policy, failed=failed, now=now)
        if self._breaker.state is before:
            return
        if self._breaker.state is BreakerState.OPEN:
            self._limit(0)
            self._probing = asyncio.get_running_loop().call_at(self._breaker.until, self._probe)
            self._tell("consumer.paused", "everything fails", until=self._breaker.until - now)
        else:
            self._limit(self._concurrency)
            self._tell("consumer.resumed", "a probe worked")

    def _probe(self) -> None:
        """The cool-down is over: let a few through and see."""
        # A loop may call a little early; a breaker that stayed open would hear of no probe.
        self._breaker = at(self._breaker, max(self._time(), self._breaker.until))
        if self._policy is not None:
            self._limit(self._policy.probes)

    def release(self) -> None:
        """The end: no probe any more."""
        if self._probing is not None:
            self._probing.cancel()
