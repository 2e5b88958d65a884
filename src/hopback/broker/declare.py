"""Declare a topology or check that it exists.

RabbitMQ refuses to redeclare an object with different settings and closes the channel with a 406.
Its text contains the first argument that differs, and both values. This module parses the text and
adds a remedy, so `hopback run`, `topology plan` and `topology apply` all give the same advice. If
the queue type differs, this is reported as a different type and not as an argument.

Without the management API, a passive declare shows if an object exists. To find out how it differs,
`probe` declares the object and reads the 406. It then uses the broker's value for this argument and
tries again, until the declare succeeds. This never changes an existing object.

`restore` is called while an application is running. It creates objects that were deleted. If
`NAME.migrating` exists, the queue `NAME` is being migrated and must not be created, because the old
version of the queue would prevent the migration from creating the new one. Objects that have
different settings or must not be created are reported. `restore` does not raise an exception for
them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from hopback.broker.port import Channel, Connection, QueueState, count
from hopback.errors import (
    ChannelClosed,
    NotFound,
    PreconditionFailed,
    TopologyConflict,
    TopologyError,
)
from hopback.topology.diff import (
    Conflict,
    Diff,
    Difference,
    Kind,
    advise_exchange,
    advise_queue,
    diff,
)
from hopback.topology.expand import SHADOW
from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
from hopback.topology.rabbitmq_arguments import ARGUMENTS_OF

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
    )

    from hopback.fields import FieldValue

_MOST_QUESTIONS = (
    # Maximum number of declares per object. Objects don't have more fields than this, so the loop
    # ends even if the broker returns strange errors.
    40
)


async def probe(desired: Topology, connection: Connection) -> Diff:
    """Check which exchanges and queues exist. Does not create any, and does not find undeclared
    objects.
    """
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
    """Check each item. Returns None for items that exist, and the broker's error for the others."""
    found: list[tuple[Exchange | Queue, str | None]] = []
    channel = await connection.open_channel()
    for item in items:
        try:
            if isinstance(item, Queue):
                await channel.declare_queue(item, passive=True)
            else:
                await channel.declare_exchange(item, passive=True)
            found.append((item, None))
        except NotFound as refusal:  # the error has closed the channel
            found.append((item, refusal.text))
            channel = await connection.open_channel()
    await channel.close()
    return found


async def conflicts(
    connection: Connection, there: Iterable[Exchange | Queue]
) -> tuple[Conflict, ...]:
    """List the objects that exist with different settings. A different type is listed first."""
    found = []
    for item in there:
        if differences := await _differences(connection, item):
            kind = Kind.QUEUE if isinstance(item, Queue) else Kind.EXCHANGE
            found.append(Conflict(kind, item.name, item, item, differences))
    return tuple(found)


async def _differences(connection: Connection, item: Exchange | Queue) -> tuple[Difference, ...]:
    """Return the differences of an existing object. Declaring it again has no side effects."""
    found: dict[str, Difference] = {}
    asked = item
    while len(found) < _MOST_QUESTIONS:
        try:
            # Use a separate channel for each declare, because an error closes it.
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
                # without a new difference, our changed declaration has caused the error
                if not found:
                    found[told.field] = told
                break
            found[told.field] = told
            if isinstance(asked, Queue):
                further = _as_the_broker_has_it(asked, named, told.actual)
                found |= {one.field: one for one in _removed_arguments(asked, further, told.field)}
                asked = further
            else:
                asked = _exchange_as_the_broker_has_it(asked, named, told.actual)
    # A queue with a different type is a different queue, so list this first.
    return tuple(sorted(found.values(), key=lambda one: one.field != "type"))


def _as_the_broker_has_it(asked: Queue, named: Inequivalent, actual: FieldValue) -> Queue:
    """Copy the broker's value of an argument into the queue.

    Arguments that are not valid in combination with this value are removed.
    """
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
        # a routing key is refused without its exchange
        arguments.pop("x-dead-letter-routing-key", None)
    return replace(asked, arguments=arguments)


def _removed_arguments(before: Queue, after: Queue, named: str) -> Iterator[Difference]:
    """Yield the arguments that were removed. The existing queue cannot have them."""
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
    """Count the messages of a queue. Raises NotFound if it does not exist, unlike `count_now`."""
    channel = await connection.open_channel()
    state = await count(channel, queue)
    await channel.close()
    return state


_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?P<kind>queue|exchange) '(?P<name>.*)' "
    r"in vhost '(?P<vhost>.*)': received (?P<declared>.+) but current is (?P<actual>.+)\Z",
    re.DOTALL,
)
_TYPED = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'\Z", re.DOTALL)
_ADVICE = "declare it as the broker has it, or migrate: arguments cannot change in place"


class Inequivalent(NamedTuple):
    """An argument that differs, with both values as the broker formats them. None means that it is
    not set.
    """

    kind: str
    name: str
    argument: str
    declared: str | None
    actual: str | None


