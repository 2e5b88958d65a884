"""The brokers under test: the embedded broker in process and on a socket, and RabbitMQ nodes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hopback.broker.embedded import EmbeddedBroker, run_virtual
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ClockKind, ServerSettings
from hopback.clock import ManualClock
from tests.conformance.facilities import (
    EmbeddedNode,
    EmbeddedPolicies,
    HttpPolicies,
    PrivateNode,
    ServerNode,
    ServerPolicies,
)
from tests.conformance.suite import Facilities, Outcome, Result, Tag, Timings, run_row
from tests.harness.configuration import QUICK_DEAD_LETTERS_MS
from tests.harness.configuration import Timings as NodeTimings
from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import build

if TYPE_CHECKING:
    from hopback.version import BrokerVersion
    from tests.conformance.suite import Row
    from tests.harness.installation import Installation

__all__ = ["RealSubject", "Subjects", "needs_expendable", "run_embedded", "run_on_socket"]

_QUICK = NodeTimings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
_SHORT = replace(_QUICK, consumer_timeout_ms=3_000)
_EXPENDABLE = frozenset({Tag.TIMEOUT, Tag.NODE, Tag.DESTRUCTIVE})


def needs_expendable(row: Row) -> bool:
    """Return whether the row needs a node without other users."""
    return bool(row.tags & _EXPENDABLE)


def run_embedded(row: Row, version: BrokerVersion) -> Result:
    """Run a row on a new embedded broker, in virtual time. Rows about sockets do not apply."""
    if Tag.SOCKET in row.tags:
        return Result(row, Outcome.NOT_APPLICABLE)
    return run_virtual(_play_embedded(row, EmbeddedBroker(version=version)))


async def _play_embedded(row: Row, broker: EmbeddedBroker) -> Result:
    loop = asyncio.get_running_loop()
    policies, node = EmbeddedPolicies(broker), EmbeddedNode(broker)
    facilities = Facilities(policies=policies, node=node, now=loop.time, wall=loop.time)
    return await run_row(row, broker, facilities)


async def run_on_socket(row: Row, version: BrokerVersion) -> Result:
    """Run a row on a new server over a socket, in the server's virtual time."""
    settings = ServerSettings(port=0, http_port=None, version=version, clock=ClockKind.VIRTUAL)
    async with BrokerServer(settings) as server:
        clock = server.time.clock
        facilities = Facilities(
            policies=ServerPolicies(server),
            node=ServerNode(server),
            pause=lambda seconds: _advance(server, seconds),
            now=clock.now,
            wall=clock.now,
            address=server.url,
        )
        return await run_row(row, RabbitMQ(server.url), facilities)


async def _advance(server: BrokerServer, seconds: float) -> None:
    """Advance like `server.advance`. Clients in this process need only a few turns of the loop."""
    node, clock = server.broker.node, server.time.clock
    assert isinstance(clock, ManualClock)
    end = clock.now() + seconds
    await _run_loop()
    while (due := node.next_deadline()) is not None and due <= end:
        clock.advance_to(max(due, clock.now()))
        node.run_due()
        await _run_loop()
    clock.advance_to(max(end, clock.now()))
    await _run_loop()


async def _run_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@dataclass(slots=True)
class RealSubject:
    """A RabbitMQ version with two nodes, started when needed. The second one is for destructive rows."""

    installation: Installation
    version: str = ""
    """The version that the broker reports, known after the start."""
    _nodes: dict[bool, RabbitNode] = field(default_factory=dict)

    async def run_row(self, row: Row) -> Result:
        """Run a row on the node that it needs."""
        expendable = needs_expendable(row)
        node = await asyncio.to_thread(self._node, expendable)
        facilities = Facilities(
            policies=HttpPolicies(node.management, "/"),
            node=PrivateNode(node) if expendable else None,
            timings=_timings(node.timings),
            address=node.url,
        )
        return await run_row(row, RabbitMQ(node.url), facilities)

    def remove(self) -> None:
        """Remove the nodes."""
        for node in self._nodes.values():
            node.remove()

    def _node(self, expendable: bool) -> RabbitNode:
        if expendable not in self._nodes:
            timings = _SHORT if expendable else _QUICK
            node = RabbitNode(self.installation, timings=timings).start()
            self._nodes[expendable] = node
            self.version = str(node.management.call("GET", "/overview")["rabbitmq_version"])
        return self._nodes[expendable]


@dataclass(slots=True)
class Subjects:
    """RabbitMQ by suite. `host` is the installed one, the others are built if missing."""

    _known: dict[str, RealSubject] = field(default_factory=dict)

    def get(self, suite: str) -> RealSubject:
        """Return the RabbitMQ of a suite."""
        if suite not in self._known:
            self._known[suite] = RealSubject(HOST if suite == "host" else build(suite))
        return self._known[suite]

    def remove(self) -> None:
        """Remove all nodes."""
        for subject in self._known.values():
            subject.remove()


def _timings(node: NodeTimings) -> Timings:
    return Timings(
        consumer_timeout=node.consumer_timeout_ms / 1000,
        consumer_check=node.tick_ms / 1000,
        dead_letter_retry=node.dead_letter_retry_ms / 1000,
        quorum_tick=node.tick_ms / 1000,
    )
