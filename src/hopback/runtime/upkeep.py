"""Declare and monitor the topology of a running application.

When the service starts, all objects must match their declaration. After that, missing objects are
created again, and objects that cannot be used are reported.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
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
    ConnectionFailed,
    NotFound,
    Returned,
    UnsafeOperation,
)
from hopback.topology.check import check
from hopback.topology.hazards.rule import Severity
from hopback.topology.model import join_topologies
from hopback.topology.plan import Return
from hopback.waiting import loop_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hopback.broker.port import Connection
    from hopback.message import Message
    from hopback.runtime.settling import Environment
    from hopback.topology.model import Queue, Topology
    from hopback.version import BrokerVersion


_RECHECK_S = 1.0
"""Seconds for which the result of a check is valid."""


class Upkeep:
    """Checks and restores the topology of an application.

    `foreign_queues` are declared by another library. They are assumed to exist.
    """

    def __init__(
        self,
        topology: Topology,
        ownership: Ownership,
        environment: Environment,
        *,
        accept: Collection[str] = (),
        foreign_queues: Sequence[Queue] = (),
    ) -> None:
        self.topology: Topology = topology
        """The topology, including added ones."""
        self._own = topology
        self._added: list[Topology] = []
        self._ownership = ownership
        self._environment = environment
        self._accept = accept
        self._foreign_queues = tuple(foreign_queues)
        self._requested = asyncio.Event()
        self._unrouted: set[str] = set()
        self._new: set[str] = set()
        """Names of added objects that have not been declared yet."""
        self._reported: set[str] = set()
        self._lock = asyncio.Lock()
        self._checked_on: Connection | None = None
        self._checked_at = float("-inf")
        self._time = loop_time
        self._version: BrokerVersion | None = None
        self._is_begun = False
        self._connection: Connection | None = None
        self.troubles: dict[str, str] = {}
        """Maps names of queues and exchanges to the reason why they cannot be used."""

    async def begin(self, connection: Connection) -> None:
        """Declare or check the topology on a new connection.

        Raises:
            UnsafeOperation: If the topology has errors. Only on the first connection.
            TopologyError: If the topology cannot be used. Only on the first connection.
            BrokerError: If a queue is being migrated.
        """
        if self._is_begun:
            await self._restore(connection, since=self._time())
            return
        if self._version is None:
            self._report_hazards(self.topology, connection.version)
            self._version = connection.version
        if self._ownership is Ownership.DECLARE:
            migrating = await queues_in_migration(connection, self._own)
            if migrating:
                raise BrokerError(
                    f"consumption is stopped while {', '.join(migrating)} is being migrated. If the migration"
                    " was interrupted, finish it with `hopback topology migrate`"
                )
        await prepare(connection, self._own, self._ownership)
        self._is_begun = True
        if not self._added:
            self._checked_on, self._checked_at = connection, self._time()

    def add(self, topology: Topology) -> None:
        """Add a topology, which is declared by the next check.

        Raises:
            UnsafeOperation: If the topology has errors.
        """
        if self._version is not None:
            self._report_hazards(topology, self._version)
        self._added.append(topology)
        self._join()
        self._new.update(exchange.name for exchange in topology.exchanges)
        self._new.update(queue.name for queue in topology.queues)
        # The queue may exist, but some of its bindings may not.
        self._unrouted.update(binding.source for binding in topology.bindings)
        self._checked_on = None

    def forget(self, topology: Topology) -> None:
        """Stop checking a topology. Its objects are not deleted."""
        self._added.remove(topology)
        self._join()

    async def remove(self, topology: Topology, queues: Collection[str]) -> None:
        """Stop checking a topology and unbind its queues. Does nothing if this was already done.

        Raises:
            BrokerError: If a queue cannot be unbound.
            UnsafeOperation: If retries depend on a binding.
        """
        if topology not in self._added:
            return
        if self._ownership is not Ownership.DECLARE or not queues:
            self.forget(topology)
            return
        for plan in topology.plans:
            if plan.queue in queues and plan.returns is not Return.QUEUE:
                raise UnsafeOperation(
                    f"{plan.queue} is not unbound: its retries return through an exchange"
                )
        async with self._lock:
            self.forget(topology)
            try:
                if self._connection is None:
                    raise ConnectionFailed("there is no connection to unbind queues")
                channel = await self._connection.open_channel()
                for binding in topology.bindings:
                    if binding.destination in queues and binding not in self.topology.bindings:
                        await channel.unbind(binding)
                await channel.close()
            except BaseException:  # including a cancellation
                self.add(topology)
                self._requested.set()
                raise

    def _join(self) -> None:
        whole = join_topologies((self._own, *self._added))
        self.topology = replace(whole, name=self._own.name, foreign=self._own.foreign)

    def _report_hazards(self, topology: Topology, version: BrokerVersion) -> None:
        """Emit warnings. Raises UnsafeOperation if there are errors that the application does not
        accept.
        """
        topology = replace(topology, queues=(*topology.queues, *self._foreign_queues))
        findings = check(topology, version)
        errors = [
            one
            for one in findings
            if one.severity is Severity.ERROR and one.rule not in self._accept
        ]
        if errors:
            listed = "\n".join(f"  {one.rule} at {one.place}: {one.explanation}" for one in errors)
            raise UnsafeOperation(
                f"{topology.name} is not started on RabbitMQ {version}:\n{listed}\n"
                "Correct these, or accept them by name."
            )
        for one in findings:
            if one.severity is not Severity.INFO:
                fields = {"rule": one.rule, "place": one.place, "text": one.explanation}
                self._environment.bus.emit("topology.warning", fields)

    async def usable(self, queue: str, connection: Connection, since: float) -> str:
        """Explain why a queue cannot be consumed. Returns an empty string if it can."""
        await self._restore(connection, since=since)
        return self.troubles.get(queue, "")

    async def look(self) -> Mapping[str, str]:
        """Restore missing objects and return any problems. Does nothing if called again within a
        second.
        """
        if self._connection is not None:
            with suppress(BrokerError):
                await self._restore(self._connection, since=self._time() - _RECHECK_S)
        return self.troubles

    def report(self, message: Message, error: BrokerError) -> None:
        """Request a check if a publish failed because an object is missing."""
        ours = any(message.exchange == one.name for one in self.topology.exchanges) or (
            not message.exchange
            and any(message.routing_key == one.name for one in self.topology.queues)
        )
        if not ours or not (isinstance(error, Returned) or isinstance(error.__cause__, NotFound)):
            return
        if self._ownership is Ownership.EXTERNAL:
            # Nothing is checked any more, so only report this once.
            name = message.exchange or message.routing_key
            if name not in self._reported:
                self._reported.add(name)
                why = f"{error}. This application does not create objects (ownership `external`)"
                self._environment.bus.emit("topology.unusable", {"object": name, "reason": why})
        else:
            self._unrouted.add(message.exchange)
            self._requested.set()

    async def attend(self, connection: Connection) -> None:
        """Run the requested checks until the connection is closed.

        A queue may be missing because it is just being replaced, so there is a delay before each
        check. The delay increases if there was nothing to restore.
        """
        fruitless = 0
        self._connection = connection
        while True:
            await self._requested.wait()
            await asyncio.sleep(
                self._environment.backoff.delay(fruitless + 1, self._environment.chance())
            )
            self._requested.clear()
            repaired = await self._restore(connection, since=self._time())
            fruitless = 0 if repaired else fruitless + 1

    async def watch(self, connection: Connection, every: float) -> None:
        """Check the topology periodically and create missing objects.

        The interval is randomised to keep processes from checking at the same time.
        """
        while self._ownership is not Ownership.EXTERNAL:
            await asyncio.sleep(every * (0.75 + self._environment.chance() / 2))
            with suppress(BrokerError):  # the connection was lost
                if self.troubles or not await is_complete(connection, self.topology):
                    await self._restore(connection, since=self._time())
                elif self._ownership is Ownership.DECLARE:
                    async with self._lock:
                        await rebind(connection, self.topology)

    async def _restore(self, connection: Connection, *, since: float) -> bool:
        """Create missing objects, unless this was already done after `since`.

        Returns True if any object was created.
        """
        async with self._lock:
            is_fresh = self._checked_on is connection and self._checked_at > since
            if is_fresh and not self._unrouted:
                return False
            began = self._time()
            unrouted, self._unrouted = self._unrouted, set()
            found = await restore(connection, self.topology, self._ownership, unrouted=unrouted)
            self._checked_on, self._checked_at = connection, began
            troubles = dict(found.troubles)
            new, self._new = self._new, set()
            for name in found.created:
                if name not in new:
                    self._environment.bus.emit("topology.restored", {"object": name})
            for name, reason in troubles.items():
                if self.troubles.get(name) != reason:
                    self._environment.bus.emit(
                        "topology.unusable", {"object": name, "reason": reason}
                    )
            self.troubles = troubles
            return bool(found.created)
