"""Replace queues that have a different type or different arguments, and keep their messages.

RabbitMQ does not support changing the type or the arguments of a queue. Queues are therefore
replaced with the help of shadow queues:

1. Each shadow is declared and gets the same bindings as its queue. Then the bindings of the queue are
   removed, so that new messages are routed to the shadow. Messages published in between are routed to
   both queues. All messages of the queue are moved to the shadow: they are published, confirmed and then
   acked.
2. When all queues are proven to be empty, they are deleted and declared with the new settings. Retry
   queues are emptied together with their main queue, so that no messages return to the main queue.
3. All messages are moved back from the shadows, the bindings are restored and those of the shadows are
   removed. Messages that have arrived in the meantime are moved as well. Once the shadows are proven to
   be empty, they are deleted.

All steps can be repeated, and the broker's state shows which ones are done. To resume an
interrupted migration, start it again. Attempt counts are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hopback.broker.declare import declare, own_exchanges
from hopback.broker.emptiness import PATIENCE_S, WATCH_S, Emptiness, Ledger
from hopback.broker.port import Channel, Connection, count, count_now
from hopback.errors import BrokerError, PreconditionFailed, UnsafeOperation
from hopback.headers import Mark, properties_for_move, retry_properties
from hopback.message import Delivery, Message, Properties
from hopback.policy.reading import failures_so_far
from hopback.text import count_of
from hopback.topology.diff import diff
from hopback.topology.effective import effective_arguments
from hopback.topology.expand import NO_DELIVERY_LIMIT, SHADOW, retry_queues
from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
from hopback.topology.plan import Count, Plan
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hopback.topology.model import Policy


# Maximum number of unconfirmed messages. It hides the latency of confirms. A crash duplicates at
# most this number of messages.
_IN_FLIGHT = 200
# Seconds between polls. AMQP has no notification for an empty queue.
_LOOK_AGAIN_S = 0.05


async def move_all(
    connection: Connection,
    source: str,
    target: str,
    rewrite: Callable[[Delivery], Properties],
) -> int:
    """Move all messages of the source and return how many were moved.

    `rewrite` returns the properties to publish a message with. If a publish fails, the first error
    is raised. Messages that were not confirmed are not acked, and the broker requeues them in order
    when the channel is closed.
    """
    taking, giving = await connection.open_channel(), await connection.open_channel()
    try:
        move = _Move(taking, giving, source, target, rewrite)
        await taking.qos(_IN_FLIGHT)
        while True:
            tag = await taking.consume(source, move.take, on_cancel=move.on_cancel)
            await move.until_quiet()
            # Deliveries in transit are not part of any count. They have arrived once the cancel is
            # confirmed. We have to settle them before closing the channel, or the broker would
            # requeue messages that were already published.
            await taking.cancel(tag)
            await move.until_settled()
            # Acks are not confirmed. After another round trip, we know that the broker has read it.
            if not (await count(taking, source)).messages:
                return move.moved
    finally:
        await taking.close()
        await giving.close()


@dataclass(slots=True)
class _Move:
    taking: Channel
    giving: Channel
    source: str
    target: str
    rewrite: Callable[[Delivery], Properties]
    moved: int = 0
    in_flight: int = 0
    failure: BrokerError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, delivery: Delivery) -> None:
        """Publish a delivery. If a publish has failed, leave it unsettled."""
        if self.failure is not None:
            return
        try:
            message = Message("", self.target, delivery.body, self.rewrite(delivery))
            fate = self.giving.publish(message)
        except Exception as error:  # the message remains in the source
            self._fail(
                BrokerError(f"a message of {self.source!r} cannot be published again: {error}")
            )
            return
        self.in_flight += 1
        fate.add_done_callback(lambda done: self._settle(done, delivery.tag))

    def on_cancel(self, _tag: str) -> None:
        """Fail the move, because the queue or its node is gone."""
        self._fail(BrokerError("the broker ended the consumer of the queue that is being moved"))

    def _settle(self, fate: asyncio.Future[None], tag: int) -> None:
        self.in_flight -= 1
        error = None if fate.cancelled() else fate.exception()
        if fate.cancelled() or error is not None:
            self._fail(
                error if isinstance(error, BrokerError) else BrokerError(f"not confirmed: {error}")
            )
            return
        try:
            self.taking.ack(tag)
            self.moved += 1
        except BrokerError as lost:
            self._fail(lost)
        self.changed.set()

    def _fail(self, error: BrokerError) -> None:
        self.failure = self.failure or error
        self.changed.set()

    async def until_quiet(self) -> None:
        """Wait until the source is empty and all publishes are done. Raises the first error."""
        while True:
            before = self.moved
            state = await count(self.giving, self.source)
            if self.failure is not None:
                raise self.failure
            if not state.messages and not self.in_flight and self.moved == before:
                return
            # Counting after each message would be more work for the broker than moving it.
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def until_settled(self) -> None:
        """Wait until all publishes are done. Raises the first error."""
        while self.in_flight and self.failure is None:
            await self._wait_for_change()
        if self.failure is not None:
            raise self.failure

    async def _wait_for_change(self) -> None:
        self.changed.clear()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self.changed.wait()
        except TimeoutError:
            return


_ON_DISK_S = 5.0
"""Seconds between declaring a queue and moving messages into it.

