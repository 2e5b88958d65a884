"""The place where a block of the long run runs. It has a version of RabbitMQ with production
settings.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.harness.configuration import Timings
from tests.harness.installation import HOST, Installation
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

__all__ = ["BROKERS", "PRODUCTION", "Site", "installation_of", "version_of"]

PRODUCTION = Timings(
    consumer_timeout_ms=1_800_000, dead_letter_retry_ms=180_000, tick_ms=5_000, statistics_ms=5_000
)
"""The default settings of RabbitMQ."""

_QUIET_S = 12.0
"""Seconds. The statistics of quorum queues may be one tick old, which is 5 s."""

BROKERS = ("3.10", *SUITES.values())
"""The release series on which the long run is possible. One is installed, and the others are in
chroots.
"""


def installation_of(broker: str) -> Installation:
    """Return the installation of a series. It is started on first use."""
    suites = {series: suite for suite, series in SUITES.items()}
    return installations()[suites[broker]] if broker in suites else HOST


def version_of(node: RabbitNode) -> str:
    """Return the version that a node reports."""
    return f"RabbitMQ {node.management.call('GET', '/overview')['rabbitmq_version']}"


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of a block.

    `turns` limits how many blocks work at the same time. A block takes a turn to work, and returns
    it when it only waits for the broker, so that another block can work.
    """

    broker: str
    number: int
    turns: AbstractAsyncContextManager[None]
    scale: float = 1.0
    """The factor by which the number of messages is multiplied."""
    chance: random.Random = field(default_factory=random.Random)
    timings: Timings = PRODUCTION
    quiet: float = _QUIET_S
    """A block is calm after this number of seconds without a change. This must be longer than two
    ticks of the broker.
    """

    @property
    def installation(self) -> Installation:
        """The installation of RabbitMQ."""
        return installation_of(self.broker)

    def messages(self, count: int) -> int:
        """Return the number of messages for this run."""
        return max(20, round(count * self.scale))

    @asynccontextmanager
    async def node(self, conf: str = "") -> AsyncIterator[RabbitNode]:
        """Start a node with production settings and additional lines for `rabbitmq.conf`."""
        node = RabbitNode(installation=self.installation, timings=self.timings, conf=conf)
        await asyncio.to_thread(node.start)
        try:
            yield node
        finally:
            await asyncio.to_thread(node.remove)
