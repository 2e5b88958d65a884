"""Collect queue depths with passive declarations, which return exact counts.

Counts that cannot be read are reported as None.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hopback.broker.port import Channel, Connection, count
from hopback.errors import BrokerError
from hopback.topology.expand import retry_queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan


class Watched(NamedTuple):
    """A queue and its role."""

    queue: str
    role: str


def queues_to_watch(topology: Topology, queues: Iterable[str]) -> tuple[Watched, ...]:
    """Return every queue used by the plans of the given queues.

    If plans share a queue, its role is defined by the first one. For example, a dead-letter queue
    stays a dead-letter queue even if a later plan consumes it.
    """
    roles: dict[str, str] = {}
    for plan in topology.plans:
        for queue, role in _queues_of(plan):
            roles.setdefault(queue, role)
    plans = filter(None, map(topology.plan, queues))
    found = dict.fromkeys(queue for plan in plans for queue, _ in _queues_of(plan))
    return tuple(Watched(queue, roles[queue]) for queue in found)


def _queues_of(plan: Plan) -> Iterator[tuple[str, str]]:
    yield plan.queue, "main"
    for queue, _ in retry_queues(plan):
        yield queue, "retry"
    yield plan.parking.queue, "dead-letter"


class Depths:
    """Counts the messages of queues at regular intervals. Uses its own channel.

    `held` returns the number of unsettled deliveries of a queue. It is added to the depth of
    dead-letter queues.
    """

    def __init__(
        self,
        queues: Callable[[], Iterable[Watched]],
        tell: Callable[[str, str, int | None], object],
        *,
        held: Callable[[str], int] = lambda _queue: 0,
        every: float = 5.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._queues = queues
        self._tell = tell
        self._held = held
        self._every = every
        self._sleep = sleep
        self._channel: Channel | None = None

    async def attend(self, connection: Connection) -> None:
        """Count messages until the connection is closed. All depths are unknown after that."""
        counted: set[Watched] = set()
        try:
            while True:
                queues = tuple(self._queues())
                for gone in counted.difference(queues):
                    self._tell(*gone, None)
                counted = set(queues)
                for one in queues:
                    messages = await self._count(connection, one.queue)
                    if messages is not None and one.role == "dead-letter":
                        messages += self._held(one.queue)
                    self._tell(*one, messages)
                await self._sleep(self._every)
        finally:
            self._channel = None
            for one in counted:
                self._tell(*one, None)

    async def _count(self, connection: Connection, queue: str) -> int | None:
        """Return the number of messages, or None if an error occurred."""
        try:
            if self._channel is None:
                self._channel = await connection.open_channel()
            return (await count(self._channel, queue)).messages
        except BrokerError:
            channel, self._channel = self._channel, None
            if channel is not None:
                with suppress(BrokerError):
                    await channel.close()
            return None
