"""Comparing over AMQP alone: what a broker without its management API lets us find out.

A passive declare tells whether an object is there; declaring one that is there changes nothing and
is refused with a 406 that names the first argument that differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.inequivalent import difference_of
from hopback.broker.port import count
from hopback.errors import NotFound, PreconditionFailed
from hopback.renamed import old_names
from hopback.topology.diff import Conflict, Kind, diff
from hopback.topology.model import Queue, Topology

if TYPE_CHECKING:
    from hopback.broker.port import Connection, QueueState
    from hopback.topology.diff import Diff
    from hopback.topology.model import Exchange

__all__ = ["probe"]


async def probe(desired: Topology, connection: Connection) -> Diff:
    """Ask for each exchange and queue; nothing is created. What is there besides stays unknown."""
    exchanges = [one for one in desired.exchanges if await _exists(connection, one)]
    queues = [one for one in desired.queues if await _exists(connection, one)]
    there: tuple[Exchange | Queue, ...] = (*exchanges, *queues)
    conflicts = [
        conflict for one in there if (conflict := await _conflict(connection, one)) is not None
    ]
    found = diff(desired, Topology("there", tuple(exchanges), tuple(queues)))
    differing = {(conflict.kind, conflict.name) for conflict in conflicts}
    same = tuple(entry for entry in found.same if (entry.kind, entry.name) not in differing)
    return replace(found, same=same, conflict=tuple(conflicts))


async def _exists(connection: Connection, item: Exchange | Queue) -> bool:
    try:
        await _declare(connection, item, passive=True)
    except NotFound:
        return False
    return True


async def _conflict(connection: Connection, item: Exchange | Queue) -> Conflict | None:
    """What differs, if anything; declaring once more what is there as desired changes nothing."""
    try:
        await _declare(connection, item, passive=False)
    except PreconditionFailed as refusal:
        kind = Kind.QUEUE if isinstance(item, Queue) else Kind.EXCHANGE
        return Conflict(kind, item.name, item, item, (difference_of(refusal.text, item),))
    return None


async def _declare(connection: Connection, item: Exchange | Queue, *, passive: bool) -> None:
    """Each question on a channel of its own: a refusal closes it."""
    channel = await connection.open_channel()
    if isinstance(item, Queue):
        await channel.declare_queue(item, passive=passive)
    else:
        await channel.declare_exchange(item, passive=passive)
    await channel.close()


async def _depth(connection: Connection, queue: str) -> QueueState:
    """Raises where `count_now` answers None: so it was promised."""
    channel = await connection.open_channel()
    state = await count(channel, queue)
    await channel.close()
    return state


__getattr__ = old_names(
    __name__,
    {
        "depth": (_depth, "hopback.broker.count_now"),
        "refused_argument": (difference_of, "hopback.broker.inequivalent.difference_of"),
    },
)
