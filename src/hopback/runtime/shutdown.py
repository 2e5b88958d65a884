"""The end of a service, in numbered steps.

1. Stop intake: the broker is told to send no more.
2. Finish: handlers that run may end and open batches are handled, up to the grace time.
3. Release: what is left unsettled goes back to its queue with its channel.
4. Close: the connections end.

Asking twice skips the waiting. The report says what was left; nothing unsettled goes unreported.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from hopback.observe.events import Bus
    from hopback.runtime.consumer import Consumer, Leftover

__all__ = ["Report", "Shutdown", "Stopping"]


@dataclass(frozen=True, slots=True)
class Report:
    """How a service ended: how many deliveries it settled, and what it left to the broker."""

    handled: int
    left: tuple[Leftover, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no handler was interrupted and nothing was kept."""
        return not any(one.interrupted or one.kept for one in self.left)


@dataclass(slots=True)
class Stopping:
    """Whether the end was asked for, and how urgently."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    forced: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Ask for an orderly end; a second time, for an end at once."""
        (self.forced if self.asked.is_set() else self.asked).set()

    def force(self) -> None:
        """Ask for an end at once."""
        self.asked.set()
        self.forced.set()


@dataclass(slots=True)
class Shutdown:
    """Ends the consumers of a service; closing its connections is the service's own last step."""

    consumers: Sequence[Consumer]
    stopping: Stopping
    bus: Bus
    grace: float
    _not_started: dict[str, int] = field(default_factory=dict)

    async def run(self) -> Report:
        """Steps 1 to 3, and the announcement of step 4."""
        self._step(1, "stop intake")
        await self._unless_forced(self._stop_intake())
        self._step(2, "finish what runs, and flush open batches")
        await self._unless_forced(self._finish())
        self._step(3, "release the rest")
        left = [await one.close(self._not_started.get(one.queue, 0)) for one in self.consumers]
        self._step(4, "close")
        return Report(
            sum(one.handled for one in self.consumers),
            tuple(one for one in left if one.not_started or one.interrupted or one.kept),
        )

    def _step(self, step: int, title: str) -> None:
        running = sum(consumer.in_flight for consumer in self.consumers)
        self.bus.emit("shutdown.step", {"step": step, "title": title, "left": running})

    async def _stop_intake(self) -> None:
        for consumer in self.consumers:
            self._not_started[consumer.queue] = await consumer.stop_intake()

    async def _finish(self) -> None:
        for consumer in self.consumers:
            await consumer.finish()

    async def _unless_forced(self, work: Awaitable[None]) -> None:
        """Do it for no longer than the grace time, and not at all when forced."""
        doing = asyncio.ensure_future(work)
        forced = asyncio.ensure_future(self.stopping.forced.wait())
        try:
            await asyncio.wait(
                {doing, forced}, timeout=self.grace, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            doing.cancel()
            forced.cancel()
            await asyncio.gather(doing, forced, return_exceptions=True)
