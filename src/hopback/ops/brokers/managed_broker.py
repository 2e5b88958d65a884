"""A broker that operators manage, with its connection, its management API and its snapshots."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from msgspec import structs

from hopback.broker.limits import PolicyLedger, exact_pattern, find_lifted_limits, restore_limits
from hopback.broker.port import Broker, Channel, Connection, count
from hopback.clock import Clock, SystemClock
from hopback.errors import (
    AccessRefused,
    BrokerError,
    ManagementError,
    ManagementNotFound,
    ManagementRefused,
    NoSuch,
    NotFound,
    QueueBusy,
    UnsafeOperation,
)
from hopback.ops.brokers.discovery import DeadLetterQueue, Override, dead_letter_queues
from hopback.ops.brokers.recent import Recent
from hopback.ops.brokers.snapshot import BrokerSnapshot
from hopback.ops.contract.values import Depth, Moment
from hopback.topology.model import Policy, Topology, join_topologies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from hopback.broker.management.readings import (
        ChannelReading,
        ConsumerReading,
        QueueCounts,
        QueueReading,
    )
    from hopback.version import BrokerVersion


_QUERY_CONNECTION = "hopback dead letters"
_FRESH_S = 2.0  # seconds for which pages and summaries use the same snapshot
# queues. It takes more than 50 ms to find the dead-letter queues among more than this.
_MANY_QUEUES = 500
# seconds to wait for requeued messages, which RabbitMQ normally returns within milliseconds
_RETURNED_S = 2.0
_LOOK_AGAIN_S = 0.02  # seconds between two counts of the requeued messages
# seconds to wait for another request that reads the same queue. Most of them end earlier.
_OTHER_READER_S = 10.0


class ManagementApi(PolicyLedger, Protocol):
    """The management API of RabbitMQ or of the embedded broker."""

    async def queues(self, vhost: str) -> tuple[QueueReading, ...]:
        """Return all queues with their counts."""

    async def totals(self, vhost: str) -> Mapping[str, QueueCounts]:
        """Return the current counts of all queues. They are not read from the statistics, which are
        up to 5 s old.
        """

    async def live_topology(
        self, vhost: str, queues: Iterable[QueueReading] | None = None
    ) -> Topology:
        """Return the topology of the broker. `queues` can be passed if they have just been read."""

    async def operator_policies(self, vhost: str) -> tuple[Policy, ...]: ...

    async def connection_names(self, vhost: str) -> frozenset[str]:
        """Return the names that clients have given to their open connections."""

    async def consumers(self, vhost: str, queue: str) -> tuple[ConsumerReading, ...]:
        """Return the consumers of a queue, including their tags and connections."""

    async def channels(self, vhost: str) -> tuple[ChannelReading, ...]:
        """Return all channels that consume or hold unacked messages."""


class ManagedBroker:
    """One virtual host of a broker, and everything that operators need to know about it.

    `name` is the name of the broker in the settings. It is empty if there is only one broker.
    Without `management`, only the queues of the declared `topologies` are known, and messages are
    counted over AMQP. `overrides` correct or add dead-letter queues.

    All queries share one connection, which is opened when it is first needed and reopened when it
    is lost.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "",
        management: ManagementApi | None = None,
        vhost: str = "/",
        topologies: Iterable[Topology] = (),
        overrides: Iterable[Override] = (),
        clock: Clock | None = None,
    ) -> None:
        self.broker = broker
        self.name = name
        self.management = management
        self.vhost = vhost
        self.clock: Clock = clock or SystemClock()
        self.recorded_overrides: Callable[[], Awaitable[tuple[Override, ...]]] = _no_overrides
        """A function that reads the overrides recorded by operators. `overrides` take precedence
        over them.
        """
        self._declared = tuple(topologies)
        self._overrides = tuple(overrides)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._sharing: list[str] = []
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._version: BrokerVersion | None = None
        self._snapshots = Recent(self._read, _FRESH_S, self.clock)
        self._discovered: (
            tuple[tuple[Topology, BrokerVersion, tuple[Override, ...]], tuple[DeadLetterQueue, ...]]
            | None
        ) = None

    @property
    def address(self) -> str:
        """The address of the broker without a password."""
        return self.broker.address

    @property
    def journal_name(self) -> str:
        """The name of this virtual host in the journal."""
        return f"{self.address} {self.vhost}"

    async def close(self) -> None:
        """Close the query connection. The next query opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def query(self, name: str = _QUERY_CONNECTION) -> AsyncIterator[Connection]:
        """Share the query connection. Channels are closed when the context exits.

        `connection_names` includes `name` until then.
        """
        connection = self._connection or await self._connect_again(None)
        shared = _SharedConnection(connection, self._open_channel)
        self._sharing.append(name)
        try:
            try:
                yield shared
            finally:
                await shared.close()
        finally:
            self._sharing.remove(name)

    @asynccontextmanager
    async def new_connection(self, name: str) -> AsyncIterator[Connection]:
        """Open a separate connection, which is used to publish messages or to read a whole queue."""
        connection = await self.broker.connect(name)
        try:
            yield connection
        finally:
            await connection.close()

    async def _open_channel(self) -> Channel:
        connection = self._connection
        if connection is not None:
            with suppress(BrokerError):
                return await connection.open_channel()
        # This is the first query, or the connection was lost.
        return await (await self._connect_again(connection)).open_channel()

    async def _connect_again(self, lost: Connection | None) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection is lost:
                if lost is not None:
                    await lost.close()
                self._connection = await self.broker.connect(_QUERY_CONNECTION)
                self._version = self._connection.version
            return self._connection

    async def version(self) -> BrokerVersion:
        """Return the version that the broker reported when it was last connected."""
        if self._version is None:
            self._version = (await self._connect_again(None)).version
        return self._version

    async def snapshot(self, *, count: str = "") -> BrokerSnapshot:
        """Read the broker. If `count` is set, also count the messages and consumers of this
        dead-letter queue.

        Raises NoSuch if the queue does not exist, and UnsafeOperation if its messages cannot be
        counted.
        """
        snapshot = await self._snapshots.compute()
        if not count:
            return snapshot
        snapshot.dead_letter_queue(count)
        ready, consumers = await self.count_ready(count)
        return replace(snapshot, ready=ready, consumers=consumers)

    async def recent_snapshot(self) -> BrokerSnapshot:
        """Return the last snapshot, or read the broker again if it is older than two seconds.

        It can take seconds to read a large broker. For this reason, only the first snapshot is
        awaited, and a newer one only for a short time. Raises BrokerError if the broker is
        unavailable.
        """
        return await self._snapshots.get()

    async def wait_for_snapshot(self, seconds: float | None) -> None:
        """Wait until the broker was read or reading has failed. Raises NotReadYet after `seconds`."""
        await self._snapshots.wait_for_first(seconds)

    async def _read(self) -> BrokerSnapshot:
        version, at = await self.version(), self.clock.now()
        live, operators, readings = None, tuple[Policy, ...](), None
        topology = join_topologies(self._declared)
        if self.management is not None:
            queues = await self.management.queues(self.vhost)
            readings = {each.queue.name: each for each in queues}
            live = await self.management.live_topology(self.vhost, queues)
            topology = replace(join_topologies((live, *self._declared)), policies=live.policies)
            operators = await self._operator_policies(self.management, queues)
        overrides = (*await self.recorded_overrides(), *self._overrides)
        found = await self._discover(topology, version, overrides)
        return BrokerSnapshot(
            topology, version, at, live, self._declared, operators, found, readings=readings
        )

    async def _discover(
        self, topology: Topology, version: BrokerVersion, overrides: tuple[Override, ...]
    ) -> tuple[DeadLetterQueue, ...]:
        known = self._discovered
        if known is not None and known[0] == (topology, version, overrides):
            return known[1]
        find = partial(dead_letter_queues, topology, version=version, overrides=overrides)
        # This takes a second of CPU time for many queues, so use a thread to not delay other
        # requests.
        is_large = len(topology.queues) > _MANY_QUEUES
        found = await asyncio.to_thread(find) if is_large else find()
        self._discovered = (topology, version, overrides), found
        return found

    async def _operator_policies(
        self, management: ManagementApi, queues: Iterable[QueueReading]
    ) -> tuple[Policy, ...]:
        """Return the operator policies. If the user may not list them, use those that the queues report."""
        try:
            return await management.operator_policies(self.vhost)
        except ManagementRefused:
            return tuple(
                Policy(each.operator_policy, exact_pattern(each.queue.name), each.effective_policy)
                for each in queues
                if each.operator_policy and each.effective_policy
            )

    async def connection_names(self) -> frozenset[str] | None:
        """Return the names that clients have given to their open connections, or None if they are
        unknown.
        """
        if self.management is None:
            return None
        try:
            return await self.management.connection_names(self.vhost) | frozenset(self._sharing)
        except ManagementRefused:
            return None

    async def consumers_of(self, queue: str) -> tuple[ConsumerReading, ...]:
        """Return the consumers of a queue that the management API lists. If it fails, there are none."""
        if self.management is None:
            return ()
        try:
            return await self.management.consumers(self.vhost, queue)
        except ManagementError:
            return ()

    async def channels(self) -> tuple[ChannelReading, ...]:
        """Return all channels that consume or hold unacked messages. If the management API fails,
        there are none.
        """
        if self.management is None:
            return ()
        try:
            return await self.management.channels(self.vhost)
        except ManagementError:
            return ()

    async def totals(self) -> Mapping[str, QueueCounts]:
        """Return the counts of all queues, which are exact for classic queues. Without management
        there are none.
        """
        return {} if self.management is None else await self.management.totals(self.vhost)

    async def depths(
        self, names: Iterable[str], readings: Mapping[str, QueueReading] | None
    ) -> dict[str, Depth]:
        """Return the depths of the queues that exist. They are counted over AMQP unless readings
        are given.
        """
        if readings is not None:
            return {name: _depth_of(readings[name]) for name in names if name in readings}
        counted = {name: await self.count_now(name) for name in names}
        return {name: depth for name, depth in counted.items() if depth is not None}

    @asynccontextmanager
    async def read_alone(self, queue: str) -> AsyncIterator[None]:
        """Let one request of this process read a queue at a time. Others would miss the messages
        that it holds, and a quorum queue would not keep its order.

        Raises QueueBusy if another request reads the queue for several seconds.
        """
        lock = self._reading.setdefault(queue, asyncio.Lock())
        was_read = lock.locked()
        try:
            async with asyncio.timeout(_OTHER_READER_S):
                await lock.acquire()
        except TimeoutError:
            raise QueueBusy(f"another request reads {queue!r} and holds its messages") from None
        try:
            if was_read:
                await self._wait_until_unconsumed(queue)
            yield
        finally:
            lock.release()

    async def _wait_until_unconsumed(self, queue: str) -> None:
        """Wait up to 2 s until a queue has no consumers. A quorum queue counts ended consumers until
        it has requeued their messages.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _RETURNED_S
        while loop.time() < until:
            found = await self.count_now(queue)
            if found is None or not found.consumers:
                return
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def wait_until_ready(self, queue: str, least: int) -> None:
        """Wait up to 2 s until at least `least` messages are ready. Other clients may have taken
        some of them.

        When a channel is closed, a quorum queue requeues its messages some time after the broker
        has confirmed the close. A consumer that starts earlier would receive other messages first.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _RETURNED_S
        while loop.time() < until:
            found = await self.count_now(queue)
            if found is None or found.ready is None or found.ready >= least:
                return
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def depth(self, name: str) -> Depth:
        """Return the exact depth of a queue. Raises NoSuch if the queue no longer exists."""
        counted = await self.count_now(name)
        if counted is None:
            raise NoSuch("queue", name, "it is known, but it is not on the broker")
        reading = await self.read_queue(name)
        if reading is None:
            return counted
        if counted.ready is None:
            return _depth_of(reading)
        counts = reading.counts
        return structs.replace(counted, unacked=counts.unacked, held_back=counts.held_back)

    async def count_ready(self, name: str) -> tuple[int, int]:
        """Return the number of ready messages and the number of consumers.

        Raises UnsafeOperation if they are unknown.
        """
        depth = await self.depth(name)
        if depth.ready is None:
            raise UnsafeOperation(
                f"the number of messages in {name!r} is unknown: grant the user `configure` on the queue,"
                " which RabbitMQ 4.3 requires for a passive declare, or specify the management address"
            )
        return depth.ready, depth.consumers or 0

    async def count_now(self, name: str) -> Depth | None:
        """Count the messages of a queue over AMQP. Returns None if the queue does not exist."""
        async with self.query() as connection:
            channel, now = await connection.open_channel(), self.clock.now()
            try:
                state = await count(channel, name)
            except NotFound:
                return None
            except AccessRefused:
                return Depth(None, None, None, "refused", Moment(now))
        return Depth(state.messages, None, state.consumers, "amqp", Moment(now))

    async def read_queue(self, name: str) -> QueueReading | None:
        """Read a queue with its current rates. Returns None without management or if it does not exist."""
        if self.management is None:
            return None
        try:
            return await self.management.queue(self.vhost, name)
        except ManagementNotFound:
            return None

    def is_lifted(self, snapshot: BrokerSnapshot, name: str) -> bool:
        """Return whether Hopback has set a policy that lifts the delivery limit of the queue."""
        return any(limit.queue == name for limit in find_lifted_limits(snapshot.topology.policies))

    async def lift(self, snapshot: BrokerSnapshot, name: str) -> str:
        """Lift the delivery limit and return the name of the policy.

        Raises UnsafeOperation if a policy cannot lift it.
        """
        policy = snapshot.policy_to_lift(name)
        if isinstance(policy, str) or self.management is None:
            text = f"the delivery limit of {name!r} cannot be lifted: {policy}"
            raise UnsafeOperation(text, can_lift=False)
        await self.management.put_policy(self.vhost, policy)
        self._snapshots.drop()
        return policy.name

    async def restore(self, name: str) -> None:
        """Delete the policy that lifts the delivery limit. It is not an error if there is none.

        Raises UnsafeOperation without management, if a message has used up half of the limit, or if
        a client holds messages.
        """
        if self.management is None:
            raise UnsafeOperation(
                f"cannot restore the delivery limit of {name!r} without the address of the management API,"
                " which changes policies"
            )
        async with self.query() as connection:
            await restore_limits(connection, self.management, self.vhost, [name])
        self._snapshots.drop()


class _SharedConnection:
    """The query connection for one caller. `close` only closes the channels that this caller opened."""

    def __init__(
        self,
        connection: Connection,
        open_channel: Callable[[], Awaitable[Channel]],
    ) -> None:
        self._connection = connection
        self._open_channel = open_channel
        self._channels: list[Channel] = []

    @property
    def version(self) -> BrokerVersion:
        return self._connection.version

    async def open_channel(self) -> Channel:
        channel = await self._open_channel()
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def wait_closed(self) -> BrokerError | None:
        return await self._connection.wait_closed()


async def _no_overrides() -> tuple[Override, ...]:
    return ()


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
