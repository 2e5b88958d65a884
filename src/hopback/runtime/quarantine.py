"""Handle suspected messages alone.

A message is suspected if it may have crashed the process. See `policy.quarantine` for the rules.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.policy.quarantine import (
    deadly,
    is_suspected,
    ordinary_returns,
    returns_of,
    suspect_token,
)
from hopback.runtime.answer import Answer, HeldDelivery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from hopback.message import Delivery
    from hopback.runtime.settling import Environment
    from hopback.runtime.worker import Work
    from hopback.topology.plan import Plan

_PATIENCE_S = 30.0
"""Seconds to wait for other handlers. After that, the suspected message is handled anyway and a crash is not
counted. This is also the maximum time that it is handled alone.
"""

_OTHERS_COME_S = 0.5
"""Seconds to wait for messages of other queues."""


@dataclass(frozen=True, slots=True)
class SupervisorLink:
    """Tells the parent process which message is being handled alone.

    `report` is called with the token of the message, and with None when it is done. `deaths` maps
    tokens to the number of crashes.
    """

    report: Callable[[str | None], object]
    deaths: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


class Isolation:
    """Coordinates the work of a process so that one message can be handled alone.

    The message that crashes the process is requeued by every crash. Messages that were requeued
    less often are therefore handled first.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._works: list[Work] = []
        self._waiting: list[tuple[int, float]] = []
        self._chance = chance
        self._busy = False
        self._changed = asyncio.Event()
        self._last_returns = -1
        self._quiet_since = 0.0

    def join(self, work: Work) -> None:
        """Register work to be paused while a message is handled alone."""
        self._works.append(work)

    def leave(self, work: Work) -> None:
        self._works.remove(work)

    @asynccontextmanager
    async def isolate(self, work: Work, returns: int) -> AsyncIterator[bool]:
        """Pause all other work in this context. Yields False if it did not finish in time.

        `returns` is the number of times the message was requeued.
        """
        await self._turn(returns)
        others = [other for other in self._works if other is not work]
        for other in others:
            other.hold()
        try:
            is_idle = await _in_time(asyncio.gather(*(other.wait_idle() for other in others)))
            yield is_idle and not any(other.in_flight for other in others)
        finally:
            for other in others:
                other.resume()
            self._busy = False
            self._quiet_since = asyncio.get_running_loop().time()
            self._changed.set()

    async def _turn(self, returns: int) -> None:
        """Wait until this message is next."""
        loop = asyncio.get_running_loop()
        ticket = (returns, self._chance())
        if not self._waiting and not self._busy:
            self._quiet_since = loop.time()
        self._waiting.append(ticket)
        try:
            while True:
                left = None
                if not self._busy and min(self._waiting) == ticket:
                    # Let messages go first that were requeued less often.
                    left = self._quiet_since + _OTHERS_COME_S - loop.time()
                    if returns <= self._last_returns or left <= 0:
                        break
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
            self._busy, self._last_returns = True, returns
        finally:
            self._waiting.remove(ticket)
            self._changed.set()


class Quarantine:
    """Handles the suspected messages of a queue."""

    def __init__(
        self,
        plan: Plan,
        isolation: Isolation,
        environment: Environment,
        delivery_limit: object = None,
    ) -> None:
        self._plan = plan
        self._isolation = isolation
        self._environment = environment
        self._ordinary_returns = ordinary_returns(delivery_limit)

    def suspects(self, delivery: Delivery) -> bool:
        """Return True if a message is suspected of crashing the process."""
        return is_suspected(delivery, self._ordinary_returns)

    async def drain(self, work: Work) -> bool:
        """Wait until all other deliveries of the queue are settled. Returns False on timeout."""
        return await _in_time(work.drain()) and not work.in_flight

    async def run(self, taken: HeldDelivery, work: Work, *, drained: bool) -> None:
        """Handle the message alone. Dead-letter it if it has crashed the process too often."""
        supervisor = self._environment.supervisor
        token = suspect_token(taken.reading(self._plan))
        deaths = 0 if supervisor is None else supervisor.deaths.get(token, 0)
        fields = {"message_id": taken.delivery.properties.message_id, "deaths": deaths}
        self._environment.bus.emit("quarantine.begun", {"queue": self._plan.queue, **fields})
        park = deadly(deaths)
        if park is not None:
            work.conclude(taken, Answer(park, ran=False))
            await _in_time(work.drain())
            return
        async with self._isolation.isolate(work, returns_of(taken.delivery)) as alone:
            if supervisor is not None and alone and drained:
                supervisor.report(token)
            try:
                work.submit(taken)
                await _in_time(work.wait_settled(taken))
            finally:
                if supervisor is not None:
                    supervisor.report(None)


async def _in_time(waiting: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await waiting
    except TimeoutError:
        return False
    return True
