"""Messages with random bytes among ordinary ones. They pass through all hops in RabbitMQ and all
`dlq` commands.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopback import App, Context, RabbitMQ, Retry, Service, Snooze
from hopback.broker.supervise import Backoff
from hopback.runtime import Environment
from hopback.topology.model import Queue
from hopback.wire.events import SettlementReceived
from tests.faults.results import Result
from tests.harness.hostile_bytes import hostile_text, own_part, raw_properties
from tests.integration.raw_client import RawClient

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import AsyncIterator

    from hopback.broker.port import Channel
    from hopback.message import Delivery
    from tests.faults.site import Site

__all__ = ["HostileResult", "hostile", "run_hostile"]

_MAIN, _DLQ, _EXCHANGE = "orders", "orders.dlq", "events"
_PATIENCE_S = 120.0
_Part = tuple[bytes, "Counter[bytes]"]


@dataclass(slots=True)
class HostileResult:
    """The counts of one run."""

    messages: int
    bystanders: int
    parked: int = 0
    held: int = 0
    done: int = 0
    """The number of ordinary messages that ran once."""
    changed: dict[str, int] = field(default_factory=dict)
    """For each hop, the number of messages that were missing or changed after it."""
    failed: dict[str, str] = field(default_factory=dict)
    """For each command that failed, the end of its output."""

    @property
    def holds(self) -> bool:
        return (
            self.parked == self.messages
            and self.done == self.bystanders
            and not (self.held or self.failed or any(self.changed.values()))
        )

    def row(self, broker: str) -> tuple[str, str, str]:
        what = f"messages of random bytes, {broker}"
        told = (
            f"{self.messages:,} among {self.bystanders:,} others: {self.parked:,} parked,"
            f" {self.held} held, {sum(self.changed.values())} changed, {len(self.failed)} commands"
            " failed"
        )
        return what, told, "holds" if self.holds else f"failed: {self.changed} {self.failed}"


def _story(run: int) -> Any:
    """Return the outcome of a run. A message is snoozed, retried, delayed for longer than any retry
    queue, and finally parked.
    """
    return (Snooze("50ms"), Retry("no"), Retry("later", after="1s"), Retry("no"))[min(run, 3)]


async def run_hostile(
    url: str, management: str | None, chance: random.Random, messages: int, bystanders: int
) -> HostileResult:
    """Publish both kinds of messages and handle them with a service.

    If `management` is given, the commands are run as well.
    """
    result = HostileResult(messages, bystanders)
    app, runs, done = App("shop"), dict[bytes, list[tuple[str, _Part]]](), list[bytes]()
    app.delays("1h")
    app.queue(_MAIN, bind={_EXCHANGE: ["#"]}, retry=["100ms", "200ms"], attempts=3)

    @app.handler(_MAIN, concurrency=20)
    async def handle(context: Context) -> Any:
        delivery = context.delivery
        if delivery.body.startswith(b"b"):
            done.append(delivery.body)
            return None
        seen = runs.setdefault(delivery.body, [])
        seen.append((context.routing_key, own_part(delivery.properties)))
        return _story(len(seen) - 1)

    service = Service(
        app, RabbitMQ(url), environment=Environment(backoff=Backoff(first=0.05, most=0.2))
    )
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 60)
    try:
        await _publish(url, chance, messages, bystanders)
        async with _channel(url) as channel, asyncio.timeout(_PATIENCE_S):
            while len(done) < bystanders or await _count(channel) < messages:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    except TimeoutError:
        result.held = sum(one.in_flight + one.held_count for one in service.consumers)
    finally:
        service.stop()
        await running
    result.done = len(done) - 2 * (len(done) - len(set(done)))
    first = {body: seen[0][1] for body, seen in runs.items()}
    result.changed["retry, snooze and delay"] = messages - sum(
        all(one == seen[0] for one in seen) for seen in runs.values()
    )
    parked = await _contents(url, _DLQ)
    result.parked = len(parked)
    result.changed["park"] = _differences(first, parked)
    if management is not None:
        await _commands(result, url, management, first)
    return result


async def _count(channel: Channel) -> int:
    return (await channel.declare_queue(Queue(_DLQ), passive=True)).messages


def _differences(expected: dict[bytes, _Part], found: dict[bytes, _Part]) -> int:
    return sum(found.get(body) != part for body, part in expected.items())


async def _publish(url: str, chance: random.Random, messages: int, bystanders: int) -> None:
    """Publish messages with random bytes and ordinary messages between them."""
    async with _raw_client(url) as client:
        await client.call(1, "confirm.select")
        for number in range(max(messages, bystanders)):
            if number < messages:
                key = hostile_text(chance).decode("utf-8", "surrogateescape")
                client.publish(
                    key, b"h%d" % number, exchange=_EXCHANGE, properties=raw_properties(chance)
                )
            if number < bystanders:
                client.publish("order.created", b"b%d" % number, exchange=_EXCHANGE)
        client.flush()
        await client.writer.drain()
        # If the connection is cut, a quorum queue loses publishes that were not confirmed.
        unconfirmed = set(range(1, messages + bystanders + 1))
        while unconfirmed:
            event = await client.event()
            assert isinstance(event, SettlementReceived), event
            first = 1 if event.multiple else event.tag
            unconfirmed.difference_update(range(first, event.tag + 1))


@asynccontextmanager
async def _raw_client(url: str) -> AsyncIterator[RawClient]:
    client = RawClient(url)
    await client.connect()
    vhost = url.rpartition("/")[2] or "/"
    await client.log_in(virtual_host=vhost)
    await client.call(1, "channel.open")
    try:
        yield client
    finally:
        await client.__aexit__()


@asynccontextmanager
async def _channel(url: str) -> AsyncIterator[Channel]:
    connection = await RabbitMQ(url).connect("test")
    try:
        yield await connection.open_channel()
    finally:
        await connection.close()


async def _contents(url: str, queue: str) -> dict[bytes, _Part]:
    """Return the producer's part of all messages in a queue. The messages stay there."""
    found: dict[bytes, _Part] = {}
    async with _channel(url) as channel:
        delivery: Delivery | None
        while (delivery := await channel.get(queue)) is not None:
            found[delivery.body] = own_part(delivery.properties)
    return found


