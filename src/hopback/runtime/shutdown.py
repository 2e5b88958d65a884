"""Shutdown of a service.

1. Stop consuming.
2. Wait for running handlers and batches, up to the grace time.
3. Handle open batches, in the remaining grace time or a few seconds.
4. Close the channels. The broker requeues unsettled deliveries.
5. Close the connections.

A second request skips the waiting. The report contains all unsettled deliveries.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.waiting import first_of, loop_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from hopback.observe.events import Bus
    from hopback.runtime.consumer import Consumer, Leftover

_FLUSH_S = 5.0
"""Minimum time for handling open batches, in seconds."""


@dataclass(frozen=True, slots=True)
class Report:
    """The number of handled messages, and the deliveries left unsettled."""

    handled: int
    left: tuple[Leftover, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether all handlers finished and all deliveries were settled or moved."""
        return not any(one.interrupted or one.kept for one in self.left)


@dataclass(slots=True)
class StopRequest:
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    forced: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Request a graceful shutdown. Calling this again requests an immediate one."""
        (self.forced if self.asked.is_set() else self.asked).set()

    def force(self) -> None:
        """Request an immediate shutdown."""
        self.asked.set()
        self.forced.set()


@dataclass(slots=True)
class Shutdown:
    """Stops the consumers of a service. The connections are closed by the service."""

    consumers: Sequence[Consumer]
    stopping: StopRequest
    bus: Bus
    grace: float

    async def run(self) -> Report:
        """Run steps 1 to 4."""
        until = loop_time() + self.grace
        self._step(1, "stop intake")
        await self._unless_forced(self._stop_intake(), self.grace)
        self._step(2, "finish running handlers")
        await self._unless_forced(self._finish(), max(0.0, until - loop_time()))
        self._step(3, "flush open batches")
        spare = until - loop_time()
        await self._unless_forced(self._flush(), max(spare, min(self.grace, _FLUSH_S)))
        self._step(4, "release the rest")
        left = [await one.close() for one in self.consumers]
        self._step(5, "close")
        return Report(
            sum(one.settled_count for one in self.consumers),
            tuple(one for one in left if one.not_started or one.interrupted or one.kept),
        )

    def _step(self, step: int, title: str) -> None:
        running = sum(consumer.in_flight for consumer in self.consumers)
        self.bus.emit("shutdown.step", {"step": step, "title": title, "left": running})

    async def _stop_intake(self) -> None:
        await asyncio.gather(*(consumer.stop_intake() for consumer in self.consumers))

    async def _finish(self) -> None:
        for consumer in self.consumers:
            await consumer.finish()

    async def _flush(self) -> None:
        await asyncio.gather(*(consumer.flush() for consumer in self.consumers))

    async def _unless_forced(self, work: Awaitable[None], seconds: float) -> None:
        """Wait for `work` until the time is up or an immediate shutdown is requested."""
        await first_of(work, self.stopping.forced.wait(), within=seconds)