With Mnesia (3.x, and 4.0 by default), RabbitMQ confirms a declare up to two seconds before the
queue is written to disk. If the broker is killed before that, the queue is lost with all messages
that were confirmed.
"""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A queue to replace, with its new settings and its current bindings."""

    queue: Queue
    old_type: QueueType
    bindings: tuple[Binding, ...]
    plan: Plan | None
    resumed: bool = False
    room: int | None = None
    """The number of messages for which the new queue has room. It is None if there is no limit, and 0
    if only the size of the messages is limited, which is not known over AMQP.
    """
    strays: bool = False
    """Whether the broker would drop moved messages when the new queue dead-letters them. A moved
    message has the name of its queue as routing key.
    """

    @property
    def shadow(self) -> Queue:
        """The queue that stores the messages in the meantime. A quorum queue with no limits, TTL or
        dead-letter exchange.
        """
        limit = {"x-delivery-limit": NO_DELIVERY_LIMIT}
        return Queue(self.queue.name + SHADOW, QueueType.QUORUM, arguments=limit)


@dataclass(frozen=True, slots=True)
class Migration:
    """The queues to replace, in order, and the reasons why some of them cannot be."""

    desired: Topology
    replacements: tuple[Replacement, ...]
    obstacles: tuple[str, ...] = ()


def migration(desired: Topology, live: Topology) -> Migration:
    """Plan the migration of a live broker to the desired topology. Does not perform any I/O.

    Dead-letter queues come first, followed by retry queues and main queues.
    """
    compared = diff(desired, live)
    conflicting = {entry.name for entry in compared.conflict if entry.kind == "queue"}
    interrupted = {
        queue.name.removesuffix(SHADOW) for queue in live.queues if queue.name.endswith(SHADOW)
    }
    wanted = [
        queue for queue in desired.queues if queue.name in conflicting or queue.name in interrupted
    ]
    obstacles = tuple(
        f"{entry.kind} {entry.name!r} differs, and only queues can be migrated: "
        + "; ".join(
            f"{one.field} {one.actual!r} instead of {one.desired!r}" for one in entry.differences
        )
        for entry in compared.conflict
        if entry.kind != "queue"
    )
    obstacles += tuple(
        f"queue {now.name!r} {why}, so its messages cannot be moved out of it safely"
        for queue in wanted
        if (now := live.queue(queue.name)) is not None and (why := immovable(now))
    )
    found = (_replacement(queue, desired, live, queue.name in interrupted) for queue in wanted)
    resting = {plan.parking.queue for plan in desired.plans}
    main = {plan.queue for plan in desired.plans}
    ordered = sorted(
        found,
        key=lambda one: 0 if one.queue.name in resting else 2 if one.queue.name in main else 1,
    )
    return Migration(desired, tuple(ordered), obstacles)


def immovable(queue: Queue) -> str:
    """Explain why moving messages out of the queue is not safe. Returns an empty string if it is."""
    if queue.type is QueueType.STREAM:
        return "is a stream, whose messages cannot be removed by reading"
    if queue.auto_delete:
        return "is auto-delete: the broker deletes it with all messages when a consumer ends"
    return "is exclusive to another connection" if queue.exclusive else ""


