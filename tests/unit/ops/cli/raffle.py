"""The raffle on an embedded broker, with dead letters and the operations on them, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.designs import DESIGNS
from hopback.headers.names import FAILURE, QUEUE
from hopback.message import Message, Properties
from hopback.ops.cli.access import OpsAccess
from hopback.ops.contract.requests import Settings, Who
from hopback.version import BrokerVersion
from tests.unit.ops.service import open_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import click

    from hopback.broker.embedded import EmbeddedBroker
    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.jobs.journal import Journal
    from hopback.ops.operations import Operations

__all__ = ["ANN", "DLQ", "HOSTILE", "MAIN", "TOPOLOGY", "Raffle", "raffle", "run_command"]

TOPOLOGY = DESIGNS["raffle"].build({}, hardened=False)
MAIN = TOPOLOGY.plans[0].queue
DLQ = TOPOLOGY.plans[0].parking.queue
ANN = Who("ann@host", "ann")
HOSTILE = "\x1b]0;owned\x07\x1b[2J"
"""Control sequences that must not reach a terminal."""


@dataclass(frozen=True, slots=True)
class Raffle:
    """The operations of a command, and the broker."""

    dead_letters: Operations
    operations: Operations
    broker: EmbeddedBroker

    async def park(self, count: int, **failure: object) -> None:
        """Publish dead letters to the dead-letter queue, number 0 first."""
        connection = await self.broker.connect("a consumer")
        channel = await connection.open_channel()
        await asyncio.gather(*(channel.publish(_dead_letter(n, failure)) for n in range(count)))
        await connection.close()

    def held(self, queue: str) -> list[str]:
        """Return the IDs of the ready messages of a queue in order."""
        found = self.broker.snapshot().queue(queue)
        return [str(message.properties.message_id) for message in found.ready]


def _dead_letter(number: int, failure: dict[str, object]) -> Message:
    record = {
        "type": "shop.OutOfStock" if number % 2 else "TimeoutError",
        "message": "out of stock",
        "fingerprint": "aaaa1111" if number % 2 else "bbbb2222",
        "first": "2023-11-14T20:00:00.000Z",
        "last": "2023-11-14T22:00:00.000Z",
        "attempts": 4,
        **failure,
    }
    properties = Properties(
        message_id=f"m-{number}",
        type="OrderPlaced",
        headers={FAILURE: json.dumps(record), QUEUE: MAIN, "x-number": number},
    )
    return Message("", DLQ, b'{"number":%d}' % number, properties)


@asynccontextmanager
async def raffle(
    *,
    version: str = "3.13",
    exports: Path | None = None,
    journal: Journal | None = None,
) -> AsyncIterator[Raffle]:
    """Open the raffle's queues on an embedded broker and the operations on its dead letters."""
    opened = open_service(
        TOPOLOGY,
        BrokerVersion.parse(version),
        journal=journal,
        settings=Settings(exports=exports, editing=True),
    )
    async with opened as (broker, operations):
        yield Raffle(operations.on_behalf_of(ANN), operations, broker)


async def run_command(command: click.Command, dead_letters: DeadLetters, *words: object) -> Any:
    """Run a command with these arguments on open dead letters."""
    assert command.callback is not None
    with command.make_context(command.name, [str(word) for word in words]) as context:
        options = {
            name: value for name, value in context.params.items() if name not in OpsAccess.__slots__
        }
        return await inspect.unwrap(command.callback)(dead_letters, **options)
