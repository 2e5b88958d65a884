"""Declaring a topology over the port, checking that it is there, or leaving it to others."""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.broker.inequivalent import Inequivalent, difference_of, read_inequivalent
from hopback.broker.probe import conflicts, look_for
from hopback.errors import PreconditionFailed, TopologyConflict, TopologyError
from hopback.renamed import OldNameLookup, old_names
from hopback.topology.diff import Kind
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.broker.port import Connection
    from hopback.topology.diff import Conflict
    from hopback.topology.model import Exchange, Topology

__all__ = ["Ownership", "check", "declare", "own_exchanges", "prepare"]

_BUILT_IN = re.compile(r"(amq\..*)?\Z")


class Ownership(StrEnum):
    """Who looks after the topology."""

    DECLARE = "declare"
    """We do: whatever is missing is created."""
    CHECK = "check"
    """Others do: we only make sure that every exchange and queue is there."""
    EXTERNAL = "external"
    """Others do, and we do not look."""


async def prepare(connection: Connection, topology: Topology, ownership: Ownership) -> None:
    """Declare, check or leave alone, as `ownership` says."""
    match ownership:
        case Ownership.DECLARE:
            await declare(connection, topology)
        case Ownership.CHECK:
            await check(connection, topology)
        case Ownership.EXTERNAL:
            pass


async def declare(connection: Connection, topology: Topology) -> None:
    """Create what is missing; TopologyConflict lists everything that exists in another form.

    Safe to repeat. Nothing is deleted or replaced, and nothing is created if anything conflicts.
    """
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    there = [item for item, missing in await look_for(connection, items) if missing is None]
    other = await conflicts(connection, there)
    if other:
        raise TopologyConflict(_refusal(topology.name, other))
    channel = await connection.open_channel()
    try:
        for item in items:
            if isinstance(item, Queue):
                await channel.declare_queue(item)
            else:
                await channel.declare_exchange(item)
        for binding in topology.bindings:
            await channel.bind(binding)
    except PreconditionFailed as refused:  # somebody else has created it meanwhile
        raise TopologyConflict(f"{topology.name}: {difference_of(refused.text)}") from refused
    finally:
        await channel.close()


def _refusal(name: str, other: Sequence[Conflict]) -> str:
    """Every difference of every object; of advices that several have in common, one."""
    lines = [f"{name} differs from the broker; nothing was created:"]
    for conflict in other:
        lines.append(f"  {conflict.kind} {conflict.name!r}:")
        advices = {one.advice: None for one in conflict.differences}
        if conflict.differences[0].field == "type":  # no policy makes it another type
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
    return "\n".join(lines)


async def check(connection: Connection, topology: Topology) -> None:
    """Make sure that every exchange and queue exists; TopologyError lists all that do not.

    AMQP shows neither arguments nor bindings: `hopback topology plan` compares those.
    """
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    missing = [text for _, text in await look_for(connection, items) if text is not None]
    if missing:
        raise TopologyError(
            _listed(f"{topology.name} is not complete on the broker", missing)
            + "\nCreate them with `hopback topology apply`."
        )


def own_exchanges(topology: Topology) -> list[Exchange]:
    """The default exchange and `amq.*` are always there and cannot be declared."""
    return [exchange for exchange in topology.exchanges if not _BUILT_IN.match(exchange.name)]


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


__getattr__: OldNameLookup = old_names(
    __name__,
    {
        "Difference": (Inequivalent, "hopback.broker.inequivalent.Inequivalent"),
        "read_difference": (read_inequivalent, "hopback.broker.inequivalent.read_inequivalent"),
    },
)