def _replacement(queue: Queue, desired: Topology, live: Topology, resumed: bool) -> Replacement:
    now = live.queue(queue.name)
    names = (queue.name, queue.name + SHADOW)
    bindings = tuple(
        replace(binding, destination=queue.name)
        for binding in live.bindings
        if binding.destination in names and not binding.to_exchange and binding.source
    )
    bindings += tuple(
        b for b in desired.bindings if b.destination == queue.name and not b.to_exchange
    )
    unique = tuple(
        binding for index, binding in enumerate(bindings) if binding not in bindings[:index]
    )
    # Return the plan that defines how attempts of this queue are counted.
    carried = (p for p in desired.plans if queue.name in (p.queue, *dict(retry_queues(p))))
    old_type, plan = now.type if now else queue.type, next(carried, None)
    room, strays = _room(queue, now, live.policies), _strays(queue, desired, live)
    return Replacement(queue, old_type, unique, plan, resumed, room, strays)


def _strays(queue: Queue, desired: Topology, live: Topology) -> bool:
    told = effective_arguments(queue, live.policies)
    exchange = told.get("x-dead-letter-exchange")
    if not isinstance(exchange, str) or "x-dead-letter-routing-key" in told:
        return False
    if not exchange:
        return True  # the default exchange would return it to this queue, which is a cycle
    exchanges = {one.name: one for one in (*PREDECLARED, *live.exchanges, *desired.exchanges)}
    queues = {one.name for one in (*live.queues, *desired.queues)}
    table = RoutingTable(exchanges.values(), queues, (*live.bindings, *desired.bindings))
    return not table.reachable(exchange, queue.name)


def _room(queue: Queue, now: Queue | None, policies: Iterable[Policy]) -> int | None:
    new = effective_arguments(queue, policies)
    old = {} if now is None else effective_arguments(now, policies)
    most_bytes, old_bytes = (each.get("x-max-length-bytes") for each in (new, old))
    if isinstance(most_bytes, int):
        fits = isinstance(old_bytes, int) and old_bytes <= most_bytes
        if not fits:
            return 0
    most = new.get("x-max-length")
    return most if isinstance(most, int) else None


async def migrate(
    connection: Connection,
    planned: Migration,
    on_done: Callable[[str], object] = lambda text: None,
    *,
    management: Ledger | None = None,
    vhost: str = "/",
    watch_s: float = WATCH_S,
    patience_s: float = PATIENCE_S,
) -> int:
    """Run the migration and return the number of messages that were moved.

    Raises:
        UnsafeOperation: If a queue has consumers, if unacked messages are not settled within `patience_s`, if
            messages of another queue may still expire into a queue, if objects other than queues are
            different, if a new queue has no room for its messages, or if there is no management API.
    """
    if planned.obstacles:
        raise UnsafeOperation("no changes were made:\n" + "\n".join(planned.obstacles))
    emptiness = Emptiness(
        connection,
        management,
        vhost,
        plans=planned.desired.plans,
        watch_s=watch_s,
        patience_s=patience_s,
        on_wait=on_done,
    )
    moved = await replace_queues(
        connection,
        planned.replacements,
        emptiness,
        on_done,
        exchanges=own_exchanges(planned.desired),
    )
    await declare(connection, planned.desired)
    return moved


async def replace_queues(
    connection: Connection,
    replacements: Sequence[Replacement],
    emptiness: Emptiness,
    on_done: Callable[[str], object] = lambda text: None,
    *,
    exchanges: Iterable[Exchange] = (),
) -> int:
    """Run the three steps. If a previous run was interrupted, continue where it stopped.

    `exchanges` are declared first, because new bindings may need them.
    """
    await emptiness.refuse_busy([one.queue.name for one in replacements])
    old = [one for one in replacements if not await _is_new(connection, one.queue)]
    await emptiness.refuse_fed([one.queue.name for one in old])
    _check_routes(replacements)
    await _check_room(connection, replacements)
    moved = dict.fromkeys((one.queue.name for one in replacements), 0)
    back = dict(moved)
    by_name = {one.queue.name: one for one in replacements}

    async def to_shadow(name: str) -> None:
        one = by_name[name]
        moved[name] += await move_all(
            connection, name, one.shadow.name, lambda taken: _carry_count(one.plan, taken)
        )

    async def from_shadow(shadow: str) -> None:
        name = shadow.removesuffix(SHADOW)
        back[name] += await move_all(connection, shadow, name, _as_it_is)

    await _declare(connection, *exchanges, *(one.shadow for one in old))
    if old:
        await asyncio.sleep(_ON_DISK_S)
    for one in old:
        await _switch(connection, one.bindings, to=one.shadow, away_from=one.queue.name)
        on_done(f"{one.queue.name}: new messages go to {one.shadow.name}")
        if await count_now(connection, one.queue.name) is not None:
            await to_shadow(one.queue.name)
    try:
        await emptiness.delete([Queue(one.queue.name, one.old_type) for one in old], move=to_shadow)
        for one in old:
            on_done(
                f"{one.queue.name}: {moved[one.queue.name]} messages are safe in {one.shadow.name},"
                " the old queue is gone"
            )
            await _declare(connection, one.queue)
        if old:
            await asyncio.sleep(_ON_DISK_S)
        shadows = [
            one for one in replacements if await count_now(connection, one.shadow.name) is not None
        ]
        for one in shadows:
            await from_shadow(one.shadow.name)
            await _switch(connection, one.bindings, to=one.queue, away_from=one.shadow.name)
            await from_shadow(one.shadow.name)
        await emptiness.delete([one.shadow for one in shadows], move=from_shadow)
    except UnsafeOperation as refused:
        raise UnsafeOperation(
            f"{refused}. No message is lost: all that have not been moved back are in the queues {SHADOW}."
            " Run the command again when this is resolved"
        ) from refused
    for one in shadows:
        on_done(f"{one.queue.name}: {back[one.queue.name]} messages are back in the new queue")
    return sum(max(moved[name], back[name]) for name in moved)


