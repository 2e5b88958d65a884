"""Comparing over AMQP alone: what a broker without its management API lets us find out.

A passive declare tells whether an object is there; declaring one that is there changes nothing and
is refused with a 406 that names the first argument that differs. Declared once more with the broker's
own value of it, the next one is named, until nothing differs: so all of them are known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.inequivalent import difference_of, read_inequivalent
from hopback.broker.port import count
from hopback.errors import NotFound, PreconditionFailed
from hopback.renamed import OldNameLookup, old_names
from hopback.topology.diff import Conflict, Difference, Kind, advise_queue, diff
from hopback.topology.model import Exchange, Queue, QueueType, Topology
from hopback.topology.rabbitmq_arguments import ARGUMENTS_OF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hopback.broker.inequivalent import Inequivalent
    from hopback.broker.port import Connection, QueueState
    from hopback.fields import FieldValue
    from hopback.topology.diff import Diff

__all__ = ["conflicts", "look_for", "probe"]

_MOST_QUESTIONS = (
    40  # more than any object has fields; a broker that answers oddly must not keep us
)


async def probe(desired: Topology, connection: Connection) -> Diff:
    """Ask for each exchange and queue; nothing is created. What is there besides stays unknown."""
    looked_for = await look_for(connection, (*desired.exchanges, *desired.queues))
    there = [item for item, missing in looked_for if missing is None]
    other = await conflicts(connection, there)
    exchanges = tuple(one for one in there if isinstance(one, Exchange))
    queues = tuple(one for one in there if isinstance(one, Queue))
    found = diff(desired, Topology("there", exchanges, queues))
    differing = {(conflict.kind, conflict.name) for conflict in other}
    same = tuple(entry for entry in found.same if (entry.kind, entry.name) not in differing)
    return replace(found, same=same, conflict=other)


async def look_for(
    connection: Connection, items: Iterable[Exchange | Queue]
) -> list[tuple[Exchange | Queue, str | None]]:
    """Each with None if the broker has one by that name, in whatever form; else with its refusal."""
    found: list[tuple[Exchange | Queue, str | None]] = []
    channel = await connection.open_channel()
    for item in items:
        try:
            if isinstance(item, Queue):
                await channel.declare_queue(item, passive=True)
            else:
                await channel.declare_exchange(item, passive=True)
            found.append((item, None))
        except NotFound as refusal:  # it closed the channel
            found.append((item, refusal.text))
            channel = await connection.open_channel()
    await channel.close()
    return found


async def conflicts(
    connection: Connection, there: Iterable[Exchange | Queue]
) -> tuple[Conflict, ...]:
    """Of what exists, what has another form, each with every difference, the type first."""
    found = []
    for item in there:
        if differences := await _differences(connection, item):
            kind = Kind.QUEUE if isinstance(item, Queue) else Kind.EXCHANGE
            found.append(Conflict(kind, item.name, item, item, differences))
    return tuple(found)


async def _differences(connection: Connection, item: Exchange | Queue) -> tuple[Difference, ...]:
    """What differs, if anything; declaring once more what is there as it is changes nothing."""
    found: dict[str, Difference] = {}
    asked = item
    while len(found) < _MOST_QUESTIONS:
        try:
            # Each question on a channel of its own: a refusal closes it.
            channel = await connection.open_channel()
            if isinstance(asked, Queue):
                await channel.declare_queue(asked)
            else:
                await channel.declare_exchange(asked)
            await channel.close()
            break
        except PreconditionFailed as refusal:
            told = difference_of(refusal.text, item)
            named = read_inequivalent(refusal.text)
            if named is None or told.field in found:
                if (
                    not found
                ):  # after a first difference, odd answers are ours: the question was odd
                    found[told.field] = told
                break
            found[told.field] = told
            if isinstance(asked, Queue):
                further = _as_the_broker_has_it(asked, named, told.actual)
                found |= {one.field: one for one in _dropped(asked, further, told.field)}
                asked = further
            else:
                asked = _exchange_as_the_broker_has_it(asked, named, told.actual)
    # A queue of another type is another queue: whoever reads that first needs to read no further.
    return tuple(sorted(found.values(), key=lambda one: one.field != "type"))


def _as_the_broker_has_it(asked: Queue, named: Inequivalent, actual: FieldValue) -> Queue:
    """The queue with the broker's value for what was named, and without what cannot go with it."""
    yes = named.actual == "true"
    match named.argument:
        case "durable":
            return replace(asked, durable=yes)
        case "auto_delete":
            return replace(asked, auto_delete=yes)
        case "exclusive":
            return replace(asked, exclusive=yes)
    arguments = {key: value for key, value in asked.arguments.items() if key != named.argument}
    if named.argument == "x-queue-type":
        kind = QueueType(named.actual or QueueType.CLASSIC)
        known = {key: value for key, value in arguments.items() if key in ARGUMENTS_OF[kind]}
        return replace(asked, type=kind, arguments=known)
    if actual is not None:
        arguments[named.argument] = actual
    elif named.argument == "x-dead-letter-exchange":
        arguments.pop("x-dead-letter-routing-key", None)  # refused without its exchange
    return replace(asked, arguments=arguments)


def _dropped(before: Queue, after: Queue, named: str) -> Iterator[Difference]:
    """The arguments that had to go with what was named: the queue there cannot have them."""
    for key, value in before.arguments.items():
        if key != named and key not in after.arguments:
            advice = advise_queue(after, key, value, None)
            yield Difference(key, value, None, advice.text, advice.policy)


def _exchange_as_the_broker_has_it(
    asked: Exchange, named: Inequivalent, actual: FieldValue
) -> Exchange:
    yes = named.actual == "true"
    match named.argument:
        case "type":
            return replace(asked, type=named.actual or asked.type)
        case "durable":
            return replace(asked, durable=yes)
        case "auto_delete":
            return replace(asked, auto_delete=yes)
        case "internal":
            return replace(asked, internal=yes)
    arguments = {key: value for key, value in asked.arguments.items() if key != named.argument}
    return replace(
        asked, arguments=arguments if actual is None else {**arguments, named.argument: actual}
    )


async def _depth(connection: Connection, queue: str) -> QueueState:
    """Raises where `count_now` answers None: so it was promised."""
    channel = await connection.open_channel()
    state = await count(channel, queue)
    await channel.close()
    return state


__getattr__: OldNameLookup = old_names(
    __name__,
    {
        "depth": (_depth, "hopback.broker.count_now"),
        "refused_argument": (difference_of, "hopback.broker.inequivalent.difference_of"),
    },
)
