"""Publishing to RabbitMQ: every publish has its own result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.errors import (
    ConfirmTimeout,
    InvalidMessage,
    Nacked,
    NotFound,
    PublishInterrupted,
    Returned,
)
from hopback.message import Message, Properties
from hopback.topology.model import Queue
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.rabbitmq import RabbitChannel
    from hopback.fields import Headers


@pytest.fixture
async def channel(amqp_url: str) -> AsyncIterator[RabbitChannel]:
    """A channel with a queue `q`."""
    connection = await RabbitMQ(amqp_url, window=50).connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q"))
    yield channel
    await connection.close()


async def test_confirmed_message_is_in_its_queue(channel: RabbitChannel) -> None:
    """It is persistent by default, and its properties are unchanged."""
    await channel.publish(Message("", "q", b"body", Properties(message_id="m", headers={"a": 1})))
    await channel.publish(Message("", "q", b"", Properties(delivery_mode=1)))
    first, second = await channel.get("q"), await channel.get("q")
    assert first is not None
    assert second is not None
    assert (first.body, first.properties) == (
        b"body",
        Properties(message_id="m", headers={"a": 1}, delivery_mode=2),
    )
    assert (first.queue, first.exchange, first.routing_key) == ("q", "", "q")
    assert (second.body, second.properties.delivery_mode) == (b"", 1)


@pytest.mark.parametrize("size", [131_063, 131_064, 131_065, 1_000_000])
async def test_large_bodies_are_unchanged(channel: RabbitChannel, size: int) -> None:
    """The sizes are at and beyond a frame."""
    body = bytes(range(251)) * (size // 251 + 1)
    await channel.publish(Message("", "q", body[:size]))
    found = await channel.get("q")
    assert found is not None
    assert found.body == body[:size]


async def test_equal_message_ids_in_flight_have_separate_results(channel: RabbitChannel) -> None:
    """Every other copy is unroutable."""
    same = Properties(message_id="same", headers={"z": 1, "a": [True, None]})
    fates = [
        channel.publish(Message("", "q" if number % 2 else "nowhere", b"x", same))
        for number in range(100)
    ]
    results = await asyncio.gather(*fates, return_exceptions=True)
    assert [isinstance(result, Returned) for result in results] == [True, False] * 50
    assert [result for result in results if not isinstance(result, Returned)] == [None] * 50
    assert (await channel.declare_queue(Queue("q"), passive=True)).messages == 50


async def test_returned_error_names_exchange_key_and_code(channel: RabbitChannel) -> None:
    with pytest.raises(Returned) as caught:
        await channel.publish(Message("amq.topic", "a.b", b"x"))
    error = caught.value
    assert (error.exchange, error.routing_key, error.code) == ("amq.topic", "a.b", 312)


async def test_unroutable_message_without_mandatory_is_confirmed(channel: RabbitChannel) -> None:
    await channel.publish(Message("", "nowhere", b"x"), mandatory=False)


async def test_full_queue_nacks_publish(channel: RabbitChannel) -> None:
    limits: Headers = {"x-max-length": 3, "x-overflow": "reject-publish"}
    await channel.declare_queue(Queue("full", arguments=limits))
    for _ in range(3):
        await channel.publish(Message("", "full", b"x"))
    with pytest.raises(Nacked, match="'full'"):
        await channel.publish(Message("", "full", b"x"))


async def test_missing_exchange_interrupts_publishes_in_flight(channel: RabbitChannel) -> None:
    """The channel is closed with 404. Unanswered publishes may have been stored."""
    fate = channel.publish(Message("missing", "k", b"x"))
    with pytest.raises(PublishInterrupted, match="404") as caught:
        await fate
    assert isinstance(caught.value.__cause__, NotFound)
    with pytest.raises(NotFound):
        channel.publish(Message("", "q", b"x"))
    with pytest.raises(NotFound):
        await channel.room()


async def test_headers_beyond_frame_are_refused_before_sending(channel: RabbitChannel) -> None:
    """RabbitMQ would close the connection."""
    with pytest.raises(InvalidMessage, match="one frame"):
        channel.publish(Message("", "q", b"x", Properties(headers={"big": "x" * 131_100})))
    await channel.publish(Message("", "q", b"x"))


async def test_publish_window_limits_messages_in_flight(channel: RabbitChannel) -> None:
    most = 0

    async def send() -> None:
        nonlocal most
        await channel.room()
        fate = channel.publish(Message("", "q", b"x"))
        most = max(most, channel.publishing.in_flight)
        await fate

    await asyncio.gather(*(send() for _ in range(1000)))
    assert most == 50
    assert (await channel.declare_queue(Queue("q"), passive=True)).messages == 1000


async def test_cancelled_waiter_frees_its_place_in_window(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url, window=1).connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q"))
    first = channel.publish(Message("", "q", b"x"))
    unused, used = asyncio.ensure_future(channel.room()), asyncio.ensure_future(channel.room())
    await first
    await asyncio.wait_for(asyncio.gather(unused, used), 5)
    await connection.close()


async def test_missing_confirm_raises_timeout_and_keeps_channel(amqp_url: str) -> None:
    async with Proxy(amqp_url) as proxy:
        connection = await RabbitMQ(proxy.url, confirm_timeout=0.3).connect()
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("q"))
        proxy.stall()
        with pytest.raises(ConfirmTimeout, match="'q'"):
            await channel.publish(Message("", "q", b"late"))
        proxy.resume()
        await channel.publish(Message("", "q", b"new"))
        await connection.close()


async def test_cut_connection_interrupts_every_publish(amqp_url: str) -> None:
    async with Proxy(amqp_url) as proxy:
        connection = await RabbitMQ(proxy.url).connect()
        channel = await connection.open_channel()
        proxy.stall()
        fates = [channel.publish(Message("", "q", b"x")) for _ in range(10)]
        await asyncio.sleep(0)
        proxy.cut()
        results = await asyncio.gather(*fates, return_exceptions=True)
        assert all(isinstance(result, PublishInterrupted) for result in results)