def _check_routes(replacements: Iterable[Replacement]) -> None:
    """Raise UnsafeOperation if dead letters of moved messages would be lost."""
    for one in replacements:
        if one.strays:
            raise UnsafeOperation(
                f"no changes were made: {one.queue.name!r} dead-letters messages with their routing key."
                f" A moved message has the routing key {one.queue.name!r}, with which its dead letter"
                " reaches no queue. Declare a dead-letter-routing-key, or set it by a policy"
            )


async def _check_room(connection: Connection, replacements: Iterable[Replacement]) -> None:
    """Raise UnsafeOperation if a new queue would drop or refuse messages."""
    for one in replacements:
        if one.room is None:
            continue
        states = [await count_now(connection, name) for name in (one.queue.name, one.shadow.name)]
        messages = sum(state.messages for state in states if state is not None)
        if messages > one.room:
            limit = f"x-max-length {one.room:,}" if one.room else "x-max-length-bytes"
            raise UnsafeOperation(
                f"no changes were made: the new form of {one.queue.name!r} limits its length ({limit}),"
                f" and {count_of(messages)} may not fit. Remove messages, or migrate without this limit"
            )


async def _switch(
    connection: Connection, bindings: tuple[Binding, ...], *, to: Queue, away_from: str
) -> None:
    """Bind to the new destination first. Messages may be duplicated, but are never lost."""
    await _declare(connection, to)
    channel = await connection.open_channel()
    for binding in bindings:
        await channel.bind(replace(binding, destination=to.name))
    if await count_now(connection, away_from) is not None:
        for binding in bindings:
            await channel.unbind(replace(binding, destination=away_from))
    await channel.close()


async def _declare(connection: Connection, *items: Exchange | Queue) -> None:
    channel = await connection.open_channel()
    for item in items:
        if isinstance(item, Queue):
            await channel.declare_queue(item)
        else:
            await channel.declare_exchange(item)
    await channel.close()


async def _is_new(connection: Connection, queue: Queue) -> bool:
    """Return True if the queue already has the new settings, so that declaring it has no effect."""
    if await count_now(connection, queue.name) is None:
        return False
    channel = await connection.open_channel()
    try:
        await channel.declare_queue(queue)
    except PreconditionFailed:
        return False
    await channel.close()
    return True


def _carry_count(plan: Plan | None, delivery: Delivery) -> Properties:
    """Add the attempt count to Hopback's header if the new settings require this.

    If there is no plan, the properties are not changed. This is the case for dead-letter queues.
    """
    if plan is None or plan.count is not Count.HEADER:
        return _as_it_is(delivery)
    failures = failures_so_far(delivery.properties.headers, replace(plan, count=Count.X_DEATH))
    if not failures:
        return _as_it_is(delivery)
    counters = {} if plan.count_header is None else {plan.count_header: failures}
    mark = Mark(plan.queue, failures, counters=counters)
    return retry_properties(delivery.properties, mark) or _as_it_is(delivery)


def _as_it_is(delivery: Delivery) -> Properties:
    return properties_for_move(delivery.properties)
