"""Handle suspected messages alone.

A message is suspected if it may have crashed the process. See `policy.quarantine` for the rules.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.policy.quarantine import (
    Turn,
    deadly,
    is_suspected,
    ordinary_returns,
    suspect_token,
    turn_of,
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
    """Coordinates the work of a process so that one message can be handled alone."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._waiting: list[tuple[Turn, int]] = []
        self._busy = False
        self._changed = asyncio.Event()
        self._last_turn: Turn | None = None
        self._quiet_since = 0.0

    def join(self, work: Work) -> None:
        """Register work to be paused while a message is handled alone."""
        self._works.append(work)

    def leave(self, work: Work) -> None:
        self._works.remove(work)

    @asynccontextmanager
    async def isolate(self, work: Work, turn: Turn) -> AsyncIterator[bool]:
        """Wait until it is this message's turn and pause all other work in this context. Yields
        False if it did not finish in time.
        """
        # At the next crash, another queue is first among messages with the same turn.
        place = (self._works.index(work) + turn.rank) % len(self._works)
        await self._wait_for(turn, place)
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

    async def _wait_for(self, turn: Turn, place: int) -> None:
        loop = asyncio.get_running_loop()
        ticket = (turn, place)
        if not self._waiting and not self._busy:
            self._quiet_since = loop.time()
        self._waiting.append(ticket)
        try:
            while True:
                left = None
                if not self._busy and min(self._waiting) == ticket:
                    # Let messages of other queues arrive that go first.
                    left = self._quiet_since + _OTHERS_COME_S - loop.time()
                    is_next = self._last_turn is not None and turn <= self._last_turn
                    if is_next or not turn.can_wait or left <= 0:
                        break
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
            self._busy, self._last_turn = True, turn
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
        self._delivery_limit = delivery_limit
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
        turn = turn_of(taken.delivery, self._delivery_limit)
        async with self._isolation.isolate(work, turn) as alone:
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
