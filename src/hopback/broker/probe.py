"""Comparing over AMQP alone: what a broker without its management API lets us find out.

A passive declare tells whether an object is there; declaring one that is there changes nothing and
is refused with a 406 that names the first argument that differs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.broker.apply_plan import AtRisk
from hopback.errors import NotFound, PreconditionFailed
from hopback.topology.diff import Conflict, Diff, Difference, Entry, Kind

if TYPE_CHECKING:
    from hopback.broker.port import Connection
    from hopback.topology.model import Exchange, Queue, Topology

__all__ = ["Probed", "probe", "refused_argument"]

_REFUSAL = re.compile(
    r"inequivalent arg '(?P<field>[^']+)' for .*: received "
    r"(?:the value )?(?P<desired>none|'[^']*').* but current is (?:the value )?(?P<actual>none|'[^']*')",
    re.DOTALL,
)
_ADVICE = "declare it as the broker has it, or migrate: arguments cannot change in place"


@dataclass(slots=True)
class Probed:
    """What was found out so far."""

    create: list[Entry] = field(default_factory=list)
    same: list[Entry] = field(default_factory=list)
    conflict: list[Conflict] = field(default_factory=list)
    at_risk: list[AtRisk] = field(default_factory=list)

    def diff(self) -> Diff:
        """All of it as a diff; what is there besides cannot be known."""
        return Diff(tuple(self.create), tuple(self.same), tuple(self.conflict), ())


async def probe(desired: Topology, connection: Connection) -> Probed:
    """Ask for each exchange and queue; nothing is created."""
    found = Probed()
    for exchange in desired.exchanges:
        await _probe(found, connection, Kind.EXCHANGE, exchange)
    for queue in desired.queues:
        await _probe(found, connection, Kind.QUEUE, queue)
    for binding in desired.bindings:
        name = f"{binding.source} → {binding.destination} by {binding.routing_key!r}"
        found.create.append(Entry(Kind.BINDING, name, binding))
    for policy in desired.policies:
        found.create.append(Entry(Kind.POLICY, policy.name, policy))
    return found


async def _probe(found: Probed, connection: Connection, kind: Kind, item: Exchange | Queue) -> None:
    """Is it there, and is it so? Each question on a channel of its own: a refusal closes it."""
    entry = Entry(kind, item.name, item)
    try:
        await _declare(connection, item, passive=True)
    except NotFound:
        found.create.append(entry)
        return
    try:
        await _declare(connection, item, passive=False)
    except PreconditionFailed as refusal:
        found.conflict.append(
            Conflict(kind, item.name, item, item, (refused_argument(refusal.text),))
        )
        if kind is Kind.QUEUE:
            found.at_risk.append(await _risk(connection, item))
    else:
        found.same.append(entry)


async def _declare(connection: Connection, item: Exchange | Queue, *, passive: bool) -> None:
    from hopback.topology.model import Queue

    channel = await connection.open_channel()
    if isinstance(item, Queue):
        await channel.declare_queue(item, passive=passive)
    else:
        await channel.declare_exchange(item, passive=passive)
    await channel.close()


async def _risk(connection: Connection, item: Exchange | Queue) -> AtRisk:
    from hopback.topology.model import Queue

    channel = await connection.open_channel()
    state = await channel.declare_queue(Queue(item.name), passive=True)
    await channel.close()
    return AtRisk(item.name, state.messages, None, state.consumers, "AMQP: ready messages only")


def refused_argument(text: str) -> Difference:
    """The argument that a 406 names, with both values; the whole text where it names none."""
    named = _REFUSAL.search(text)
    if named is None:
        return Difference("declaration", None, None, f"{text}; {_ADVICE}")
    return Difference(named["field"], _value(named["desired"]), _value(named["actual"]), _ADVICE)


def _value(text: str) -> str | None:
    return None if text == "none" else text.strip("'")
