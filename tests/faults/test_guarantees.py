"""Tests of sentences on the page about guarantees that are not covered by larger tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback import App, Context, Message
from hopback.broker import BrokerVersion, EmbeddedBroker
from hopback.broker.declare import declare
from hopback.broker.embedded import run_virtual
from hopback.designs import DESIGNS
from hopback.errors import Returned
from hopback.runtime import Properties
from hopback.testing import AppTest, in_virtual_time
from hopback.topology.expand import DELIVERY_LIMIT
from hopback.topology.model import Queue
from tests.faults.simulation import play, setting_of

if TYPE_CHECKING:
    from hopback.topology import Topology

VERSIONS = [BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3)]
DOCUMENTED = [name for name, design in DESIGNS.items() if design.documented]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_message_that_kills_its_consumer_is_parked_by_delivery_limit(
    version: BrokerVersion,
) -> None:
    app = App("shop")
    app.queue("orders", retry=["1s"])
    broker = EmbeddedBroker(version=version)
    connection = await broker.connect()
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    await channel.publish(Message("", "orders", b"poison", Properties(delivery_mode=2)))
    deaths = 0
    while broker.snapshot().queue("orders").messages:
        consumer = await broker.connect("doomed")
        taking = await consumer.open_channel()
        if await taking.get("orders") is not None:
            deaths += 1
        broker.cut(consumer)
        assert deaths <= DELIVERY_LIMIT + 1
    assert [one.body for one in broker.snapshot().queue("orders.dlq").messages] == [b"poison"]
    assert deaths == DELIVERY_LIMIT + 1
    await connection.close()


@pytest.mark.parametrize("seed", range(30))
def test_faithful_forms_lose_no_message_without_broker_kills(seed: int) -> None:
    """Connections are cut and consumers are killed."""
    played = play(seed, faithful=True)
    lost = [found for found in played.verdict.findings if found.promise in ("lost", "stuck")]
    assert [str(found) for found in lost] == []


async def _count_after_expiration(topology: Topology, version: BrokerVersion) -> int:
    """Return how many copies are left of a message that expires before it is consumed."""
    broker = EmbeddedBroker(version=version)
    connection = await broker.connect()
    await declare(connection, topology)
    channel = await connection.open_channel()
    queue = topology.plans[0].queue
    await channel.publish(Message("", queue, b"x", Properties(expiration="100", delivery_mode=2)))
    await asyncio.sleep(3600)
    left = sum(len(one.messages) for one in broker.snapshot().queues)
    await connection.close()
    return left


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_expiration_loses_message_in_faithful_ratatoskr_only(
    version: BrokerVersion,
) -> None:
    """In the documented form, the message enters the retry loop, where the broker drops it as a
    cycle.
    """
    faithful = DESIGNS["ratatoskr"].build()
    hardened = DESIGNS["ratatoskr"].build(hardened=True)
    assert run_virtual(_count_after_expiration(faithful, version)) == 0
    assert run_virtual(_count_after_expiration(hardened, version)) == 1


@in_virtual_time
async def test_waiting_message_is_overtaken() -> None:
    """The order is not kept if a message is retried."""
    done: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["30s"], concurrency=1)
    async def handle(number: int, context: Context) -> None:
        if number == 1 and context.attempt == 1:
            raise ValueError("once")
        done.append(number)

    async with AppTest(app) as test:
        for number in (1, 2):
            await test.publish("orders", number)
        await test.drain()
    assert done == [2, 1]


@in_virtual_time
async def test_unroutable_message_is_returned_to_publisher() -> None:
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle() -> None: ...

    async with AppTest(app):
        with pytest.raises(Returned):
            await app.publish("nowhere", 1)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_hardened_dead_letter_queues_have_no_limit_or_ttl(name: str) -> None:
    topology = DESIGNS[name].build(hardened=True)
    for plan in topology.plans:
        parked = topology.queue(plan.parking.queue)
        assert isinstance(parked, Queue)
        removing = {"x-message-ttl", "x-max-length", "x-max-length-bytes", "x-dead-letter-exchange"}
        assert not removing & set(parked.arguments)


def test_runs_without_faults_make_no_duplicate() -> None:
    calm = [seed for seed in range(400) if setting_of(seed).blows == 0]
    assert len(calm) > 10
    verdicts = [verdict for seed in calm if not (verdict := play(seed).verdict).faults]
    assert len(verdicts) > 5
    assert [verdict.duplicates for verdict in verdicts] == [0] * len(verdicts)


@in_virtual_time
async def test_messages_of_deleted_queue_are_deleted_and_counted() -> None:
    app = App("shop")
    app.queue("orders", retry=["1s"])
    broker = EmbeddedBroker()
    connection = await broker.connect()
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    await channel.publish(Message("", "orders", b"x"))
    assert await channel.delete_queue("orders") == 1
    assert not any(queue.messages for queue in broker.snapshot().queues)
    await connection.close()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_hardened_forms_use_the_queues_of_recommended(name: str) -> None:
    """All forms use the same three kinds of queues with the same arguments.

    Only the names are those of the document.
    """
    kinds = {_kind(queue) for queue in DESIGNS["recommended"].build().queues}
    topology = DESIGNS[name].build(hardened=True)
    planned = {plan.queue for plan in topology.plans}
    planned |= {plan.parking.queue for plan in topology.plans}
    planned |= {route.queue for plan in topology.plans for t in plan.tiers for route in t.routes}
    assert {_kind(queue) for queue in topology.queues if queue.name in planned} <= kinds


def _kind(queue: Queue) -> tuple[object, ...]:
    """Return the type and arguments of a queue without names and times."""
    keys = sorted(key for key in queue.arguments if key != "x-dead-letter-routing-key")
    steady = ("x-dead-letter-strategy", "x-overflow", "x-delivery-limit")
    return (queue.type, tuple(keys), tuple(queue.arguments.get(key) for key in steady))
