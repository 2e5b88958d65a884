"""Declaring a topology over the port, checking that it is there, or leaving it to others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.errors import NotFound, PreconditionFailed, TopologyConflict, TopologyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Channel, Connection
    from hopback.topology.model import Exchange, Queue, Topology

__all__ = ["Difference", "Ownership", "check", "declare", "prepare", "read_difference"]

_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?P<kind>queue|exchange) '(?P<name>.*)' "
    r"in vhost '(?P<vhost>.*)': received (?P<declared>.+) but current is (?P<actual>.+)\Z",
    re.DOTALL,
)
_TYPED = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'\Z", re.DOTALL)
_BUILT_IN = re.compile(r"(amq\..*)?\Z")
_BY_POLICY = frozenset(
    {
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-overflow",
        "x-delivery-limit",
    }
)


class Ownership(StrEnum):
    """Who looks after the topology."""

    DECLARE = "declare"
    """We do: whatever is missing is created."""
    CHECK = "check"
    """Others do: we only make sure that every exchange and queue is there."""
    EXTERNAL = "external"
    """Others do, and we do not look."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What the broker's refusal says: which argument of what differs, and both values."""

    kind: str
    name: str
    argument: str
    declared: str
    actual: str

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.name!r}, {self.argument}: declared {self.declared}, "
            f"the broker has {self.actual}. {self._fix}"
        )

    @property
    def _fix(self) -> str:
        if self.actual == "nothing":
            keep = f"Leave {self.argument} out"
        else:
            keep = f"Declare {self.argument} = {self.actual}"
        if self.argument in _BY_POLICY:
            return f"{keep}, set the value by a policy, or recreate the {self.kind}."
        return f"{keep}, or recreate the {self.kind}: it cannot be changed in place."


def read_difference(text: str) -> Difference | None:
    """Read RabbitMQ's text of a 406; None if it says something else."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return Difference(
        found["kind"],
        found["name"],
        found["argument"],
        _value(found["declared"]),
        _value(found["actual"]),
    )


def _value(text: str) -> str:
    if text == "none":
        return "nothing"
    typed = _TYPED.match(text)
    return typed["value"] if typed else text.strip("'")


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
    steps = [_declaring_exchange(exchange) for exchange in _own_exchanges(topology)]
    steps += [_declaring_queue(queue) for queue in topology.queues]
    conflicts = [str(found) for found in await _refusals(connection, steps, PreconditionFailed)]
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
    steps = [_finding_exchange(exchange) for exchange in _own_exchanges(topology)]
    steps += [_finding_queue(queue) for queue in topology.queues]
    missing = [str(found) for found in await _refusals(connection, steps, NotFound)]
    if missing:
        raise TopologyError(
            _listed(f"{topology.name} is not complete on the broker", missing)
            + "\nCreate them with `hopback topology apply`."
        )


def _own_exchanges(topology: Topology) -> list[Exchange]:
    """The default exchange and `amq.*` are always there and cannot be declared."""
    return [exchange for exchange in topology.exchanges if not _BUILT_IN.match(exchange.name)]


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


async def _refusals(
    connection: Connection,
    steps: list[Callable[[Channel], Awaitable[object]]],
    expected: type[PreconditionFailed | NotFound],
) -> list[Difference | str]:
    """Take every step, on a new channel after each refusal (it closes the channel)."""
    refusals: list[Difference | str] = []
    channel = await connection.open_channel()
    try:
        for step in steps:
            try:
                await step(channel)
            except expected as error:
                refusals.append(read_difference(error.text) or error.text)
                channel = await connection.open_channel()
    finally:
        await channel.close()
    return refusals


def _declaring_exchange(exchange: Exchange) -> Callable[[Channel], Awaitable[object]]:
    return lambda channel: channel.declare_exchange(exchange)


def _declaring_queue(queue: Queue) -> Callable[[Channel], Awaitable[object]]:
    return lambda channel: channel.declare_queue(queue)


def _finding_exchange(exchange: Exchange) -> Callable[[Channel], Awaitable[object]]:
    return lambda channel: channel.declare_exchange(exchange, passive=True)


def _finding_queue(queue: Queue) -> Callable[[Channel], Awaitable[object]]:
    return lambda channel: channel.declare_queue(queue, passive=True)
