"""The declared topology of a running application.

At the start every object must be as declared, or the application does not run. Later the application keeps
running when a queue is deleted, migrated or replaced. It creates missing objects if it declares the topology,
and reports objects that it cannot use. Their messages stay where they are.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.broker.declare import (
    Ownership,
    is_complete,
    prepare,
    queues_in_migration,
    rebind,
    restore,
)
from hopback.errors import (
    BrokerError,
    NotFound,
    Returned,
    UnsafeOperation,
)
from hopback.topology.check import check
from hopback.topology.hazards.rule import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hopback.broker.port import Connection
    from hopback.message import Message
    from hopback.runtime.settling import Environment
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion


_LOOK_AGAIN_S = 1.0
"""Seconds for which a look at the whole topology counts: early messages ask for one each."""


class Upkeep:
    """Looks after one application's topology, on whatever connection it has."""

    def __init__(self, topology: Topology, ownership: Ownership, world: Environment) -> None:
        self._topology = topology
        self._ownership = ownership
        self._world = world
        self._own = {queue.name for queue in topology.queues}
        self._exchanges = {exchange.name for exchange in topology.exchanges}
        self._wanted = asyncio.Event()
        self._unrouted: set[str] = set()
        self._said: set[str] = set()
        self._turn = asyncio.Lock()
        self._looked_on: Connection | None = None
        self._looked_at = float("-inf")
        self._time = asyncio.get_running_loop().time
        self._begun = False
        self._connection: Connection | None = None
        self.troubles: dict[str, str] = {}
        """What cannot be used now, and why, by the name of the queue or exchange."""

    async def begin(self, connection: Connection) -> None:
        """Declare or check everything: at the first time TopologyError if it cannot be used.

        While one of the queues is being migrated, BrokerError: the connection is tried again.
        Later only what is missing is created, and what cannot be used is told.
        """
        if self._begun:
            await self._restore(connection, since=self._time())
            return
        if self._ownership is Ownership.DECLARE:
            away = await queues_in_migration(connection, self._topology)
            if away:
                raise BrokerError(
                    f"nothing is consumed while {', '.join(away)} is being migrated; if the migration"
                    " was interrupted, `hopback topology migrate` ends it"
                )
        await prepare(connection, self._topology, self._ownership)
        self._begun = True
        self._looked_on, self._looked_at = connection, self._time()

    async def usable(self, queue: str, connection: Connection, since: float) -> str:
        """Why the queue cannot be consumed, by a look of ours after `since`; empty if it can."""
        await self._restore(connection, since=since)
        return self.troubles.get(queue, "")

    async def look(self) -> Mapping[str, str]:
        """Restore missing objects now, unless that was tried within the last second; the troubles."""
        if self._connection is not None:
            with suppress(BrokerError):
                await self._restore(self._connection, since=self._time() - _LOOK_AGAIN_S)
        return self.troubles

    def report(self, message: Message, error: BrokerError) -> None:
        """A publish has failed: if a queue or exchange of ours may be missing, look soon."""
        ours = message.exchange in self._exchanges or (
            not message.exchange and message.routing_key in self._own
        )
        if not ours or not (isinstance(error, Returned) or isinstance(error.__cause__, NotFound)):
            return
        if self._ownership is Ownership.EXTERNAL:
            # Nobody looks here, so nobody would see that it is back: it is said only once.
            name = message.exchange or message.routing_key
            if name not in self._said:
                self._said.add(name)
                why = f"{error}; this application creates nothing (ownership `external`)"
                self._world.bus.emit("topology.unusable", {"object": name, "reason": why})
        else:
            self._unrouted.add(message.exchange)
            self._wanted.set()

    async def attend(self, connection: Connection) -> None:
        """Restore what publishes have missed, for as long as the connection lasts.

        Never at once: a queue that is being replaced is back within the first pause. And after each
        look that repaired nothing later: an exchange of ours may rightly have no queue for a message.
        """
        fruitless = 0
        self._connection = connection
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._world.backoff.delay(fruitless + 1, self._world.chance()))
            self._wanted.clear()
            repaired = await self._restore(connection, since=self._time())
            fruitless = 0 if repaired else fruitless + 1

    async def watch(self, connection: Connection, every: float) -> None:
        """Look at the declared topology again and again, and create what is missing.

        Processes that were started together do not look together.
        """
        while self._ownership is not Ownership.EXTERNAL:
            await asyncio.sleep(every * (0.75 + self._world.chance() / 2))
            with suppress(BrokerError):  # a lost connection ends this task by itself
                if self.troubles or not await is_complete(connection, self._topology):
                    await self._restore(connection, since=self._time())
                elif self._ownership is Ownership.DECLARE:
                    await rebind(connection, self._topology)

    async def _restore(self, connection: Connection, *, since: float) -> bool:
        """Look at everything, unless somebody has on this connection since then; whether it helped."""
        async with self._turn:
            if self._looked_on is connection and self._looked_at > since and not self._unrouted:
                return False
            began = self._time()
            unrouted, self._unrouted = self._unrouted, set()
            found = await restore(connection, self._topology, self._ownership, unrouted=unrouted)
            self._looked_on, self._looked_at = connection, began
            # Say what is new; what was said before is not said again.
            troubles = dict(found.troubles)
            for name in found.created:
                self._world.bus.emit("topology.restored", {"object": name})
            for name, reason in troubles.items():
                if self.troubles.get(name) != reason:
                    self._world.bus.emit("topology.unusable", {"object": name, "reason": reason})
            self.troubles = troubles
            return bool(found.created)


def vet(
    topology: Topology, version: BrokerVersion, accepted: Collection[str]
) -> tuple[Finding, ...]:
    """The warnings to be said; UnsafeOperation lists the errors that nobody accepted by name."""
    findings = check(topology, version)
    grave = [one for one in findings if one.severity is Severity.ERROR and one.rule not in accepted]
    if grave:
        listed = "\n".join(f"  {one.rule} at {one.place}: {one.explanation}" for one in grave)
        raise UnsafeOperation(
            f"{topology.name} is not started on RabbitMQ {version}:\n{listed}\n"
            "Correct these, or accept them by name."
        )
    return tuple(one for one in findings if one.severity is not Severity.INFO)
