"""Whether a service is alive and whether it is ready, and why not.

Alive: every consumer is known to the broker, or is being restored. A consumer that stays lost on a
connection that works is what a restart may repair, so it ends liveness; a broker that is away does not,
because a restart repairs nothing there. Ready: connected, and every consumer takes deliveries.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.supervise import LineState
from hopback.policy.breaker import BreakerState
from hopback.runtime.consumer import ConsumerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.runtime.service import Service

__all__ = ["Condition", "Health"]

_LOOK_EVERY = 1.0  # whoever asks each second hears of a change at once


@dataclass(frozen=True, slots=True)
class Condition:
    """An answer to a probe; `reasons` says why it is no."""

    connections: dict[str, str]
    consumers: dict[str, str]
    reasons: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons


class Health:
    """Judges a service. `patience` is how long (seconds) a consumer may stay lost."""

    def __init__(
        self, service: Service, *, time: Callable[[], float], patience: float = 60.0
    ) -> None:
        self._service = service
        self._time = time
        self._patience = patience
        self._lost_since: dict[str, float] = {}

    async def run(self) -> None:
        """Look every second, so that a probe knows since when something is lost."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY)

    def look(self) -> None:
        """Note which consumers are lost now, and since when."""
        now = self._time()
        up = self._service.lines["consuming"] in (LineState.READY, LineState.BLOCKED)
        starting = (
            each for each in self._service.consumers if each.state is ConsumerState.STARTING
        )
        lost = {consumer.queue for consumer in starting if up}
        kept = {queue: since for queue, since in self._lost_since.items() if queue in lost}
        self._lost_since = dict.fromkeys(lost, now) | kept

    def alive(self) -> Condition:
        """Whether a restart would repair nothing."""
        self.look()
        return self._condition(self._grave())

    def ready(self) -> Condition:
        """Whether every consumer takes deliveries."""
        return self._condition(self._hindrances())

    def _grave(self) -> Iterator[str]:
        now = self._time()
        for queue, since in sorted(self._lost_since.items()):
            if now - since > self._patience:
                yield f"{queue} has had no consumer for {now - since:.0f} s though the broker is up"

    def _hindrances(self) -> Iterator[str]:
        for purpose, state in self._service.lines.items():
            if state is not LineState.READY:
                yield f"the {purpose} connection is {state}"
        for one in self._service.consumers:
            if one.state is not ConsumerState.CONSUMING:
                yield f"{one.queue} is {one.state}{f': {one.trouble}' if one.trouble else ''}"
            elif one.standstill:
                yield (
                    f"{one.queue} stands still: everything in hand ({one.held}) is held: "
                    f"{one.standstill}"
                )
            elif one.breaker is not BreakerState.CLOSED:
                yield f"{one.queue} is paused: everything fails"

    def _condition(self, reasons: Iterator[str]) -> Condition:
        return Condition(
            {purpose: str(state) for purpose, state in self._service.lines.items()},
            {one.queue: str(one.state) for one in self._service.consumers},
            tuple(reasons),
        )
