"""Changing what cannot be changed in place: a queue's type and arguments, with messages inside.

A queue of the wrong form is replaced through a shadow queue, without losing a message:

1. The shadow is declared and bound wherever the queue is bound; then the queue is unbound. What is
   published from now on goes to the shadow; what was published in between went to both.
2. Everything in the queue moves to the shadow: published, confirmed, then acked.
3. The queue is deleted, only while it is empty and unused, and declared anew in its new form.
4. Everything in the shadow moves back; the queue is bound again, the shadow unbound, what came
   meanwhile moves too, and the shadow is deleted.

Each step can be repeated, and the live broker tells which ones are done: a migration that was
interrupted anywhere is simply started again. Attempts counted so far are carried over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from hopback.broker.declare import declare
from hopback.broker.move import move_all
from hopback.errors import NotFound, PreconditionFailed, UnsafeOperation
from hopback.headers import Mark, moved_properties, retry_properties
from hopback.policy.attempts import failures_so_far
from hopback.topology.diff import diff
from hopback.topology.expand import NO_DELIVERY_LIMIT, retry_queues
from hopback.topology.model import Queue, QueueType, Topology
from hopback.topology.plan import Count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hopback.broker.port import Connection
    from hopback.message import Delivery, Properties
    from hopback.topology.model import Binding
    from hopback.topology.plan import Plan

__all__ = ["SHADOW", "Migration", "Replacement", "migrate", "migration"]

SHADOW = ".migrating"
"""What a shadow queue's name ends with."""

_QUIET_S = 1.0
"""How long a queue must stay empty before it is deleted where the broker cannot see to that."""


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
    found = (_replacement(queue, desired, live, queue.name in interrupted) for queue in wanted)
    return Migration(desired, tuple(sorted(found, key=lambda one: _rank(one, desired))), obstacles)


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
    return Replacement(
        queue, now.type if now else queue.type, unique, _plan_of(queue.name, desired), resumed
    )


def _plan_of(queue: str, topology: Topology) -> Plan | None:
    """The plan whose count the messages of this queue carry."""
    for plan in topology.plans:
        if queue == plan.queue or queue in dict(retry_queues(plan)):
            return plan
    return None


def _rank(one: Replacement, desired: Topology) -> int:
    resting = {plan.parking.queue for plan in desired.plans}
    main = {plan.queue for plan in desired.plans}
    return 0 if one.queue.name in resting else 2 if one.queue.name in main else 1


async def migrate(
    connection: Connection, planned: Migration, on_done: Callable[[str], object] = lambda text: None
) -> int:
    """Carry the migration out and tell how many messages were moved.

    UnsafeOperation if something stands in the way: consumers on a queue, or what is no queue.
    """
    if planned.obstacles:
        raise UnsafeOperation("nothing was changed:\n" + "\n".join(planned.obstacles))
    await _refuse_consumers(connection, planned.replacements)
    moved = 0
    for one in planned.replacements:
        moved += await _replace(connection, one, on_done)
    await declare(connection, planned.desired)
    return moved


async def _refuse_consumers(connection: Connection, replacements: Iterable[Replacement]) -> None:
    """Messages in the hands of consumers cannot be moved: they have to be stopped first."""
    counted = [
        (one.queue.name, await _consumers(connection, one.queue.name)) for one in replacements
    ]
    busy = [f"{name!r} has {count} consumers" for name, count in counted if count]
    if busy:
        raise UnsafeOperation(f"nothing was changed: {'; '.join(busy)}. Stop them and start again.")


async def _consumers(connection: Connection, queue: str) -> int:
    state = await _state(connection, queue)
    return 0 if state is None else state[1]


async def _replace(
    connection: Connection, one: Replacement, on_done: Callable[[str], object]
) -> int:
    """The four steps for one queue, from wherever an earlier run has left them."""
    name, shadow = one.queue.name, one.shadow.name
    rewrite = partial(_carried_over, one.plan)
    moved = 0
    if not await _is_new(connection, one.queue):
        await _switch(connection, one.bindings, to=one.shadow, away_from=name)
        on_done(f"{name}: new messages go to {shadow}")
        moved = await _empty_and_delete(connection, one, rewrite)
        on_done(f"{name}: {moved} messages are safe in {shadow}, the old queue is gone")
        await _declare(connection, one.queue)
    elif await _state(connection, shadow) is None:
        return 0
    back = await move_all(connection, shadow, name, _as_it_is)
    await _switch(connection, one.bindings, to=one.queue, away_from=shadow)
    back += await move_all(connection, shadow, name, _as_it_is)
    await _delete(connection, shadow, QueueType.QUORUM)
    on_done(f"{name}: {back} messages are back in the new queue")
    return max(moved, back)


async def _empty_and_delete(
    connection: Connection, one: Replacement, rewrite: Callable[[Delivery], Properties]
) -> int:
    """Move everything out and delete the queue, again and again until nothing comes in between."""
    moved = 0
    while await _state(connection, one.queue.name) is not None:
        moved += await move_all(connection, one.queue.name, one.shadow.name, rewrite)
        if await _delete(connection, one.queue.name, one.old_type):
            break
    return moved


async def _switch(
    connection: Connection, bindings: tuple[Binding, ...], *, to: Queue, away_from: str
) -> None:
    """Bind the one before unbinding the other: a message may come twice, never not at all."""
    await _declare(connection, to)
    channel = await connection.open_channel()
    for binding in bindings:
        await channel.bind(replace(binding, destination=to.name))
    if await _state(connection, away_from) is not None:
        for binding in bindings:
            await channel.unbind(replace(binding, destination=away_from))
    await channel.close()


async def _declare(connection: Connection, queue: Queue) -> None:
    channel = await connection.open_channel()
    await channel.declare_queue(queue)
    await channel.close()


async def _is_new(connection: Connection, queue: Queue) -> bool:
    """Whether the queue exists in its new form already: a declare then changes nothing."""
    if await _state(connection, queue.name) is None:
        return False
    channel = await connection.open_channel()
    try:
        await channel.declare_queue(queue)
    except PreconditionFailed:
        return False
    await channel.close()
    return True


async def _state(connection: Connection, queue: str) -> tuple[int, int] | None:
    """Ready messages and consumers; None if the queue does not exist."""
    channel = await connection.open_channel()
    try:
        state = await channel.declare_queue(Queue(queue), passive=True)
    except NotFound:
        return None
    await channel.close()
    return state.messages, state.consumers


async def _delete(connection: Connection, queue: str, kind: QueueType) -> bool:
    """Delete it if it is empty; whether it was.

    A classic queue is deleted by the broker's own condition. A quorum queue knows none: it must be
    found empty twice, some time apart, after everything was unbound from it.
    """
    channel = await connection.open_channel()
    if kind is not QueueType.CLASSIC:
        await asyncio.sleep(_QUIET_S)
        if await _state(connection, queue) != (0, 0):
            return False
        await channel.delete_queue(queue)
    else:
        try:
            await channel.delete_queue(queue, if_unused=True, if_empty=True)
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
