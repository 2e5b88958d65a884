"""Collect queue depths.

Most of them are read with passive declarations, which return exact counts. The number of messages
held by at-least-once dead-lettering is only available from the management API. Counts that cannot
be read are reported as None.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hopback.broker.port import Channel, Connection, count
from hopback.errors import BrokerError
from hopback.topology.expand import retry_queues

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from hopback.broker.management import Management
    from hopback.broker.management.readings import QueueReading
    from hopback.observe.events import Bus
    from hopback.topology.model import Queue, Topology
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


class HeldBackReader:
    """Reads the number of dead letters held by the broker (`messages_dlx`) from the management API."""

    def __init__(
        self,
        management: Management,
        vhost: str,
        queues: Callable[[], Iterable[Watched]],
        tell: Callable[[str, int | None], object],
        *,
        every: float = 15.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._management = management
        self._vhost = vhost
        self._queues = queues
        self._tell = tell
        self._every = every
        self._sleep = sleep

    async def attend(self, _connection: Connection) -> None:
        """Refresh the numbers periodically. Dead-letter queues are skipped."""
        while True:
            sources = [one.queue for one in self._queues() if one.role != "dead-letter"]
            held: dict[str, int | None] = {}
            with suppress(BrokerError):
                readings = await self._management.queues(self._vhost)
                held = {one.queue.name: one.counts.held_back for one in readings}
            for queue in sources:
                self._tell(queue, held.get(queue))
            await self._sleep(self._every)


class PolicyWatch:
    """Uses the management API to find policies that change the TTL of declared queues.

    `message-ttl` makes delays shorter, and `expires` deletes queues. A `topology.warning` is
    emitted once for each policy.
    """

    def __init__(
        self,
        management: Management,
        vhost: str,
        topology: Callable[[], Topology],
        bus: Bus,
        tell: Callable[[int | None], object],
        *,
        every: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._management = management
        self._vhost = vhost
        self._topology = topology
        self._bus = bus
        self._tell = tell
        self._every = every
        self._sleep = sleep
        self._said: set[tuple[str, str]] = set()

    async def attend(self, _connection: Connection) -> None:
        while True:
            declared = {queue.name: queue for queue in self._topology().queues}
            try:
                found = find_changed_waits(declared, await self._management.queues(self._vhost))
            except BrokerError:
                self._tell(None)
            else:
                self._tell(len({queue for queues in found.values() for queue in queues}))
                self._report(found)
            await self._sleep(self._every)

    def _report(self, found: Mapping[tuple[str, str], Sequence[str]]) -> None:
        for (policy, key), queues in found.items():
            if (policy, key) not in self._said:
                effect = "shortens waits" if key == "message-ttl" else "deletes unused queues"
                text = (
                    f"The policy sets `{key}` on {len(queues)} declared queues, among them"
                    f" {queues[0]!r}, and {effect}. Exclude these queues from its pattern."
                )
                warning = {"rule": "policy-changes-waits", "place": f"policy:{policy}"}
                self._bus.emit("topology.warning", warning | {"text": text})
        self._said = set(found)


def find_changed_waits(
    declared: Mapping[str, Queue], readings: Iterable[QueueReading]
) -> dict[tuple[str, str], list[str]]:
    """Group the queues by the `message-ttl` or `expires` policy that affects them."""
    found: dict[tuple[str, str], list[str]] = {}
    for reading in readings:
        queue = declared.get(reading.queue.name)
        in_force = reading.effective_policy or {}
        policy = reading.policy or reading.operator_policy or "unknown"
        if queue is None:
            continue
        for key in ("message-ttl", "expires"):
            value, own = in_force.get(key), queue.arguments.get(f"x-{key}")
            if isinstance(value, int) and not (isinstance(own, int) and own <= value):
                found.setdefault((policy, key), []).append(queue.name)
    return found


class ConsumerTimeoutReader:
    """Reads the consumer timeouts of queues from the management API.

    The API only returns timeouts set by arguments or policies. The default in the broker's
    configuration is not visible.
    """

    def __init__(
        self,
        management: Management,
        vhost: str,
        queues: Callable[[], Collection[str]],
        tell: Callable[[str, float], object],
        *,
        every: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._management = management
        self._vhost = vhost
        self._queues = queues
        self._tell = tell
        self._every = every
        self._sleep = sleep

    async def attend(self, _connection: Connection) -> None:
        while True:
            with suppress(BrokerError):
                for one in await self._management.queues(self._vhost):
                    found = (
                        one.queue.arguments.get("x-consumer-timeout"),
                        (one.effective_policy or {}).get("consumer-timeout"),
                    )
                    known = [value for value in found if isinstance(value, int) and value > 0]
                    if known and one.queue.name in self._queues():
                        self._tell(one.queue.name, min(known) / 1000)
            await self._sleep(self._every)
