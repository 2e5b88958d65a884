"""What stands on the broker: dead-letter queues with their depth, type, limit and cost of looking.

With a management client the live topology is read; without one the declared topologies have to do,
and counts come over AMQP alone. Nothing here takes a message.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from hopback.broker.limits import (
    PolicyLedger,
    exactly,
    lifted_limits,
    restore_limits,
)
from hopback.broker.port import count
from hopback.errors import (
    AccessRefused,
    ManagementError,
    ManagementNotFound,
    ManagementRefused,
    NoSuch,
    NotFound,
    UnsafeOperation,
)
from hopback.ops.brokers.discovery import dead_letter_queues
from hopback.ops.brokers.snapshot import BrokerSnapshot
from hopback.ops.contract.values import Depth, Moment
from hopback.topology.model import Policy, joined
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from hopback.broker.management.readings import ConsumerReading, QueueReading
    from hopback.broker.port import Broker, Connection
    from hopback.clock import Clock
    from hopback.ops.brokers.discovery import DeadLetterQueue, Override
    from hopback.topology.model import Topology


_CONNECTION_NAME = "hopback dead letters"
_RECENT_S = 2.0  # seconds for which summaries of many queues share a snapshot
_MANY_QUEUES = 500  # finding the dead-letter queues among more of them takes over 50 ms
_RETURNED_S = 2.0  # longest wait for returned messages; RabbitMQ needed some milliseconds
_LOOK_AGAIN_S = 0.02  # seconds between two counts of them
_MINUS_ONE_SINCE = BrokerVersion(4, 0)


class LiveView(PolicyLedger, Protocol):
    """What a management client tells and does; the embedded broker has one, too."""

    async def queues(self, vhost: str) -> tuple[QueueReading, ...]:
        """Every queue with its numbers."""

    async def operator_policies(self, vhost: str) -> tuple[Policy, ...]:
        """The operator policies."""

    async def connection_names(self, vhost: str) -> frozenset[str]:
        """What the open connections call themselves."""

    async def consumers(self, vhost: str, queue: str) -> tuple[ConsumerReading, ...]:
        """The consumers of a queue with their tags and connections."""


class ManagedBroker:
    """Finds dead-letter queues and tells of them."""

    def __init__(
        self,
        broker: Broker,
        management: LiveView | None,
        vhost: str,
        topologies: Iterable[Topology],
        overrides: Iterable[Override],
        clock: Clock,
        answered: Callable[[], Awaitable[Iterable[Override]]] | None = None,
    ) -> None:
        """`answered` gives what people said of queues meanwhile; `overrides` hold over it."""
        self.broker = broker
        self._management = management
        self._vhost = vhost
        self._declared = tuple(topologies)
        self._overrides = tuple(overrides)
        self._answered = answered
        self._clock = clock
        self._version: BrokerVersion | None = None
        self._recent: BrokerSnapshot | None = None
        self._changes = 0
        """Policies changed by this object: a snapshot that was begun before such a change is not recent."""
        self._discovered: (
            tuple[tuple[Topology, BrokerVersion, tuple[Override, ...]], tuple[DeadLetterQueue, ...]]
            | None
        ) = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """A connection for a few questions."""
        connection = await self.broker.connect(_CONNECTION_NAME)
        self._version = connection.version
        try:
            yield connection
        finally:
            await connection.close()

    async def snapshot(self, *, count: str = "") -> BrokerSnapshot:
        """What stands where, now; with `count`, also how many messages that dead-letter queue has.

        NoSuch if there is no such queue, UnsafeOperation if it is not known how many it has.
        """
        version, changes = self._version, self._changes
        if version is None:
            async with self.connected() as connection:
                version = connection.version
        live, operators = None, tuple[Policy, ...]()
        topology = joined(self._declared)
        if self._management is not None:
            live = await self._management.live_topology(self._vhost)
            topology = replace(joined((live, *self._declared)), policies=live.policies)
            operators = await self._operators(self._management)
        answered = () if self._answered is None else await self._answered()
        overrides = (*answered, *self._overrides)
        known = self._discovered
        if known is not None and known[0] == (topology, version, overrides):
            found = known[1]
        else:
            find = partial(dead_letter_queues, topology, version=version, overrides=overrides)
            # Many queues take a second of CPU: other requests get their turns meanwhile.
            is_large = len(topology.queues) > _MANY_QUEUES
            found = await asyncio.to_thread(find) if is_large else find()
            self._discovered = (topology, version, overrides), found
        snapshot = BrokerSnapshot(
            topology,
            version,
            self._clock.now(),
            live,
            self._declared,
            operators,
            found,
        )
        if changes == self._changes:
            self._recent = snapshot
        if not count:
            return snapshot
        snapshot.one(count)
        depth, _ = await self.depth(count)
        if depth.ready is None:
            raise UnsafeOperation(
                f"it is not known how many messages {count!r} has: grant the user `configure` on it, which"
                " RabbitMQ 4.3 wants for that question, or give the management address"
            )
        return replace(snapshot, ready=depth.ready, consumers=depth.consumers or 0)

    async def recent_snapshot(self) -> BrokerSnapshot:
        """Return the last snapshot if it is at most two seconds old, else a new one."""
        recent = self._recent
        if recent is not None and 0 <= self._clock.now() - recent.at < _RECENT_S:
            return recent
        return await self.snapshot()

    async def connection_names(self) -> frozenset[str] | None:
        """What the open connections call themselves; None where nobody tells."""
        if self._management is None:
            return None
        try:
            return await self._management.connection_names(self._vhost)
        except ManagementRefused:
            return None

    @property
    def is_managed(self) -> bool:
        """Whether there is a management API to ask."""
        return self._management is not None

    async def consumers_of(self, queue: str) -> tuple[ConsumerReading, ...]:
        """The consumers of a queue as management names them; none where it cannot."""
        if self._management is None:
            return ()
        try:
            return await self._management.consumers(self._vhost, queue)
        except ManagementError:
            return ()

    async def _operators(self, management: LiveView) -> tuple[Policy, ...]:
        """Operator policies; who may not list them learns from each queue what holds for it."""
        try:
            return await management.operator_policies(self._vhost)
        except ManagementRefused:
            readings = await management.queues(self._vhost)
            return tuple(
                Policy(each.operator_policy, exactly(each.queue.name), each.effective_policy)
                for each in readings
                if each.operator_policy and each.effective_policy
            )

    async def readings(self) -> dict[str, QueueReading] | None:
        """Every queue as the management API tells of it; None where there is none."""
        if self._management is None:
            return None
        return {each.queue.name: each for each in await self._management.queues(self._vhost)}

    async def depths(
        self, names: Iterable[str], readings: dict[str, QueueReading] | None
    ) -> dict[str, tuple[Depth, QueueReading | None]]:
        """The depth of each, by these readings where there are any; what is missing is left out."""
        wanted = tuple(names)
        if readings is not None:
            return {
                name: (_depth_of(readings[name]), readings[name])
                for name in wanted
                if name in readings
            }
        found: dict[str, tuple[Depth, QueueReading | None]] = {}
        async with self.connected() as connection:
            for name in wanted:
                counted = await self.counted(connection, name)
                if counted is not None:
                    found[name] = counted, None
        return found

    async def wait_until_ready(self, queue: str, least: int) -> None:
        """Wait until that many messages are ready, at most 2 s: another client may have taken some.

        A quorum queue returns the messages of a closed channel some time after it has confirmed the close.
        A consumer that begins meanwhile would get the messages behind them.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _RETURNED_S
        async with self.connected() as connection:
            while loop.time() < until:
                found = await self.counted(connection, queue)
                if found is None or found.ready is None or found.ready >= least:
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def depth(self, name: str) -> tuple[Depth, QueueReading | None]:
        """The exact depth of one queue; what only management tells beside it. NoSuch if it is gone."""
        async with self.connected() as connection:
            counted = await self.counted(connection, name)
        if counted is None:
            raise NoSuch("queue", name, "it is known, but it is not on the broker")
        if self._management is None:
            return counted, None
        try:
            reading = await self._management.queue(self._vhost, name)
        except ManagementNotFound:
            return counted, None
        if counted.ready is None:
            return _depth_of(reading), reading
        counts = reading.counts
        complete = structs.replace(counted, unacked=counts.unacked, held_back=counts.held_back)
        return complete, reading

    async def counted(self, connection: Connection, name: str) -> Depth | None:
        """What AMQP tells of a queue: exact, and None if there is none of that name."""
        channel = await connection.open_channel()
        now = self._clock.now()
        try:
            state = await count(channel, name)
        except NotFound:
            return None
        except AccessRefused:
            return Depth(None, None, None, "refused", Moment(now))
        await channel.close()
        return Depth(state.messages, None, state.consumers, "amqp", Moment(now))

    def is_lifted(self, snapshot: BrokerSnapshot, name: str) -> bool:
        """Whether a policy of ours lifts the queue's limit."""
        return any(limit.queue == name for limit in lifted_limits(snapshot.topology.policies))

    async def lift(self, snapshot: BrokerSnapshot, name: str) -> str:
        """Set that policy; its name. UnsafeOperation if there is none that helps."""
        policy = snapshot.lifting_policy(name)
        if isinstance(policy, str) or self._management is None:
            raise UnsafeOperation(f"the delivery limit of {name!r} cannot be lifted: {policy}")
        await self._management.put_policy(self._vhost, policy)
        self._forget_recent()
        return policy.name

    async def restore(self, name: str) -> None:
        """Take that policy away; none there is no error.

        UnsafeOperation if a message came back so often that the limit would soon remove it, or if
        there is no management API to take it away by.
        """
        if self._management is None:
            raise UnsafeOperation(
                f"the delivery limit of {name!r} cannot be restored: policies are changed by the"
                " management API, and no address of it is known"
            )
        async with self.connected() as connection:
            await restore_limits(connection, self._management, self._vhost, [name])
        self._forget_recent()

    def _forget_recent(self) -> None:
        self._recent = None
        self._changes += 1


def _depth_of(reading: QueueReading) -> Depth:
    counts = reading.counts
    return Depth(
        counts.ready,
        counts.unacked,
        counts.consumers,
        counts.source,
        Moment(counts.read_at),
        counts.lag_s,
        counts.held_back,
    )
