"""Operations on an embedded broker with a declared topology: the one builder of the operator tests."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.search import SearchRequest
from hopback.ops.operations import Operations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from hopback.broker.embedded import EmbeddedConnection
    from hopback.clock import Clock
    from hopback.ops.brokers.discovery import Override
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

__all__ = ["CountingBroker", "count_returned", "open_service"]


class CountingBroker(EmbeddedBroker):
    """An embedded broker that counts its connections."""

    connected = 0

    async def connect(self, name: str = "hopback") -> EmbeddedConnection:
        """A new connection."""
        self.connected += 1
        return await super().connect(name)


@asynccontextmanager
async def open_service(
    topology: Topology,
    version: BrokerVersion,
    *,
    live: bool = True,
    declared: bool = True,
    name: str = "",
    overrides: Iterable[Override] = (),
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[tuple[CountingBroker, Operations]]:
    """Declare the topology on a new broker and open operations on it. `options` are those of Operations.

    `live` gives them a management API, `declared` the plans of the topology.
    """
    broker = CountingBroker(version=version)
    connection = await broker.connect("test")
    await declare(connection, topology)
    await connection.close()
    managed = ManagedBroker(
        broker,
        name=name,
        management=EmbeddedManagement(broker) if live else None,
        topologies=(topology,) if declared else (),
        overrides=overrides,
        clock=clock or LoopClock(time.time),
    )
    async with Operations(managed, **options) as operations:
        yield broker, operations


async def count_returned(operations: Operations, job: str) -> int:
    """Search the queue for messages that this job had sent and that are dead again. Return their number."""
    found = 0
    async for progress in operations.search(SearchRequest(job=job, limit=0)):
        found = progress.matching
    return found