def read_inequivalent(text: str) -> Inequivalent | None:
    """Parse the text of a 406. Returns None if it describes a different problem."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return Inequivalent(
        found["kind"],
        found["name"],
        found["argument"],
        _value(found["declared"]),
        _value(found["actual"]),
    )


def _value(text: str) -> str | None:
    if text == "none":
        return None
    typed = _TYPED.match(text)
    return typed["value"] if typed else text.strip("'")


def difference_of(text: str, item: Exchange | Queue | None = None) -> Difference:
    """Return the difference for a declared object, and how to resolve it.

    If the text cannot be parsed, it is used as the difference.
    """
    found = read_inequivalent(text)
    if found is None:
        return Difference("declaration", None, None, f"{text}; {_ADVICE}")
    if item is None:
        return Difference(found.argument, found.declared, found.actual, _ADVICE)
    desired: FieldValue = item.arguments.get(found.argument, _as_value(found.declared, None))
    actual = _as_value(found.actual, desired)
    advice = (
        advise_queue(item, found.argument, desired, actual)
        if isinstance(item, Queue)
        else advise_exchange(found.argument, desired, actual)
    )
    field = "type" if found.argument == "x-queue-type" else found.argument
    if field == "type" and isinstance(item, Queue):
        desired, actual = str(item.type), actual or str(QueueType.CLASSIC)
    return Difference(field, desired, actual, advice.text, advice.policy)


def _as_value(text: str | None, other: FieldValue) -> FieldValue:
    """Convert the broker's text to a number or boolean. Text is kept if the declared value is a
    string.
    """
    if text is None or isinstance(other, str):
        return text
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


_BUILT_IN = re.compile(r"(amq\..*)?\Z")


class Ownership(StrEnum):
    """Which tool creates the objects of the topology."""

    DECLARE = "declare"
    """Hopback creates missing objects."""
    CHECK = "check"
    """Another tool creates objects. Hopback only checks that all exchanges and queues exist."""
    EXTERNAL = "external"
    """Another tool creates objects. Hopback does not check them."""


async def prepare(connection: Connection, topology: Topology, ownership: Ownership) -> None:
    """Declare, check or skip the topology, as specified by `ownership`."""
    match ownership:
        case Ownership.DECLARE:
            await declare(connection, topology)
        case Ownership.CHECK:
            await check(connection, topology)
        case Ownership.EXTERNAL:
            pass


async def declare(connection: Connection, topology: Topology) -> None:
    """Create missing objects.

    This can be repeated safely. Objects are never deleted or replaced.

    Raises:
        TopologyConflict: If objects exist with different settings. No objects have been created.
    """
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    there = [item for item, missing in await look_for(connection, items) if missing is None]
    other = await conflicts(connection, there)
    if other:
        # List all differences, but each remedy only once.
        lines = [f"{topology.name} differs from the broker. No objects were created:"]
        for conflict in other:
            lines.append(f"  {conflict.kind} {conflict.name!r}:")
            advices = {one.advice: None for one in conflict.differences}
            if conflict.differences[0].field == "type":  # a policy cannot change the type
                advices = {conflict.differences[0].advice: None}
            if len(advices) == 1:
                lines += [f"    {one.sides}" for one in conflict.differences]
                lines += [f"    {advice}" for advice in advices]
            else:
                lines += [f"    {one}" for one in conflict.differences]
            if conflict.kind is Kind.QUEUE:
                lines.append(
                    f"    `hopback adopt {shlex.quote(conflict.name)}` writes the file for the queue as it"
                    " is, and for a migrated one"
                )
        raise TopologyConflict("\n".join(lines), kinds=[conflict.kind for conflict in other])
    channel = await connection.open_channel()
    try:
        for item in items:
            if isinstance(item, Queue):
                await channel.declare_queue(item)
            else:
                await channel.declare_exchange(item)
        for binding in topology.bindings:
            await channel.bind(binding)
    except PreconditionFailed as refused:  # another client has created it in the meantime
        raise TopologyConflict(f"{topology.name}: {difference_of(refused.text)}") from refused
    finally:
        await channel.close()


async def check(connection: Connection, topology: Topology) -> None:
    """Check that all exchanges and queues exist. Raises TopologyError with a list of the missing
    ones.

    AMQP cannot check arguments and bindings. Use `hopback topology plan` for this.
    """
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    missing = [text for _, text in await look_for(connection, items) if text is not None]
    if missing:
        lines = [
            f"{topology.name} is not complete on the broker:",
            *(f"  {line}" for line in missing),
            "Create them with `hopback topology apply`.",
        ]
        raise TopologyError("\n".join(lines))


def own_exchanges(topology: Topology) -> list[Exchange]:
    """Remove the default exchange and `amq.*`. They always exist and must not be declared."""
    return [exchange for exchange in topology.exchanges if not _BUILT_IN.match(exchange.name)]


@dataclass(frozen=True, slots=True)
class Restored:
    """The names of created objects, and the problems of objects that cannot be used."""

    created: tuple[str, ...]
    troubles: Mapping[str, str]


async def restore(
    connection: Connection,
    topology: Topology,
    ownership: Ownership,
    *,
    unrouted: Collection[str] = (),
) -> Restored:
    """Create all missing exchanges and queues with their bindings.

    `unrouted` contains the names of exchanges that returned unroutable messages. Their bindings are
    declared again. Objects are only created if the ownership is `declare`. If it is `external`,
    they are not checked.
    """
    created: list[str] = []
    troubles: dict[str, str] = {}
    if ownership is Ownership.EXTERNAL:
        return Restored((), troubles)
    declared: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    for thing in declared:
        was_missing, trouble = await _restore(connection, thing, ownership)
        if trouble:
            troubles[thing.name] = trouble
        elif was_missing:
            created.append(thing.name)
    if ownership is Ownership.DECLARE:
        await _bind(connection, topology, {*created}, {*unrouted}, troubles)
    return Restored(tuple(created), troubles)


async def is_complete(connection: Connection, topology: Topology) -> bool:
    """Check each declared exchange and queue with a passive declare."""
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    channel = await connection.open_channel()
    try:
        for item in items:
            await _check_existence(item)(channel)
    except ChannelClosed:
        return False
    await channel.close()
    return True


async def rebind(connection: Connection, topology: Topology) -> None:
    """Declare all bindings again, because AMQP has no way to list missing ones."""
    await _bind(connection, topology, set(), {each.source for each in topology.bindings}, {})


async def queues_in_migration(connection: Connection, topology: Topology) -> tuple[str, ...]:
    """List the queues that are missing because a migration is about to create them."""
    return tuple(
        [
            queue.name
            for queue in topology.queues
            if isinstance(await _refusal(connection, _check_existence(queue)), NotFound)
            and await _refusal(connection, _check_existence(_shadow_of(queue))) is None
        ]
    )


async def _restore(
    connection: Connection, thing: Exchange | Queue, ownership: Ownership
) -> tuple[bool, str]:
    """Return True if the object was missing, and the problem if it cannot be used."""
    kind = "queue" if isinstance(thing, Queue) else "exchange"
    found = await _refusal(connection, _check_existence(thing))
    missing = isinstance(found, NotFound)
    if found is not None and not missing:
        return missing, f"{kind} {thing.name!r} may not be looked at: {found.text}"
    if ownership is Ownership.CHECK:
        return missing, _NOT_OURS.format(kind=kind, name=thing.name) if missing else ""
    # Check the shadow second, because a migration creates it before deleting the queue.
    if missing and isinstance(thing, Queue):
        shadow = await _refusal(connection, _check_existence(_shadow_of(thing)))
        if shadow is None:
            return missing, _MIGRATING.format(name=thing.name, shadow=thing.name + SHADOW)
        if not isinstance(shadow, NotFound):
            return missing, _UNSEEN.format(
                name=thing.name, shadow=thing.name + SHADOW, why=shadow.text
            )
    if isinstance(thing, Queue):
        refused = await _refusal(connection, lambda channel: channel.declare_queue(thing))
    else:
        refused = await _refusal(connection, lambda channel: channel.declare_exchange(thing))
    if refused is None:
        return missing, ""
    differs = read_inequivalent(refused.text) is not None
    why = difference_of(refused.text, thing) if differs else refused.text
    verb = "created" if missing else "used"
    return missing, f"{kind} {thing.name!r} cannot be {verb}: {why}"


_NOT_OURS = (
    "{kind} {name!r} is missing, and this application does not create objects (ownership `check`):"
    " create it with `hopback topology apply`"
)
_MIGRATING = (
    "queue {name!r} is missing because it is being migrated ({shadow!r} exists): the migration creates"
    " it. If the migration was interrupted, finish it with `hopback topology migrate`"
)
_UNSEEN = (
    "queue {name!r} is missing, and it is unknown whether it is being migrated: no permission to read"
    " {shadow!r} ({why})"
)


async def _bind(
    connection: Connection,
    topology: Topology,
    created: set[str],
    unrouted: set[str],
    troubles: dict[str, str],
) -> None:
    """Declare the bindings of created objects and of exchanges with unroutable messages.

    A queue that existed before may be unbound because it is being migrated, so its bindings are not
    declared.
    """
    has_shadow: dict[str, bool] = {}
    for binding in topology.bindings:
        ends = {binding.source, binding.destination}
        if not ends & (created | unrouted) or ends & troubles.keys():
            continue
        if not binding.to_exchange and binding.destination not in created:
            if binding.destination not in has_shadow:
                shadow = _check_existence(Queue(binding.destination + SHADOW))
                found = await _refusal(connection, shadow)
                has_shadow[binding.destination] = not isinstance(found, NotFound)
            if has_shadow[binding.destination]:
                continue
        refused = await _refusal(connection, _binding(binding))
        if refused is not None:
            troubles[binding.source] = (
                f"{binding.destination!r} cannot be bound to {binding.source!r}: {refused.text}"
            )


async def _refusal(
    connection: Connection, step: Callable[[Channel], Awaitable[object]]
) -> ChannelClosed | None:
    """Run a step on its own channel, because errors close the channel."""
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


def _check_existence(thing: Exchange | Queue) -> Callable[[Channel], Awaitable[object]]:
    if isinstance(thing, Queue):
        return lambda channel: channel.declare_queue(thing, passive=True)
    return lambda channel: channel.declare_exchange(thing, passive=True)
