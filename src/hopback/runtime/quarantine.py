"""Runs messages that may kill the process alone, and reports them to a surviving process.

The rules are in `policy.quarantine`. This module waits and reports.
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
"""Seconds that other runs may take to finish. After that the suspected message runs beside them,
and a death does not count against it. Runs that are already slow are not waited for. It is also the
time that a suspected message may run alone. After that other runs start beside it.
"""

_OTHERS_COME_S = 0.5
"""How long the first message of every other queue may take to arrive after the process has started, or
the next one of a queue whose suspected messages are being handled."""


@dataclass(frozen=True, slots=True)
class SupervisorLink:
    """The parent process, which records the message that runs alone and counts the deaths.

    `report` is called with the message's token before the run and with None after it. `deaths` has the
    number of processes that died, by token.
    """

    report: Callable[[str | None], object]
    deaths: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


class Isolation:
    """All work of this process, with a way to run one message alone.

    Of several waiting messages, the one with the fewest returns runs first. The message that kills
    the process was in hand at every death, so innocent messages of other queues run before it. In
    the opposite order each death would count against them until the broker's limit parks them.
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
        """This work is held while something else runs alone."""
        self._works.append(work)

    def leave(self, work: Work) -> None:
        self._works.remove(work)

    @asynccontextmanager
    async def isolate(self, work: Work, returns: int) -> AsyncIterator[bool]:
        """Let only `work` start runs inside this context. Yields False if others did not finish in
        time.

        `returns` is the number of returns of the message.
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
        """Wait until no other message runs alone and none with precedence is waiting."""
        loop = asyncio.get_running_loop()
        ticket = (returns, self._chance())
        if not self._waiting and not self._busy:
            self._quiet_since = loop.time()
        self._waiting.append(ticket)
        try:
            while True:
                left = None
                if not self._busy and min(self._waiting) == ticket:
                    # A message with more returns than the last one first waits for others to
                    # arrive.
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
    """Runs the suspected messages of one queue, one after another."""

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
        """Whether the message returned often enough to be suspected of killing the process."""
        return is_suspected(delivery, self._ordinary_returns)

    async def drain(self, work: Work) -> bool:
        """Wait until the queue's other deliveries are settled. Returns False after a timeout."""
        return await _in_time(work.drain()) and not work.in_flight

    async def run(self, taken: HeldDelivery, work: Work, *, drained: bool) -> None:
        """Run and settle the message, or park it if the process died of it too often."""
        supervisor = self._environment.supervisor
        token = suspect_token(taken.reading(self._plan))
        deaths = 0 if supervisor is None else supervisor.deaths.get(token, 0)
        fields = {"message_id": taken.delivery.properties.message_id, "deaths": deaths}
        self._environment.bus.emit("quarantine.begun", {"queue": self._plan.queue, **fields})
        park = deadly(deaths)
        if park is not None:
            work.conclude(taken, Answer(park))
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
