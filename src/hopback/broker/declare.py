"""Declaring a topology over the port, checking that it is there, or leaving it to others."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.broker.inequivalent import Inequivalent, difference_of, read_inequivalent
from hopback.errors import NotFound, PreconditionFailed, TopologyConflict, TopologyError
from hopback.renamed import old_names
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from hopback.broker.port import Connection
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

    Safe to repeat. Nothing is deleted or replaced. Bindings are added only if nothing conflicts.
    """
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    refused = await _refusals(connection, items, PreconditionFailed)
    conflicts = [
        f"{'queue' if isinstance(item, Queue) else 'exchange'} {item.name!r}, {difference_of(text, item)}"
        for item, text in refused
    ]
    if conflicts:
        raise TopologyConflict(_listed(f"{topology.name} differs from the broker", conflicts))
    channel = await connection.open_channel()
    try:
        for binding in topology.bindings:
            await channel.bind(binding)
    finally:
        await channel.close()


async def check(connection: Connection, topology: Topology) -> None:
    """Make sure that every exchange and queue exists; TopologyError lists all that do not.

    AMQP shows neither arguments nor bindings: `hopback topology plan` compares those.
    """
    items: list[Exchange | Queue] = [*own_exchanges(topology), *topology.queues]
    missing = [text for _, text in await _refusals(connection, items, NotFound)]
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


async def _refusals(
    connection: Connection,
    items: list[Exchange | Queue],
    expected: type[PreconditionFailed | NotFound],
) -> list[tuple[Exchange | Queue, str]]:
    """Declare each, or look for it where it may be missing; a refusal closes the channel."""
    passive = expected is NotFound
    refusals = []
    channel = await connection.open_channel()
    try:
        for item in items:
            try:
                if isinstance(item, Queue):
                    await channel.declare_queue(item, passive=passive)
                else:
                    await channel.declare_exchange(item, passive=passive)
            except expected as error:
                refusals.append((item, error.text))
                channel = await connection.open_channel()
    finally:
        await channel.close()
    return refusals


__getattr__ = old_names(
    __name__,
    {
        "Difference": (Inequivalent, "hopback.broker.inequivalent.Inequivalent"),
        "read_difference": (read_inequivalent, "hopback.broker.inequivalent.read_inequivalent"),
    },
)
