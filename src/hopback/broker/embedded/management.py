"""A management client for the embedded broker. Its values are delayed like RabbitMQ's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.embedded.timers import TICK_S
from hopback.broker.management.readings import (
    ChannelReading,
    ConsumerReading,
    QueueCounts,
    QueueReading,
)
from hopback.errors import ManagementError, ManagementNotFound
from hopback.topology.effective import effective_policy
from hopback.topology.model import Policy, Queue, QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.embedded.broker import EmbeddedBroker
    from hopback.broker.embedded.queue import LiveQueue


class EmbeddedManagement:
    """Provides the interface of the management client for the embedded broker.

    There is only one virtual host. Its name is ignored.
    """

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self.address: str = broker.address

    async def queues(self, _vhost: str = "/") -> tuple[QueueReading, ...]:
        return tuple(self._read(queue) for queue in self._broker.node.queues.values())

    async def queue(self, vhost: str, name: str) -> QueueReading:
        found = self._broker.node.queues.get(name)
        if found is None:
            raise ManagementNotFound(f"{self.address}: no queue {name!r} in {vhost!r}", status=404)
        return self._read(found)

    async def totals(self, _vhost: str = "/") -> dict[str, QueueCounts]:
        """Count the messages of each queue. For quorum queues, the counts are those of the last
        tick.
        """
        return {
            name: self._counts(live, exact=not live.is_quorum)
            for name, live in self._broker.node.queues.items()
        }

    async def holders(self, _vhost: str, queue: str) -> tuple[str, ...]:
        """Describe clients that consume from the queue or have unsettled deliveries of it."""
        found = []
        for session in self._broker.node.sessions:
            channels = session.channels.values()
            consumers = sum(
                each.queue.name == queue
                for channel in channels
                for each in channel.consumers.values()
            )
            unacked = sum(
                taken.source.name == queue and not taken.void
                for channel in channels
                for taken in channel.unacked.values()
            )
            if consumers or unacked:
                consumes = "consumes, " if consumers else ""
                found.append(f"{session.name!r}: {consumes}{unacked} unacked")
        return tuple(found)

    async def channels(self, _vhost: str = "/") -> tuple[ChannelReading, ...]:
        """List the channels that consume or have unsettled deliveries."""
        return tuple(
            ChannelReading(
                repr(session.name),
                session.name,
                session.user,
                sum(not taken.void for taken in channel.unacked.values()),
                session.opened_at,
                tuple((each.queue.name, each.tag) for each in channel.consumers.values()),
            )
            for session in self._broker.node.sessions
            for channel in session.channels.values()
            if channel.consumers or channel.unacked
        )

    async def consumers(self, _vhost: str, queue: str) -> tuple[ConsumerReading, ...]:
        """List the consumers of a queue with their tags and connections."""
        return tuple(
            ConsumerReading(each.tag, repr(session.name), session.user)
            for session in self._broker.node.sessions
            for channel in session.channels.values()
            for each in channel.consumers.values()
            if each.queue.name == queue
        )

    async def connection_names(self, _vhost: str = "/") -> frozenset[str]:
        """Return the names of the open connections, as set by the clients."""
        return frozenset(session.name for session in self._broker.node.sessions)

    async def live_topology(
        self, vhost: str = "/", _queues: Iterable[QueueReading] | None = None
    ) -> Topology:
        """Read all objects and policies of the broker. The topology does not have plans."""
        node = self._broker.node
        known = node.routing.exchanges.values()
        return Topology(
            name=vhost,
            exchanges=tuple(e for e in known if e.name and not e.name.startswith("amq.")),
            queues=tuple(_queue_of(queue) for queue in node.queues.values()),
            bindings=tuple(binding for binding in node.routing.bindings if binding.source),
            policies=await self.policies(vhost),
        )

    async def policies(self, _vhost: str = "/") -> tuple[Policy, ...]:
        return self._broker.node.policies.all()

    async def operator_policies(self, _vhost: str = "/") -> tuple[Policy, ...]:
        return self._broker.node.policies.all(operator=True)

    async def put_policy(self, _vhost: str, policy: Policy) -> None:
        try:
            self._broker.set_policy(policy)
        except ValueError as refused:
            raise ManagementError(str(refused), status=400) from refused

    async def delete_policy(self, _vhost: str, name: str) -> None:
        """Delete a policy. Does nothing if it does not exist."""
        self._broker.clear_policy(name)

    async def close(self) -> None:
        """Does nothing, because there is no connection."""

    def _read(self, live: LiveQueue) -> QueueReading:
        queue = _queue_of(live)
        policy = effective_policy(queue, self._broker.node.policies.all())
        return QueueReading(
            queue=queue,
            vhost="/",
            policy=None if policy is None else policy.name,
            effective_policy={} if policy is None else policy.definition,
            operator_policy=None,
            state="down" if live.down else "running",
            idle_since=None,
            counts=self._counts(live, exact=False),
        )

    def _counts(self, live: LiveQueue, *, exact: bool) -> QueueCounts:
        """Return the exact number of ready messages and the other counts as of the last tick."""
        now, last = live.ticks.exact(), live.ticks.last()
        # A message that was unacked at the last tick may be ready now. Don't count it twice.
        unacked = min(last.unacked, now.unacked)
        tally = now if exact else replace(last, ready=now.ready, unacked=unacked)
        return QueueCounts(
            tally.messages,
            tally.ready,
            tally.unacked,
            tally.held_back if live.is_quorum else None,
            tally.consumers,
            self._broker.node.now(),
            "embedded",
            0.0 if exact else TICK_S,
        )


def _queue_of(live: LiveQueue) -> Queue:
    arguments = {name: value for name, value in live.arguments.items() if name != "x-queue-type"}
    return Queue(
        live.name,
        QueueType.QUORUM if live.is_quorum else QueueType.CLASSIC,
        durable=live.durable,
        exclusive=live.owner is not None,
        auto_delete=live.auto_delete,
        arguments=arguments,
    )
