"""Connecting to a real RabbitMQ, and being refused by it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from hopback.broker.message_sender import MessageSender
from hopback.broker.rabbitmq import RabbitMQ
from hopback.errors import (
    ChannelClosed,
    ConnectionFailed,
    ConnectionLost,
    LoginRefused,
    NotFound,
)
from hopback.topology.model import Queue
from hopback.version import BrokerVersion
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from tests.harness.shared import SharedNode


async def test_connection_reports_version_and_closes_in_order(amqp_url: str) -> None:
    """Closing twice is not an error."""
    connection = await RabbitMQ(amqp_url).connect()
    assert connection.version >= BrokerVersion(3, 10)
    channel = await connection.open_channel()
    await connection.close()
    await connection.close()
    assert await connection.wait_closed() is None
    assert await channel.wait_closed() is None
    with pytest.raises(ConnectionLost):
        await connection.open_channel()
    with pytest.raises(ChannelClosed):
        await channel.qos(1)


async def test_wrong_password_is_reported_without_showing_it(rabbitmq: SharedNode) -> None:
    url = rabbitmq.url.replace("guest:guest", "guest:hunter2")
    assert url != rabbitmq.url
    with pytest.raises(ConnectionFailed, match="403 ACCESS_REFUSED") as caught:
        await RabbitMQ(url).connect()
    assert "hunter2" not in str(caught.value) + repr(RabbitMQ(url))


async def test_unknown_virtual_host_raises_login_refused(rabbitmq: SharedNode) -> None:
    """It is not retried."""
    with pytest.raises(LoginRefused, match="vhost nowhere not found"):
        await RabbitMQ(rabbitmq.url + "nowhere").connect()


@pytest.mark.parametrize("wrong", ["password", "virtual host"])
async def test_publisher_with_wrong_address_fails_on_entry(
    rabbitmq: SharedNode, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises at the first attempt and does not log."""
    url = rabbitmq.url + "nowhere"
    if wrong == "password":
        url = rabbitmq.url.replace("guest:guest", "guest:hunter2")
    with pytest.raises(LoginRefused, match=r"403 ACCESS_REFUSED|vhost nowhere not found"):
        async with MessageSender(RabbitMQ(url), timeout=3600):
            raise AssertionError("expected no publisher")
    assert caplog.records == []


async def test_first_host_that_answers_is_used(amqp_url: str) -> None:
    connection = await RabbitMQ(
        ["amqp://guest:guest@127.0.0.1:1/" + amqp_url.rpartition("/")[2], amqp_url]
    ).connect()
    await connection.close()


async def test_error_names_every_failed_host() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: "):
        await RabbitMQ("amqp://127.0.0.1:1,127.0.0.1:2/").connect()


async def test_silent_broker_exceeds_connection_timeout(amqp_url: str) -> None:
    """The timeout covers the handshake."""
    async with Proxy(amqp_url) as proxy:
        proxy.stall()
        with pytest.raises(ConnectionFailed, match="connection_timeout"):
            await RabbitMQ(proxy.url + "?connection_timeout=1").connect()


_PORTS = "AMQP usually has 5672, .* 15672 is the management API, 25672 is for other nodes"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "AMQP 0-9-1 frame, got an HTTP answer"),
        (b"\0\0\0\0\0\0\0\0\0", "AMQP 0-9-1 frame, got b'.*'"),
        (b"", "the broker closed it"),
        (None, r"no answer within 1 s \(connection_timeout\)"),
    ],
)
async def test_error_for_a_port_that_is_not_amqp_names_the_usual_ports(
    answer: bytes | None, error: str
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        if answer is not None:
            writer.write(answer)
        if answer != b"":
            await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    expected = f"{error}. Check the port {port}: {_PORTS}"
    with pytest.raises(ConnectionFailed, match=expected):
        await RabbitMQ(f"amqp://127.0.0.1:{port}?connection_timeout=1").connect()
    await ended.wait()
    server.close()


async def test_refused_login_does_not_suggest_another_port(rabbitmq: SharedNode) -> None:
    with pytest.raises(LoginRefused) as refused:
        await RabbitMQ(rabbitmq.url.replace("guest:guest", "guest:hunter2")).connect()
    assert "15672" not in str(refused.value)


async def test_dead_connection_is_detected_by_heartbeat(amqp_url: str) -> None:
    async with Proxy(amqp_url) as proxy:
        connection = await RabbitMQ(proxy.url + "?heartbeat=1").connect()
        proxy.stall()
        error = await asyncio.wait_for(connection.wait_closed(), 15)
        assert isinstance(error, ConnectionLost)
        assert "heartbeat" in str(error)


async def test_idle_connection_is_kept_by_heartbeats(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url + "?heartbeat=1").connect()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.wait_closed(), 4)
    await connection.close()


async def test_cut_connection_ends_channels_requests_and_publishes(amqp_url: str) -> None:
    async with Proxy(amqp_url) as proxy:
        connection = await RabbitMQ(proxy.url).connect()
        channel = await connection.open_channel()
        proxy.stall()
        request = asyncio.ensure_future(channel.declare_queue(Queue("q")))
        await asyncio.sleep(0)
        proxy.cut()
        with pytest.raises(ConnectionLost):
            await request
        assert isinstance(await connection.wait_closed(), ConnectionLost)
        assert isinstance(await channel.wait_closed(), ConnectionLost)
        with pytest.raises(ConnectionLost):
            channel.ack(1)


async def test_channel_error_keeps_connection(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url).connect()
    broken, sound = await connection.open_channel(), await connection.open_channel()
    for _ in range(2):
        with pytest.raises(NotFound, match="no queue 'missing'"):
            await broken.declare_queue(Queue("missing"), passive=True)
    assert isinstance(await broken.wait_closed(), NotFound)
    assert (await sound.declare_queue(Queue("q"))).messages == 0
    await connection.close()


async def test_channel_numbers_are_limited_and_reused(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url + "?channel_max=2").connect()
    first, _ = await connection.open_channel(), await connection.open_channel()
    with pytest.raises(ConnectionFailed, match="channel_max"):
        await connection.open_channel()
    await first.close()
    third = await connection.open_channel()
    assert third.number == first.number
    await third.qos(1)
    await connection.close()


async def test_cancelled_channel_open_leaks_no_number(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url + "?channel_max=1").connect()
    opening = asyncio.ensure_future(connection.open_channel())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(5):
        while True:
            try:
                channel = await connection.open_channel()
                break
            except ConnectionFailed:
                await asyncio.sleep(0.01)
    await channel.qos(1)
    await connection.close()


async def test_plain_text_password_to_another_host_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = RabbitMQ("amqp://ann:hunter2@broker.invalid/?connection_timeout=1")
    with caplog.at_level(logging.WARNING, logger="hopback"):
        for _ in range(2):
            with pytest.raises(ConnectionFailed):
                await broker.connect()
    assert [record.message.count("unencrypted") for record in caplog.records] == [1]
    assert "hunter2" not in caplog.text
