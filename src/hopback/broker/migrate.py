"""Replace queues whose type or arguments differ, keeping their messages.

RabbitMQ cannot change the type or the arguments of an existing queue. Such queues are replaced
through shadow queues, without losing a message:

1. Declare each shadow and bind it wherever its queue is bound, then unbind the queue. From then on new
   messages are routed to the shadow. Messages published in between are routed to both queues. All
   messages in the queue move to the shadow: each is published, confirmed, then acked.
2. Delete the queues once all of them are proven empty, and declare them in their new form. A retry
   queue is emptied together with its main queue, so that no message returns to the main queue by name.
3. Move all messages in the shadows back, bind the queues again, unbind the shadows, and move the
   messages that arrived in the meantime. Delete the shadows once they are proven empty.

Each step can be repeated, and the state of the broker shows which steps are done. An interrupted
migration is resumed by starting it again. Attempt counts are carried over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hopback.broker.declare import declare
from hopback.broker.emptiness import PATIENCE_S, WATCH_S, Emptiness, Ledger
from hopback.broker.port import Channel, Connection, count, count_now
from hopback.errors import BrokerError, PreconditionFailed, UnsafeOperation
from hopback.headers import Mark, properties_for_move, retry_properties
from hopback.message import Delivery, Message, Properties
from hopback.policy.reading import failures_so_far
from hopback.topology.diff import diff
from hopback.topology.expand import NO_DELIVERY_LIMIT, SHADOW, retry_queues
from hopback.topology.model import Binding, Queue, QueueType, Topology
from hopback.topology.plan import Count, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Messages. Hides the round trip of confirms. A crash duplicates at most this many.
_IN_FLIGHT = 200
# Seconds. AMQP does not announce that a queue is empty, so the count is polled.
_LOOK_AGAIN_S = 0.05


async def move_all(
    connection: Connection,
    source: str,
    target: str,
    rewrite: Callable[[Delivery], Properties],
) -> int:
    """Move messages until the source is empty and return how many were moved.

    `rewrite` returns the properties to publish a message with. The first failure is raised. In that
    case unconfirmed messages are not acked, and closing the channel requeues them in order.
    """
    taking, giving = await connection.open_channel(), await connection.open_channel()
    try:
        move = _Move(taking, giving, source, target, rewrite)
        await taking.qos(_IN_FLIGHT)
        while True:
            tag = await taking.consume(source, move.take, on_cancel=move.on_cancel)
            await move.until_quiet()
            # Deliveries that were in transit are not in any count yet. They have arrived when the
            # cancel is answered. They must be settled before the channel closes, because otherwise
            # the broker requeues a message that was already published.
            await taking.cancel(tag)
            await move.until_settled()
            # The broker does not answer an ack. A round trip shows that it has read it.
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
        """Publish a delivery. After a failure, deliveries stay unsettled."""
        if self.failure is not None:
            return
        try:
            message = Message("", self.target, delivery.body, self.rewrite(delivery))
            fate = self.giving.publish(message)
        except Exception as error:  # the message stays in the source
            self._fail(
                BrokerError(f"a message of {self.source!r} cannot be published again: {error}")
            )
            return
        self.in_flight += 1
        fate.add_done_callback(lambda done: self._settle(done, delivery.tag))

    def on_cancel(self, _tag: str) -> None:
        """Fail the move: the queue or its node is gone."""
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
        """Return when the source is empty and no publish is in flight. Raise the first failure."""
        while True:
            before = self.moved
            state = await count(self.giving, self.source)
            if self.failure is not None:
                raise self.failure
            if not state.messages and not self.in_flight and self.moved == before:
                return
            # Do not count after every change: a count per message costs the broker more than the
            # move.
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def until_settled(self) -> None:
        """Return when no publish is in flight. Raise the first failure."""
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

RabbitMQ with Mnesia (3.x, and 4.0 by default) answers a declare up to two seconds before the queue
is on disk. A broker that is killed earlier loses the queue and every message confirmed into it.
"""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A queue to replace: its new form and its current bindings."""

    queue: Queue
    old_type: QueueType
    bindings: tuple[Binding, ...]
    plan: Plan | None
    resumed: bool = False

    @property
    def shadow(self) -> Queue:
        """The queue that keeps the messages in the meantime: a quorum queue without limits, TTL or
        DLX.
        """
        limit = {"x-delivery-limit": NO_DELIVERY_LIMIT}
        return Queue(self.queue.name + SHADOW, QueueType.QUORUM, arguments=limit)


@dataclass(frozen=True, slots=True)
class Migration:
    """The queues to replace, in the order of their replacement, and the obstacles."""

    desired: Topology
    replacements: tuple[Replacement, ...]
    obstacles: tuple[str, ...] = ()


def migration(desired: Topology, live: Topology) -> Migration:
    """Plan how to bring the live broker to the desired topology. This function does no I/O.

    Dead-letter queues are replaced first, then retry queues, then main queues.
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
    """Return why messages cannot be moved out of the queue safely, or an empty string."""
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
    # The plan that counts the attempts of this queue's messages.
    carried = (p for p in desired.plans if queue.name in (p.queue, *dict(retry_queues(p))))
    return Replacement(queue, now.type if now else queue.type, unique, next(carried, None), resumed)


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
    """Carry out the migration and return how many messages were moved.

    Raise UnsafeOperation if a queue has consumers, if unacked messages are not settled within
    `patience_s`, if an object other than a queue differs, or without a management API.
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
    moved = await replace_queues(connection, planned.replacements, emptiness, on_done)
    await declare(connection, planned.desired)
    return moved


async def replace_queues(
    connection: Connection,
    replacements: Sequence[Replacement],
    emptiness: Emptiness,
    on_done: Callable[[str], object] = lambda text: None,
) -> int:
    """Run the three steps for these queues, from the point where an earlier run stopped."""
    await emptiness.refuse_busy([one.queue.name for one in replacements])
    moved = dict.fromkeys((one.queue.name for one in replacements), 0)
    back = dict(moved)
    old = [one for one in replacements if not await _is_new(connection, one.queue)]
    by_name = {one.queue.name: one for one in replacements}

    async def to_shadow(name: str) -> None:
        one = by_name[name]
        moved[name] += await move_all(
            connection, name, one.shadow.name, lambda taken: _carry_count(one.plan, taken)
        )

    async def from_shadow(shadow: str) -> None:
        name = shadow.removesuffix(SHADOW)
        back[name] += await move_all(connection, shadow, name, _as_it_is)

    for one in old:
        await _declare(connection, one.shadow)
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


async def _switch(
    connection: Connection, bindings: tuple[Binding, ...], *, to: Queue, away_from: str
) -> None:
    """Bind the new destination before unbinding the old one: a message may be duplicated, never
    lost.
    """
    await _declare(connection, to)
    channel = await connection.open_channel()
    for binding in bindings:
        await channel.bind(replace(binding, destination=to.name))
    if await count_now(connection, away_from) is not None:
        for binding in bindings:
            await channel.unbind(replace(binding, destination=away_from))
    await channel.close()


async def _declare(connection: Connection, queue: Queue) -> None:
    channel = await connection.open_channel()
    await channel.declare_queue(queue)
    await channel.close()


async def _is_new(connection: Connection, queue: Queue) -> bool:
    """Check whether the queue already exists in its new form, in which case a declare has no
    effect.
    """
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
    """Return the properties with the attempt count in Hopback's header, if the new form counts
    there.

    The properties stay the same without a plan (a dead-letter queue).
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
