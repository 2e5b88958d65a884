"""Declaring on RabbitMQ: refusals are reported with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika  # type: ignore[import-untyped]
import pytest

from hopback import App
from hopback.broker.declare import Ownership, check, declare, look_for, prepare
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.rabbitmq import RabbitMQ
from hopback.errors import TopologyConflict, TopologyError
from hopback.message import Message
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.rabbitmq import RabbitConnection
    from hopback.fields import Headers

_TTL: Headers = {"x-message-ttl": 1000}
_SHOP = Topology(
    "shop",
    exchanges=(Exchange("orders", ExchangeType.TOPIC), Exchange("all", ExchangeType.FANOUT)),
    queues=(Queue("orders.new", QueueType.QUORUM), Queue("orders.retry", arguments=_TTL)),
    bindings=(
        Binding("orders", "orders.new", "order.*"),
        Binding("orders", "all", "#", to_exchange=True),
    ),
)


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[RabbitConnection]:
    """A connection to an empty virtual host."""
    connection = await RabbitMQ(amqp_url).connect()
    yield connection
    await connection.close()


async def test_declared_topology_exists_and_routes(connection: RabbitConnection) -> None:
    """Declaring twice has no further effect."""
    for _ in range(2):
        await declare(connection, _SHOP)
    await check(connection, _SHOP)
    channel = await connection.open_channel()
    await channel.publish(Message("orders", "order.placed", b"x"))
    assert (await channel.declare_queue(Queue("orders.new"), passive=True)).messages == 1


async def test_conflict_names_argument_both_values_and_remedy(
    connection: RabbitConnection,
) -> None:
    """All conflicts are reported at once."""
    await declare(connection, _SHOP)
    other = Topology(
        "other",
        exchanges=(Exchange("orders", ExchangeType.FANOUT),),
        queues=(
            Queue("orders.new"),
            Queue("orders.retry", arguments={"x-message-ttl": 5000}),
            Queue("fresh"),
        ),
    )
    with pytest.raises(TopologyConflict) as caught:
        await declare(connection, other)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[0] == "other differs from the broker. No objects were created:"
    assert lines[1:3] == ["exchange 'orders':", 'type: "fanout" desired, "topic" on the broker']
    assert lines[4:6] == ["queue 'orders.new':", 'type: "classic" desired, "quorum" on the broker']
    assert lines[6].startswith("it cannot change in place")
    assert lines[7].startswith("`hopback adopt orders.new`")
    assert lines[8:10] == [
        "queue 'orders.retry':",
        "x-message-ttl: 5000 desired, 1000 on the broker",
    ]
    assert lines[10].startswith("RabbitMQ uses the smaller value of argument and policy")
    assert len(lines) == 12


@pytest.mark.parametrize("server", ["rabbitmq", "embedded"])
async def test_refused_declare_names_every_difference_and_creates_nothing(
    connection: RabbitConnection, server: str
) -> None:
    """The type is first. The queue made by pika is unchanged, and no retry queue is created."""
    found = Topology("pika", queues=(Queue("orders", arguments={"x-max-length": 1000}),))
    wanted = App("shop")
    wanted.queue("orders", retry=["1s", "5m"])
    server_connection = (
        await EmbeddedBroker().connect("test") if server == "embedded" else connection
    )
    await declare(server_connection, found)
    channel = await server_connection.open_channel()
    await channel.publish(Message("", "orders", b"kept"))
    with pytest.raises(TopologyConflict) as caught:
        await declare(server_connection, wanted.topology)
    said = str(caught.value).splitlines()
    named = [
        text.strip().split(":")[0] for text in said if "on the broker" in text and "desired" in text
    ]
    assert said[2].strip() == 'type: "quorum" desired, "classic" on the broker'
    assert sorted(named[1:]) == [
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-delivery-limit",
        "x-max-length",
        "x-overflow",
    ]
    assert any('x-dead-letter-exchange: "" desired, nothing on the broker' in text for text in said)
    assert any("x-max-length: nothing desired, 1000 on the broker" in text for text in said)
    names = [queue.name for queue in wanted.topology.queues]
    there = [
        item.name
        for item, missing in await look_for(server_connection, wanted.topology.queues)
        if not missing
    ]
    assert (len(names), there) == (4, ["orders"])
    assert (await channel.declare_queue(found.queues[0])).messages == 1


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (Queue("orders.retry"), "x-message-ttl: nothing desired, 1000 on the broker"),
        (
            Queue("orders.retry", arguments={**_TTL, "x-max-length": 5}),
            "x-max-length: 5 desired, nothing on the broker\n    a policy with max-length: 5",
        ),
        (
            Queue("orders.retry", durable=False, arguments=_TTL),
            "durable: false desired, true on the broker",
        ),
    ],
)
async def test_missing_and_additional_arguments_are_distinguished(
    connection: RabbitConnection, declared: Queue, says: str
) -> None:
    await declare(connection, _SHOP)
    with pytest.raises(TopologyConflict) as caught:
        await declare(connection, Topology("x", queues=(declared,)))
    assert says in str(caught.value)


async def test_check_lists_missing_objects_and_creates_none(
    connection: RabbitConnection,
) -> None:
    await declare(connection, Topology("part", queues=_SHOP.queues[:1]))
    for _ in range(2):
        with pytest.raises(TopologyError) as caught:
            await prepare(connection, _SHOP, Ownership.CHECK)
        text = str(caught.value)
        assert "no exchange 'orders'" in text
        assert "no exchange 'all'" in text
        assert "no queue 'orders.retry'" in text
        assert "orders.new" not in text
        assert "hopback topology apply" in text


async def test_external_topology_is_not_declared_or_checked(connection: RabbitConnection) -> None:
    await prepare(connection, _SHOP, Ownership.EXTERNAL)
    with pytest.raises(TopologyError):
        await check(connection, _SHOP)
    await prepare(connection, _SHOP, Ownership.DECLARE)
    await check(connection, _SHOP)


async def test_integers_of_other_width_are_not_a_conflict(
    connection: RabbitConnection, amqp_url: str
) -> None:
    """pika writes 32 bits."""
    theirs = pika.BlockingConnection(pika.URLParameters(amqp_url))
    theirs.channel().queue_declare("orders.retry", durable=True, arguments={"x-message-ttl": 1000})
    theirs.close()
    await declare(connection, _SHOP)


async def test_built_in_exchanges_are_not_declared(connection: RabbitConnection) -> None:
    """RabbitMQ refuses to declare the default exchange and `amq.*`."""
    built_in = (Exchange(""), Exchange("amq.topic", ExchangeType.TOPIC))
    await declare(connection, Topology("x", exchanges=built_in))
