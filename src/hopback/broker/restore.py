"""Creating anew what was deleted while an application runs: only what is missing, never more.

A queue that is missing because it is being migrated (`NAME.migrating` exists) is left to the
migration: created in its old form it would stand in the way of the new one. What exists in another
form, or may not be created, is left alone. Nothing here raises for such a thing; it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.declare import Ownership, difference_of, own_exchanges, read_inequivalent
from hopback.errors import ChannelClosed, NotFound
from hopback.topology.expand import SHADOW
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from hopback.broker.port import Channel, Connection
    from hopback.topology.model import Binding, Exchange, Topology

__all__ = ["Restored", "queues_in_migration", "restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """What was created, by name, and what cannot be used: why, by name."""

    created: tuple[str, ...]
    troubles: Mapping[str, str]


async def restore(
    connection: Connection,
    topology: Topology,
    ownership: Ownership,
    *,
    unrouted: Collection[str] = (),
) -> Restored:
    """Create every declared exchange and queue that is missing, and its bindings.

    `unrouted` names exchanges that found no queue for a message: their bindings are added again.
    With another ownership than `declare` nothing is created, with `external` nothing is looked at.
    """
    created: list[str] = []
    troubles: dict[str, str] = {}
    if ownership is Ownership.EXTERNAL:
        return Restored((), troubles)
    declared: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    for thing in declared:
        was_missing, trouble = await _restored(connection, thing, ownership)
        if trouble:
            troubles[thing.name] = trouble
        elif was_missing:
            created.append(thing.name)
    if ownership is Ownership.DECLARE:
        await _bind(connection, topology, {*created}, {*unrouted}, troubles)
    return Restored(tuple(created), troubles)


async def queues_in_migration(connection: Connection, topology: Topology) -> tuple[str, ...]:
    """The declared queues that are missing because a migration is about to create them anew."""
    return tuple(
        [
            queue.name
            for queue in topology.queues
            if isinstance(await _refusal(connection, _looking(queue)), NotFound)
            and await _refusal(connection, _looking(_shadow_of(queue))) is None
        ]
    )


async def _restored(
    connection: Connection, thing: Exchange | Queue, ownership: Ownership
) -> tuple[bool, str]:
    """Whether it was missing, and what is in the way of using it."""
    kind = "queue" if isinstance(thing, Queue) else "exchange"
    found = await _refusal(connection, _looking(thing))
    missing = isinstance(found, NotFound)
    if found is not None and not missing:
        return missing, f"{kind} {thing.name!r} may not be looked at: {found.text}"
    if ownership is Ownership.CHECK:
        return missing, _NOT_OURS.format(kind=kind, name=thing.name) if missing else ""
    # The order matters: a queue that a migration has deleted has had its shadow before.
    if missing and isinstance(thing, Queue):
        shadow = await _refusal(connection, _looking(_shadow_of(thing)))
        if shadow is None:
            return missing, _MIGRATING.format(name=thing.name, shadow=thing.name + SHADOW)
        if not isinstance(shadow, NotFound):
            return missing, _UNSEEN.format(
                name=thing.name, shadow=thing.name + SHADOW, why=shadow.text
            )
    refused = await _refusal(connection, _declaring(thing))
    if refused is None:
        return missing, ""
    differs = read_inequivalent(refused.text) is not None
    why = difference_of(refused.text, thing) if differs else refused.text
    verb = "created" if missing else "used"
    return missing, f"{kind} {thing.name!r} cannot be {verb}: {why}"


_NOT_OURS = (
    "{kind} {name!r} is missing, and this application creates nothing (ownership `check`):"
    " create it with `hopback topology apply`"
)
_MIGRATING = (
    "queue {name!r} is missing because it is being migrated ({shadow!r} exists): it is created by the"
    " migration; if that was interrupted, `hopback topology migrate` ends it"
)
_UNSEEN = (
    "queue {name!r} is missing, and whether it is being migrated cannot be told: {shadow!r} may not"
    " be looked at ({why})"
)


async def _bind(
    connection: Connection,
    topology: Topology,
    created: set[str],
    unrouted: set[str],
    troubles: dict[str, str],
) -> None:
    """Add the bindings of what was created; of an exchange that routes nowhere, all of its own.

    A queue that exists may be unbound because its messages go to a shadow: then it stays so.
    """
    for binding in topology.bindings:
        ends = {binding.source, binding.destination}
        if not ends & (created | unrouted) or ends & troubles.keys():
            continue
        if not binding.to_exchange and binding.destination not in created:
            shadow = _looking(Queue(binding.destination + SHADOW))
            if not isinstance(await _refusal(connection, shadow), NotFound):
                continue
        refused = await _refusal(connection, _binding(binding))
        if refused is not None:
            troubles[binding.source] = (
                f"{binding.destination!r} cannot be bound to {binding.source!r}: {refused.text}"
            )


async def _refusal(
    connection: Connection, step: Callable[[Channel], Awaitable[object]]
) -> ChannelClosed | None:
    """Take a step on a channel of its own, which a refusal closes."""
    channel = await connection.open_channel()
    try:
        await step(channel)
    except ChannelClosed as refused:
        return refused
    await channel.close()
    return None


def _binding(binding: Binding) -> Callable[[Channel], Awaitable[object]]:
    return lambda channel: channel.bind(binding)


def _shadow_of(queue: Queue) -> Queue:
    return Queue(queue.name + SHADOW)


def _looking(thing: Exchange | Queue) -> Callable[[Channel], Awaitable[object]]:
    if isinstance(thing, Queue):
        return lambda channel: channel.declare_queue(thing, passive=True)
    return lambda channel: channel.declare_exchange(thing, passive=True)


def _declaring(thing: Exchange | Queue) -> Callable[[Channel], Awaitable[object]]:
    if isinstance(thing, Queue):
        return lambda channel: channel.declare_queue(thing)
    return lambda channel: channel.declare_exchange(thing)
