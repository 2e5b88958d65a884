"""Where a block of the long run takes place: one version of RabbitMQ, as production has it."""

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
"""RabbitMQ's default settings."""

_QUIET_S = 12.0
"""Numbers of quorum queues are up to one tick old, which is 5 s."""

BROKERS = ("3.10", *SUITES.values())
"""The series that a long run can be made on: the installed one and those of the chroots."""


def installation_of(broker: str) -> Installation:
    """The installation of that series. It is started on first use."""
    suites = {series: suite for suite, series in SUITES.items()}
    return installations()[suites[broker]] if broker in suites else HOST


def version_of(node: RabbitNode) -> str:
    """The version reported by a node."""
    return f"RabbitMQ {node.management.call('GET', '/overview')['rabbitmq_version']}"


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of a block.

    `turns` limit working blocks: a block takes a turn and returns it when it only waits for the
    broker, so that another block works meanwhile.
    """

    broker: str
    number: int
    turns: AbstractAsyncContextManager[None]
    scale: float = 1.0
    """Of the messages that a block has by itself."""
    chance: random.Random = field(default_factory=random.Random)
    timings: Timings = PRODUCTION
    quiet: float = _QUIET_S
    """Seconds without any change after which a block is calm: more than two ticks of the broker."""

    @property
    def installation(self) -> Installation:
        """The RabbitMQ of this site."""
        return installation_of(self.broker)

    def messages(self, count: int) -> int:
        """Number of messages at the scale of this run."""
        return max(20, round(count * self.scale))

    @asynccontextmanager
    async def node(self, conf: str = "") -> AsyncIterator[RabbitNode]:
        """A private node with production settings and further lines of `rabbitmq.conf`."""
        node = RabbitNode(installation=self.installation, timings=self.timings, conf=conf)
        await asyncio.to_thread(node.start)
        try:
            yield node
        finally:
            await asyncio.to_thread(node.remove)
