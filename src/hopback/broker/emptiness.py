"""Delete queues that are proven to be empty.

There is no single request that proves this. A passive declare does not count unacked messages, nor
messages held by at-least-once dead-lettering. The same applies to deleting with `if-empty`, which
quorum queues do not even support. The management API counts all messages, but the totals of a
quorum queue are as old as its last tick.

The following steps are required. First, the queue must not receive any messages: it has no bindings
and no consumers, and all queues that send messages to it by name are idle. Second, all counts have
to be 0 for longer than the totals can be out of date. The queue is deleted right after the last
reading. If clients hold messages, we wait for them. After a time limit, an error with the names of
these clients is raised.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hopback.broker.port import Connection, count_now
from hopback.errors import (
    ManagementError,
    ManagementNotFound,
    PreconditionFailed,
    UnsafeOperation,
)
from hopback.topology.effective import effective_arguments
from hopback.topology.expand import SHADOW, retry_queues
from hopback.topology.model import Queue, QueueType, Topology
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from hopback.broker.management.readings import QueueCounts, QueueReading
    from hopback.fields import FieldValue
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

WATCH_S = 15.0
"""Seconds for which every count must stay 0.

Measured on RabbitMQ 3.10.8, 4.0.5 and 4.3.6 with the default intervals, from the moment when 50
messages were taken until the counts showed them. Totals of quorum queues took up to 5.1 s, those of
classic queues were immediate. Statistics, the only source of held-back messages, took up to 9.9 s.
"""

PATIENCE_S = 60.0
"""Seconds to wait for clients that hold messages. This is more than the grace time of a consumer,
which is 30 s.
"""

_LOOK_EVERY_S = 1.0  # The management API updates its counts every 5 s.


class Ledger(Protocol):
    """The part of the management client used here. The embedded broker implements it as well."""

    async def totals(self, vhost: str) -> Mapping[str, QueueCounts]:
        """Count all messages of each queue, by name."""

    async def queue(self, vhost: str, name: str) -> QueueReading:
        """Read a queue with its statistics. Held-back messages are not available anywhere else."""

    async def live_topology(self, vhost: str) -> Topology:
        """Read all objects and policies of the broker."""

    async def holders(self, vhost: str, queue: str) -> tuple[str, ...]:
        """Describe the clients that may hold messages of this queue."""


def feeders(
    queue: str, live: Topology, plans: Iterable[Plan] = (), version: BrokerVersion | None = None
) -> tuple[Queue, ...]:
    """Find the queues that send messages to this queue by name. Removing bindings does not stop
    them.

    The broker sends dead letters through the default exchange, and the consumers of a plan publish
    failed messages to its retry and dead-letter queues. If dead letters keep their routing key, the
    queue is included if its bindings accept this queue's name as a routing key.
    """
    by_plan = {
        plan.queue
        for plan in plans
        if queue == plan.parking.queue or queue in dict(retry_queues(plan))
    }
    return tuple(
        each
        for each in live.queues
        if each.name != queue
        and (each.name in by_plan or _dead_letters_to(queue, each, live, version))
    )


def _dead_letters_to(
    queue: str, source: Queue, live: Topology, version: BrokerVersion | None
) -> bool:
    told = effective_arguments(source, live.policies, version)
    if _keeps_key(told):
        # Only a migration publishes with the name of a shadow queue, and only to that queue.
        return not queue.endswith(SHADOW) and _may_receive(source.name, queue, live)
    exchange, key = (told.get(f"x-dead-letter-{part}") for part in ("exchange", "routing-key"))
    return exchange == "" and key == queue


def _keeps_key(told: Mapping[str, FieldValue]) -> bool:
    """Return True if dead letters are sent to the queue whose name is their original routing key."""
    return told.get("x-dead-letter-exchange") == "" and "x-dead-letter-routing-key" not in told


def _may_receive(queue: str, key: str, live: Topology) -> bool:
    """Return True if a binding of the queue accepts messages with this routing key."""
    bindings = [binding for binding in live.bindings if binding.destination == queue]
    bound = {binding.source for binding in bindings}
    exchanges = [each for each in (*PREDECLARED, *live.exchanges) if each.name in bound]
    table = RoutingTable(exchanges, [queue], bindings)
    return any(table.reachable(exchange.name, key) for exchange in exchanges)


@dataclass(frozen=True, slots=True)
class _Observation:
    """The queues that have ready messages, and the obstacles to deleting them."""

    ready: tuple[str, ...]
    obstacles: tuple[str, ...]
    held: tuple[str, ...]
    """The queues that cannot be deleted yet."""


class Emptiness:
    """Proves that queues are empty and deletes them.

    `plans` are used to find consumers that publish by name. `on_wait` is called once for each
    distinct obstacle.
    """

    def __init__(
        self,
        connection: Connection,
        management: Ledger | None,
        vhost: str = "/",
        *,
        plans: Iterable[Plan] = (),
        watch_s: float = WATCH_S,
        patience_s: float = PATIENCE_S,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> None:
        if management is None:
            raise UnsafeOperation(
                "no changes were made: only the management API shows whether a client still holds"
                " messages of a queue, so no queue is deleted. Specify it with --management URL"
            )
        self._connection = connection
        self._management: Ledger = management
        self._vhost = vhost
        self._plans = tuple(plans)
        self._watch_s = watch_s
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._waited_for: set[str] = set()

    async def refuse_busy(self, queues: Collection[str]) -> None:
        """Raise UnsafeOperation if the queues, or queues that send to them by name, are in use.

        This means that they have consumers or unacked messages. Has to be called before anything is
        changed.
        """
        live = await self._management.live_topology(self._vhost)
        busy = dict.fromkeys(queues, "")
        for queue in queues:
            for source, how, _ in self._sources(queue, live):
                busy.setdefault(source, how)
        await self._until_free(busy, clear_for_s=0.0, within_s=self._watch_s)

    async def refuse_fed(self, queues: Collection[str]) -> None:
        """Raise UnsafeOperation if messages in other queues may expire into these queues, and remain
        after `patience_s`. Has to be called before anything is changed.

        A missing queue is not checked. It loses such messages until it is declared again.
        """
        live = await self._management.live_topology(self._vhost)
        feeding = {
            source: how
            for queue in queues
            if live.queue(queue) is not None
            for source, how, empty in self._sources(queue, live)
            if empty and source not in queues
        }
        await self._until_free(feeding, clear_for_s=0.0, within_s=self._patience_s, empty=True)

    async def refuse_held(self, queues: Collection[str]) -> None:
        """Raise UnsafeOperation unless it is proven that the queues have no consumers and no held
        messages.
        """
        busy = dict.fromkeys(queues, "")
        await self._until_free(busy, clear_for_s=self._watch_s, within_s=self._watch_s)

    async def _until_free(
        self,
        queues: Mapping[str, str],
        *,
        clear_for_s: float,
        within_s: float,
        empty: bool = False,
    ) -> None:
        """Wait until the queues are not in use, or until they are also empty. The counts may be
        older than a settlement, so read them repeatedly.

        The values of `queues` are appended to the obstacles.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        since: float | None = None
        while True:
            totals = await self._management.totals(self._vhost)
            found = {
                name: [text + how for text in obstacles]
                for name, how in queues.items()
                if (obstacles := await self._in_use(name, totals, empty=empty))
            }
            now = loop.time()
            if not found:
                since = now if since is None else since
                if now - since >= clear_for_s:
                    return
            else:
                since = None
                listed = [text for obstacles in found.values() for text in obstacles]
                if now >= until:
                    remedy = (
                        "Start again when these queues are empty"
                        if empty
                        else "Stop them, close browse sessions, and start again"
                    )
                    raise UnsafeOperation(
                        f"no changes were made: {await self._told(listed, found)}. {remedy}"
                    )
                self._tell(listed)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def delete(
        self,
        queues: Collection[Queue],
        *,
        move: Callable[[str], Awaitable[object]],
    ) -> None:
        """Delete the queues as soon as they are proven to be empty. Queues that do not exist are
        skipped.

        `move` moves all ready messages of a queue somewhere else. It is called again if more
        messages become ready.

        Raises:
            UnsafeOperation: If a client still holds messages, or sends more of them, after `patience_s`.
        """
        if not queues:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        since: float | None = None
        while True:
            look = await self._look(queues)
            now = loop.time()
            if look.obstacles:
                since = None
                if now - began >= self._patience_s:
                    why = await self._told(look.obstacles, look.held)
                    raise UnsafeOperation(
                        f"after {now - began:.0f} s these are not empty for certain, so they were not"
                        f" deleted: {why}"
                    )
                # Messages that were just moved may still be included in totals, so don't report
                # obstacles too early.
                if now - began >= self._watch_s:
                    self._tell(look.obstacles)
                for name in look.ready:
                    await move(name)
            else:
                since = now if since is None else since
                if now - since >= self._watch_s:
                    refused = await self._delete(queues)
                    if refused is None:
                        return
                    if now - began >= self._patience_s:
                        raise UnsafeOperation(
                            f"{refused!r} read as empty and unused and was not so at the delete"
                        )
                    since = None
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _look(self, queues: Collection[Queue]) -> _Observation:
        live = await self._management.live_topology(self._vhost)
        # Read the totals first. Messages that were ready then are also included in the declares.
        totals = await self._management.totals(self._vhost)
        ready: list[str] = []
        obstacles: list[str] = []
        held: list[str] = []
        for queue in queues:
            if live.queue(queue.name) is None:
                continue
            state = await count_now(self._connection, queue.name)
            if state is not None and state.messages:
                ready.append(queue.name)
            found = await self._in_use(queue.name, totals, empty=True)
            found += [
                f"{queue.name!r} is bound to exchange {binding.source!r}"
                for binding in live.bindings
                if binding.destination == queue.name and not binding.to_exchange
            ]
            held += [queue.name] if found else []
            obstacles += found
            for source, how, empty in self._sources(queue.name, live):
                found = await self._in_use(source, totals, empty=empty)
                held += [source] if found else []
                obstacles += [text + how for text in found]
        return _Observation(
            tuple(ready), tuple(dict.fromkeys(obstacles)), tuple(dict.fromkeys(held))
        )

    def _sources(self, queue: str, live: Topology) -> Iterator[tuple[str, str, bool]]:
        """Yield the queues that send messages to this queue by name. Each comes with an explanation,
        and True if it has to be empty.
        """
        for source in feeders(queue, live, self._plans, self._connection.version):
            told = effective_arguments(source, live.policies, self._connection.version)
            # The TTL or a length limit may also remove messages from the queue, not just a
            # consumer.
            limited = "x-max-length" in told or "x-max-length-bytes" in told
            drops = limited and told.get("x-overflow", "drop-head") != "reject-publish"
            how = f"sends to {queue!r} by name"
            if _keeps_key(told):
                how = (
                    f"may send dead letters to {queue!r}, because it has no dead-letter-routing-key"
                    " (a policy can set one)"
                )
            yield source.name, f", and {how}", drops or "x-message-ttl" in told

    async def _in_use(
        self, queue: str, totals: Mapping[str, QueueCounts], *, empty: bool = False
    ) -> list[str]:
        """List the consumers and held messages of a queue. `empty` adds ready messages to the list."""
        state = await count_now(self._connection, queue)
        if state is None:
            return []
        try:
            held_back = (await self._management.queue(self._vhost, queue)).counts.held_back or 0
        except ManagementNotFound:
            return []
        found = [f"{queue!r} has {state.consumers} consumers"] if state.consumers else []
        counts = totals.get(queue)
        if counts is None or counts.messages is None or counts.ready is None:
            # There are no counts before the first tick of a new queue or a restarted broker.
            return [*found, f"the broker does not report the number of messages in {queue!r}"]
        if counts.unacked:
            found.append(f"{counts.unacked} messages of {queue!r} are held unacked")
        # Held-back messages are part of the total. Their own count comes from older statistics.
        held_back = max(held_back, counts.messages - counts.ready - (counts.unacked or 0))
        if held_back > 0:
            found.append(f"{held_back} messages of {queue!r} are held back by dead-lettering")
        if empty and not found and (counts.ready or state.messages):
            found.append(f"{queue!r} has {max(counts.ready, state.messages)} messages")
        return found

    def _tell(self, obstacles: Iterable[str]) -> None:
        for text in obstacles:
            if text not in self._waited_for:
                self._waited_for.add(text)
                self._on_wait(f"waiting: {text}")

    async def _told(self, obstacles: Collection[str], held: Collection[str]) -> str:
        """Combine the obstacles with the clients that hold messages, if the broker lists them."""
        who: list[str] = []
        for queue in held:
            try:
                who += await self._management.holders(self._vhost, queue)
            except ManagementError:  # no permission to list them
                break
        named = f". Held by: {'; '.join(dict.fromkeys(who))}" if who else ""
        return "; ".join(obstacles) + named

    async def _delete(self, queues: Collection[Queue]) -> str | None:
        """Delete the queues. Stops at a queue that is not empty and unused, and returns its name."""
        for queue in queues:
            state = await count_now(self._connection, queue.name)
            if state is None:
                continue
            if state.messages or state.consumers:
                return queue.name
            # Quorum queues respond to any condition with 540.
            classic = queue.type is QueueType.CLASSIC
            channel = await self._connection.open_channel()
            try:
                await channel.delete_queue(queue.name, if_unused=classic, if_empty=classic)
            except PreconditionFailed:
                return queue.name
            await channel.close()
        return None
