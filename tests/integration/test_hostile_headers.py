"""Hostile headers on RabbitMQ route no message to another queue."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from hopback import App, Context, RabbitMQ, Service
from hopback.broker.supervise import Backoff
from hopback.cli.app import run
from hopback.message import Message, Properties
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.topology.model import Binding, Exchange, Queue, QueueType
from tests.conformance.suite.chapters.arrangements import nested
from tests.faults.hostile import run_hostile
from tests.integration.raw_client import RawClient
from tests.integration.unreadable import UNREADABLE, publish_with_unused_flags, refusal_of
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hopback.broker.port import Channel
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_DEEP = nested(40)
_SMUGGLED = {
    "behind-upper": Properties(headers={"A0": _DEEP, "CC": ["vault"]}),
    "behind-lower": Properties(headers={"a0": _DEEP, "CC": ["vault"]}),
    "twice": Properties(headers={"CC": ["nosuch"]}, further_headers=((b"CC", ["vault"]),)),
    "twice-hidden": Properties(headers={"BCC": ["nosuch"]}, further_headers=((b"BCC", ["vault"]),)),
    "plain": Properties(headers={"CC": ["vault"]}),
}
_LOOPING = {
    "sorts-first": Properties(headers={"aaa": _DEEP}),
    "sorts-last": Properties(headers={"zzz": _DEEP}),
    "forged": Properties(
        headers={"aaa": _DEEP, "hopback-attempts": 0},
        further_headers=((b"hopback-attempts", 0), (b"hopback-queue", "other")),
    ),
}


async def _publish(url: str, cases: Iterable[Properties], queue: str) -> None:
    """Publish as an attacker with write permission only for the exchange `front`, each message with
    a different body.
    """
    connection = await RabbitMQ(url).connect("attacker")
    channel = await connection.open_channel()
    await channel.declare_exchange(Exchange("front"))
    await channel.declare_queue(Queue("vault"))
    await channel.bind(Binding("front", queue, "o"))
    for number, properties in enumerate(cases):
        await channel.publish(Message("front", "o", str(number).encode(), properties))
    await connection.close()


async def _depth(channel: Channel, queue: str) -> int:
    return (await channel.declare_queue(Queue(queue), passive=True)).messages


async def _depths(url: str, *queues: str) -> dict[str, int]:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    found = {queue: await _depth(channel, queue) for queue in queues}
    await connection.close()
    return found


async def test_hostile_headers_neither_route_elsewhere_nor_change_attempts(amqp_url: str) -> None:
    """Every way to hide a `CC` or the attempt count is tried: three runs each, and `vault` stays
    empty.
    """
    cases = {**_SMUGGLED, **_LOOPING}
    runs: dict[str, list[int]] = {}
    parked: list[str] = []
    app = App("shop")

    @app.handler("orders", retry=["50ms", "100ms"])
    async def handle(payload: int, context: Context) -> None:
        runs.setdefault(list(cases)[payload], []).append(context.attempt)
        raise LookupError("always")

    environment = Environment(
        bus=Bus(lambda name, _fields: parked.append(name) if name == "delivery.parked" else None),
        backoff=Backoff(first=0.05, most=0.2),
    )
    service = Service(app, RabbitMQ(amqp_url), environment=environment)
    task = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 20)
    await _publish(amqp_url, cases.values(), "orders")
    await until(lambda: len(parked) == len(cases))
    service.stop()
    await asyncio.wait_for(task, 20)
    assert runs == {name: [1, 2, 3] for name in cases}
    # The broker itself honours the first CC at the publish through `front`, where no such key is bound.
    found = await _depths(amqp_url, "vault", "orders", "orders.dlq")
    assert found == {"vault": 0, "orders": 0, "orders.dlq": len(cases)}


@pytest.mark.parametrize("entries", UNREADABLE.values(), ids=UNREADABLE)
async def test_rabbitmq_refuses_unreadable_headers(rabbitmq: SharedNode, entries: bytes) -> None:
    """It closes the connection, so unreadable headers never come from RabbitMQ."""
    async with RawClient(rabbitmq.url) as client:
        assert await refusal_of(client, entries) == ("connection.close", 541, "INTERNAL_ERROR")


async def test_rabbitmq_accepts_unused_property_flags(rabbitmq: SharedNode) -> None:
    async with RawClient(rabbitmq.url) as client:
        assert await publish_with_unused_flags(client) == b"x"


def test_redrive_of_hostile_headers_reaches_no_other_queue(
    amqp_url: str, rabbitmq: SharedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPBACK_BROKER", amqp_url)
    monkeypatch.setenv("HOPBACK_MANAGEMENT", rabbitmq.management_url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def prepare() -> None:
        connection = await RabbitMQ(amqp_url).connect("test")
        channel = await connection.open_channel()
        to_dlq = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
        await channel.declare_queue(Queue("orders", QueueType.CLASSIC, arguments=to_dlq))
        await channel.declare_queue(Queue("orders.dlq"))
        await connection.close()
        await _publish(amqp_url, _SMUGGLED.values(), "orders.dlq")

    asyncio.run(prepare())
    assert run(("dlq", "redrive", "orders.dlq", "--yes", "--reason", "test")) == 0
    found = asyncio.run(_depths(amqp_url, "vault", "orders", "orders.dlq"))
    assert found == {"vault": 0, "orders": len(_SMUGGLED), "orders.dlq": 0}


async def test_random_messages_are_parked_unchanged_and_delay_no_other(
    amqp_url: str,
) -> None:
    """Retry, snooze, delay and park on RabbitMQ. `tests/faults/hostile.py` has more."""
    found = await run_hostile(amqp_url, None, random.Random(1), messages=60, bystanders=60)
    assert found.holds, found
