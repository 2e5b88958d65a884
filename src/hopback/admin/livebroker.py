"""The broker as it stands: topology, hazards and routes, read at most once in a while."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from hopback.broker.apply import live_plan
from hopback.deadletters.live import BrokerSnapshot
from hopback.errors import ManagementNotFound
from hopback.renamed import OldNameLookup, old_names
from hopback.topology.check import check
from hopback.topology.model import joined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.apply import ApplyPlan
    from hopback.broker.management import Management
    from hopback.broker.management.readings import QueueReading
    from hopback.broker.port import Broker
    from hopback.clock import Clock
    from hopback.deadletters.live import LiveView
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

__all__ = ["LiveBroker"]

_FRESH_S = 2.0  # two readings of a large broker a few seconds apart are as good as one


class LiveBroker:
    """Reads the broker for everyone who asks; without a management API it knows declarations only."""

    def __init__(
        self,
        broker: Broker,
        view: LiveView | None,
        clock: Clock,
        *,
        vhost: str = "/",
        declared: Iterable[Topology] = (),
    ) -> None:
        self._broker = broker
        self._view = view
        self._clock = clock
        self._vhost = vhost
        self._declared = tuple(declared)
        self._lock = asyncio.Lock()
        self._snapshot: BrokerSnapshot | None = None
        self._version: BrokerVersion | None = None

    @property
    def address(self) -> str:
        """Where the broker is, fit to be shown."""
        return self._broker.address

    async def snapshot(self) -> BrokerSnapshot:
        """The broker as of at most two seconds ago; BrokerError if it is away."""
        async with self._lock:
            now = self._clock.now()
            if self._snapshot is None or now - self._snapshot.at >= _FRESH_S:
                self._snapshot = await self._read(now)
            return self._snapshot

    async def reading(self, queue: str) -> QueueReading | None:
        """One queue with its present rate; None if there is none, or nobody to tell."""
        if self._view is None:
            return None
        try:
            return await self._view.queue(self._vhost, queue)
        except ManagementNotFound:
            return None

    async def plan(self, desired: Topology) -> ApplyPlan:
        """What would have to change on the broker for it to be as desired; changes nothing."""
        connection = await self._broker.connect("hopback admin plan")
        try:
            view = cast("Management | None", self._view)
            return await live_plan(desired, connection, view, self._vhost)
        finally:
            await connection.close()

    async def reachable(self) -> BrokerVersion:
        """Connect once more: the broker's version; BrokerError if it is away."""
        connection = await self._broker.connect("hopback admin")
        self._version = connection.version
        await connection.close()
        return self._version

    async def _read(self, now: float) -> BrokerSnapshot:
        version = self._version or await self.reachable()
        live, readings = None, {}
        topology = joined(self._declared)
        if self._view is not None:
            found = await self._view.queues(self._vhost)
            readings = {reading.queue.name: reading for reading in found}
            live = await self._view.live_topology(self._vhost)
            # The live objects with the plans that are declared for them.
            names = {queue.name for queue in live.queues}
            plans = tuple(
                plan for each in self._declared for plan in each.plans if plan.queue in names
            )
            unconsumed = frozenset(name for each in self._declared for name in each.unconsumed)
            topology = replace(live, plans=plans, unconsumed=unconsumed)
        return BrokerSnapshot(
            topology,
            version,
            at=now,
            live=live,
            readings=readings,
            findings=check(topology, version),
        )


__getattr__: OldNameLookup = old_names(
    __name__, {"Scene": "hopback.deadletters.live.BrokerSnapshot"}
)