async def _commands(
    result: HostileResult, url: str, management: str, expected: dict[bytes, _Part]
) -> None:
    """List, search, export, discard, import and re-drive messages. Each command is a process."""
    with tempfile.TemporaryDirectory() as folder:
        archive = str(Path(folder) / "archive.ndjson")
        for words in (
            ("ls",),
            ("show", _DLQ),
            ("peek", _DLQ, "--format", "table"),
            ("peek", _DLQ, "--filter", "key:*"),
            ("search", "h1", "--queue", _DLQ),
            ("groups", _DLQ, "--by", "type", "--format", "table"),
            ("export", _DLQ, "--to", archive),
            ("discard", _DLQ, "--no-export", "--reason", "test", "--yes"),
            ("import", archive, "--reason", "test", "--yes"),
        ):
            await _command(result, url, management, folder, *words)
        result.changed["export and import"] = _differences(expected, await _contents(url, _DLQ))
        redrive = ("redrive", _DLQ, "--max-redrives", "0", "--reason", "test")
        for last in ("--dry-run", "--yes"):
            await _command(result, url, management, folder, *redrive, last)
        result.changed["re-drive"] = _differences(expected, await _contents(url, _MAIN))


async def _command(
    result: HostileResult, url: str, management: str, folder: str, *words: str
) -> None:
    environment = {
        **os.environ,
        "HOPBACK_BROKER": url,
        "HOPBACK_MANAGEMENT": management,
        "XDG_STATE_HOME": folder,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hopback", "dlq", *words,
        env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), _PATIENCE_S)
    if process.returncode:
        told = output.decode("utf-8", "replace")[-600:]
        result.failed[" ".join(words)] = json.dumps(f"{process.returncode}: {told}")


async def hostile(site: Site) -> Result:
    """Run two rounds on one broker."""
    found = Result("")
    async with site.turns, site.node() as node:
        for number in range(2):
            vhost = f"hostile{number}"
            await asyncio.to_thread(node.management.create_vhost, vhost)
            one = await run_hostile(
                node.url + vhost,
                node.management_url,
                site.chance,
                site.messages(2_000),
                site.messages(2_000),
            )
            found.checks.append(one.row(site.broker))
    return found
