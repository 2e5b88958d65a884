"""What stands on the broker: dead-letter queues with their depth, type, limit and cost of looking.

With a management client the live topology is read; without one the declared topologies have to do,
and counts come over AMQP alone. Nothing here takes a message.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from hopback.broker.limits import (
    DLQ_LIMIT_PREFIX,
    PolicyLedger,
    exactly,
    lifted_limits,
    lifting,
    restore_limits,
)
from hopback.broker.port import count
from hopback.designs import DESIGNS, Design
from hopback.errors import (
    AccessRefused,
    ManagementError,
    ManagementNotFound,
    ManagementRefused,
    NoSuch,
    NotFound,
    UnsafeOperation,
)
from hopback.ops.brokers.discovery import cost_of_looking, dead_letter_queues
from hopback.ops.contract.values import Depth, Moment
from hopback.topology.effective import delivery_limit, effective_arguments, effective_topology
from hopback.topology.expand import retry_queues
from hopback.topology.model import Policy, Queue, QueueType, joined
from hopback.topology.routing import PREDECLARED, RoutingTable
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from hopback.broker.management.readings import ConsumerReading, QueueReading
    from hopback.broker.port import Broker, Connection
    from hopback.clock import Clock
    from hopback.ops.brokers.discovery import DeadLetterQueue, Override
    from hopback.ops.contract.values import Cost
    from hopback.topology.hazards.rule import Finding
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


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """What is known of the broker at one moment, of which each reader asks for a part.

    `live` is what was read from it, None where only declarations are known. `ready` is how many messages
    the queue has that was to be counted, 0 if none was, and `consumers` how many consumers. `readings`
    and `findings` are there where the whole broker is shown.
    """

    topology: Topology
    version: BrokerVersion
    at: float
    live: Topology | None = None
    declared: tuple[Topology, ...] = ()
    operator_policies: tuple[Policy, ...] = ()
    dead_letter_queues: tuple[DeadLetterQueue, ...] = ()
    ready: int = 0
    consumers: int = 0
    readings: Mapping[str, QueueReading] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def one(self, name: str) -> DeadLetterQueue:
        """The dead-letter queue of that name; NoSuch if there is none."""
        found = next((each for each in self.dead_letter_queues if each.name == name), None)
        if found is None:
            exists = self.topology.queue(name) is not None
            hint = "it is a queue, but nothing says that it holds dead letters" if exists else ""
            raise NoSuch("dead-letter queue", name, hint)
        return found

    def effective(self, name: str) -> Queue | None:
        """The queue as arguments, policy and operator policy make it; None if it is not known."""
        queue = self.topology.queue(name)
        if queue is None:
            return None
        merged = effective_arguments(queue, self.topology.policies, self.version)
        with_policy = replace(queue, arguments=merged)
        return replace(
            queue,
            arguments=effective_arguments(with_policy, self.operator_policies, self.version),
        )

    def cost(self, name: str, *, killed: bool = False) -> Cost:
        """What one browse session costs each message of a queue, or one that is `killed`, as a job may be."""
        lifting = self.lifting_policy(name)
        why_not = lifting if isinstance(lifting, str) else ""
        return cost_of_looking(
            self.effective(name), self.version, why_not_lifted=why_not, killed=killed
        )

    def lifting_policy(self, name: str) -> Policy | str:
        """The policy that would lift the limit, or why none can."""
        queue = self.topology.queue(name)
        if self.live is None:
            return "there is no management address to set a policy with"
        if queue is None or queue.type is not QueueType.QUORUM:
            return "only a quorum queue on the broker has a delivery limit"
        if self.version < _MINUS_ONE_SINCE:
            return f"RabbitMQ {self.version} has no policy that means no limit"
        policy = lifting(DLQ_LIMIT_PREFIX, queue, self.topology.policies)
        others = (one for one in self.topology.policies if one.name != policy.name)
        after = replace(self, topology=replace(self.topology, policies=(policy, *others)))
        lifted = after.effective(name)
        if lifted is not None and delivery_limit(lifted, self.version) is not None:
            return (
                "the limit is an argument of the queue or an operator policy, which no policy lifts"
            )
        return policy

    def is_classic(self, name: str) -> bool:
        """Whether it is known to be a classic queue."""
        queue = self.effective(name)
        return queue is not None and queue.type is QueueType.CLASSIC

    def design_of(self, queue: str) -> Design | None:
        """The documented design whose dead letters rest in this queue, if it was declared here."""
        for topology in self.declared:
            if any(plan.parking.queue == queue for plan in topology.plans):
                return DESIGNS.get(topology.name)
        return None

    def table(self) -> RoutingTable | None:
        """The routes, where they were read from the broker; declared ones may not be all."""
        if self.live is None:
            return None
        return _table(self.live, self.version)

    def routed(self, exchange: str, routing_key: str) -> tuple[str, ...]:
        """The queues a publish reaches; KeyError for a missing exchange."""
        names = (queue.name for queue in self.topology.queues)
        exchanges = (*PREDECLARED, *self.topology.exchanges)
        return RoutingTable(exchanges, names, self.topology.bindings).route(exchange, routing_key)

    def routes(self) -> RoutingTable:
        """The routes that are known at all, read from the broker or declared."""
        return _table(self.topology, self.version)


class LiveQueues:
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


def _table(topology: Topology, version: BrokerVersion) -> RoutingTable:
    snapshot = effective_topology(topology, version)
    names = (queue.name for queue in snapshot.queues)
    return RoutingTable((*PREDECLARED, *snapshot.exchanges), names, snapshot.bindings)


def queues_that_hold_back(readings: Mapping[str, QueueReading]) -> tuple[QueueReading, ...]:
    """Return the queues whose dead-lettering holds messages back, by name."""
    holding = (reading for reading in readings.values() if reading.counts.held_back)
    return tuple(sorted(holding, key=lambda reading: reading.queue.name))


def held_back_for(
    found: DeadLetterQueue, holding: Iterable[QueueReading]
) -> tuple[tuple[str, int], ...]:
    """Return the counts of this dead-letter queue, its origins and their retry queues."""
    names = {found.name, *found.origins}
    waiting = {name for plan in found.plans for name, _ in retry_queues(plan)}
    return tuple(
        (reading.queue.name, reading.counts.held_back or 0)
        for reading in holding
        if reading.queue.name in names | waiting
        or reading.queue.arguments.get("x-dead-letter-routing-key") in names
    )


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
