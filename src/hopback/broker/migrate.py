"""Changing what cannot be changed in place: a queue's type and arguments, with messages inside.

Queues of the wrong form are replaced through shadow queues, without losing a message:

1. Each shadow is declared and bound wherever its queue is bound; then the queue is unbound. What is
   published from now on goes to the shadow; what was published in between went to both. Everything
   in the queue moves to the shadow: published, confirmed, then acked.
2. When all those queues are empty for certain they are deleted, and declared anew in their new form.
   Retry queues are emptied together with the queue that they return to: nothing comes to it by name.
3. Everything in the shadows moves back; the queues are bound again, the shadows unbound, what came
   meanwhile moves too. When the shadows are empty for certain they are deleted.

Each step can be repeated, and the live broker tells which ones are done: a migration that was
interrupted anywhere is simply started again. Attempts counted so far are carried over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hopback.broker.declare import declare
from hopback.broker.emptiness import PATIENCE_S, WATCH_S, Emptiness, Ledger
from hopback.broker.port import Channel, Connection, count, count_now
from hopback.errors import BrokerError, PreconditionFailed, UnsafeOperation
from hopback.headers import Mark, moved_properties, retry_properties
from hopback.message import Delivery, Message, Properties
from hopback.policy.reading import failures_so_far
from hopback.topology.diff import diff
from hopback.topology.expand import NO_DELIVERY_LIMIT, SHADOW, retry_queues
from hopback.topology.model import Binding, Queue, QueueType, Topology
from hopback.topology.plan import Count, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_IN_FLIGHT = 200  # enough to hide the confirm's round trip; so few copies if we die in between
_LOOK_AGAIN_S = 0.05  # nothing tells that a queue has become empty: ask twenty times a second


async def move_all(
    connection: Connection,
    source: str,
    target: str,
    rewrite: Callable[[Delivery], Properties],
) -> int:
    """Move until the source is empty and tell how many went; raises the first failure.

    `rewrite` gives the properties a message is published with. On failure nothing unconfirmed is
    acked, and closing the channel gives the rest back in order.
    """
    taking, giving = await connection.open_channel(), await connection.open_channel()
    try:
        move = _Move(taking, giving, source, target, rewrite)
        await taking.qos(_IN_FLIGHT)
        while True:
            tag = await taking.consume(source, move.take, on_cancel=move.cancelled)
            await move.until_quiet()
            # What was on its way to us was in no number so far. It has come when the cancel is
            # answered, and has to be settled before the channel closes: otherwise it is given back
            # although it was published, and stands twice.
            await taking.cancel(tag)
            await move.until_settled()
            # Settlement is answered by nothing: a round trip shows that the broker has read it.
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
        """Publish a delivery; after a failure the rest stays unsettled."""
        if self.failure is not None:
            return
        try:
            message = Message("", self.target, delivery.body, self.rewrite(delivery))
            fate = self.giving.publish(message)
        except Exception as error:  # whatever the message is made of: it stays where it is
            self._fail(
                BrokerError(f"a message of {self.source!r} cannot be published again: {error}")
            )
            return
        self.in_flight += 1
        fate.add_done_callback(lambda done: self._settle(done, delivery.tag))

    def cancelled(self, _tag: str) -> None:
        """The broker ended the consumer: the queue is gone or its node is."""
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
        """Return when nothing is ready and nothing in flight; raise the first failure."""
        while True:
            before = self.moved
            state = await count(self.giving, self.source)
            if self.failure is not None:
                raise self.failure
            if not state.messages and not self.in_flight and self.moved == before:
                return
            # Not at every change: a question per message costs the broker more than the move does.
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def until_settled(self) -> None:
        """Return when nothing is in flight; raise the first failure."""
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
"""How long a new queue waits for its first message: a broker that is killed may forget it until then.

RabbitMQ with Mnesia (3.x, and 4.0 by default) answers a declare up to two seconds before it is on
disk; what was confirmed into such a queue would be gone with it.
"""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One queue to be replaced: its new form, and where it is bound now."""

    queue: Queue
    old_type: QueueType
    bindings: tuple[Binding, ...]
    plan: Plan | None
    resumed: bool = False

    @property
    def shadow(self) -> Queue:
        """The queue that keeps the messages meanwhile: quorum, without limits, TTL or dead letters."""
        limit = {"x-delivery-limit": NO_DELIVERY_LIMIT}
        return Queue(self.queue.name + SHADOW, QueueType.QUORUM, arguments=limit)


@dataclass(frozen=True, slots=True)
class Migration:
    """What has to be replaced, in order, and what stands in the way."""

    desired: Topology
    replacements: tuple[Replacement, ...]
    obstacles: tuple[str, ...] = ()


def migration(desired: Topology, live: Topology) -> Migration:
    """What it takes to bring the live broker to the desired topology. Pure.

    Dead-letter queues come first, then retry queues, then the queues that feed them.
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
    """Why taking messages out would harm; empty if it would not."""
    if queue.type is QueueType.STREAM:
        return "is a stream, from which nothing is taken by reading"
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
    # The plan whose count the messages of this queue carry.
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
    """Carry the migration out and tell how many messages were moved.

    UnsafeOperation if something stands in the way: consumers on a queue, messages that somebody
    holds and does not give back within `patience_s`, what is no queue, or no management API.
    """
    if planned.obstacles:
        raise UnsafeOperation("nothing was changed:\n" + "\n".join(planned.obstacles))
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
    """The three steps for these queues, from wherever an earlier run has left them."""
    await emptiness.refuse_busy([one.queue.name for one in replacements])
    moved = dict.fromkeys((one.queue.name for one in replacements), 0)
    back = dict(moved)
    old = [one for one in replacements if not await _is_new(connection, one.queue)]
    by_name = {one.queue.name: one for one in replacements}

    async def to_shadow(name: str) -> None:
        one = by_name[name]
        moved[name] += await move_all(
            connection, name, one.shadow.name, lambda taken: _carried_over(one.plan, taken)
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
            f"{refused}. Nothing is lost: what is not back yet is in the queues {SHADOW}. Run the"
            " command again when this is settled"
        ) from refused
    for one in shadows:
        on_done(f"{one.queue.name}: {back[one.queue.name]} messages are back in the new queue")
    return sum(max(moved[name], back[name]) for name in moved)


async def _switch(
    connection: Connection, bindings: tuple[Binding, ...], *, to: Queue, away_from: str
) -> None:
    """Bind the one before unbinding the other: a message may come twice, never not at all."""
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
    """Whether the queue exists in its new form already: a declare then changes nothing."""
    if await count_now(connection, queue.name) is None:
        return False
    channel = await connection.open_channel()
    try:
        await channel.declare_queue(queue)
    except PreconditionFailed:
        return False
    await channel.close()
    return True


def _carried_over(plan: Plan | None, delivery: Delivery) -> Properties:
    """The message with its count in our own header, where the new form counts there.

    Without a plan (a dead-letter queue) it only moves.
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
    return moved_properties(delivery.properties)
