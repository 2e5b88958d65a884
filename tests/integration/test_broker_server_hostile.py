"""Clients that mean harm, or are merely broken: the broker bears them, and others go on."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ClockKind, ServerLimits, ServerSettings
from hopback.message import Message, Properties
from hopback.topology.model import Queue
from hopback.wire.frames import PROTOCOL_HEADER, frame
from hopback.wire.methods import METHODS, encode_arguments
from hopback.wire.properties import encode_properties
from tests.integration.raw_client import RawClient
from tests.integration.unreadable import UNREADABLE, publish_with_unused_flags, refusal_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.port import Channel
    from hopback.fields import Headers

pytestmark = pytest.mark.socket

_MIB = 1024 * 1024


def _create_server(**limits: Any) -> BrokerServer:
    settings = ServerSettings(
        port=0, http_port=0, clock=ClockKind.SYSTEM, limits=ServerLimits(**limits)
    )
    return BrokerServer(settings)


@pytest.fixture
async def server() -> AsyncIterator[BrokerServer]:
    """A server that drops silent strangers soon."""
    async with _create_server(handshake_seconds=1.0) as server:
        yield server


@pytest.fixture
async def good(server: BrokerServer) -> AsyncIterator[Channel]:
    """A well-behaved client with a separate queue."""
    connection = await RabbitMQ(server.url).connect("good")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("good"))
    yield channel
    await connection.close()


async def _works(channel: Channel) -> None:
    """Publish, get, ack: within a time that others must not use up."""
    async with asyncio.timeout(5):
        await channel.publish(Message("", "good", b"m"))
        found = await channel.get("good")
        assert found is not None
        channel.ack(found.tag)


def _method(channel: int, name: str, **arguments: Any) -> bytes:
    return frame(1, channel, encode_arguments(METHODS[name], arguments))


def _conversation() -> bytes:
    """The frames of an ordinary client after its handshake."""
    headers: Headers = {"a": 1, "b": [1, {"c": None}], "CC": ["q"]}
    raw = encode_properties(Properties(headers=headers, expiration="5", delivery_mode=2))
    body = b"x" * 100
    content = frame(2, 1, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + raw) + frame(3, 1, body)
    declared = {"queue": "q", "arguments": {"x-message-ttl": 5, "x-max-length": 3}}
    return b"".join(
        (
            _method(1, "channel.open"),
            _method(1, "confirm.select"),
            _method(1, "queue.declare", **declared),
            _method(
                1, "queue.bind", queue="q", exchange="amq.headers", arguments={"x-match": "any"}
            ),
            _method(1, "basic.qos", prefetch_count=2),
            _method(1, "basic.consume", queue="q", consumer_tag="c"),
            _method(1, "basic.publish", exchange="amq.headers", routing_key="k", mandatory=True),
            content,
            _method(1, "basic.publish", routing_key="q"),
            content,
            frame(1, 1, b"\0\x3c\0\x50" + b"\0" * 7 + b"\1\1"),
            _method(1, "basic.get", queue="q"),
            _method(1, "queue.delete", queue="q"),
            _method(1, "channel.close"),
        )
    )


def _spoil(data: bytes, chance: random.Random) -> bytes:
    """The same with bytes changed, left out, doubled, or cut off."""
    spoiled = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(spoiled))
        match chance.randrange(5):
            case 0 | 1:
                spoiled[place] = chance.randrange(256)
            case 2:
                del spoiled[place : place + chance.randint(1, 20)]
            case 3:
                spoiled[place:place] = spoiled[place : place + chance.randint(1, 40)]
            case _:
                spoiled[place:place] = chance.randbytes(chance.randint(1, 12))
    return bytes(spoiled)


@pytest.mark.parametrize("seed", range(8))
async def test_corrupt_frames_affect_only_their_connection(
    server: BrokerServer, good: Channel, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        client = RawClient(server.url)
        await client.connect()
        await client.log_in()
        client.writer.write(_spoil(_conversation(), chance))
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.02):
                while await client.reader.read(65_536):
                    pass
        client.writer.transport.abort()
    await _works(good)
    assert [r for r in caplog.records if r.exc_info] == []
    assert len(server.broker.node.sessions) <= 2


@pytest.mark.parametrize("seed", range(3))
async def test_corrupt_handshakes_raise_no_error(
    server: BrokerServer, good: Channel, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    start = _method(
        0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
    )
    tune = _method(0, "connection.tune-ok", channel_max=1, frame_max=4096, heartbeat=1)
    opening = _method(0, "connection.open", virtual_host="/")
    for _ in range(40):
        _, writer = await asyncio.open_connection(*_place(server))
        writer.write(_spoil(PROTOCOL_HEADER + start + tune + opening, chance))
        with suppress(OSError):
            await writer.drain()
        await asyncio.sleep(0)
        writer.transport.abort()
    await _works(good)
    assert [r for r in caplog.records if r.exc_info] == []


def _place(server: BrokerServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("amqp://").partition(":")
    return host, int(port)


@pytest.mark.parametrize("entries", UNREADABLE.values(), ids=UNREADABLE)
async def test_unreadable_headers_close_connection_with_541(
    server: BrokerServer, good: Channel, entries: bytes
) -> None:
    """RabbitMQ does the same. Others continue."""
    async with RawClient(server.url) as client:
        assert await refusal_of(client, entries) == ("connection.close", 541, "INTERNAL_ERROR")
    await _works(good)


async def test_unused_property_flags_are_accepted(server: BrokerServer) -> None:
    async with RawClient(server.url) as client:
        assert await publish_with_unused_flags(client) == b"x"


async def test_other_protocol_is_answered_with_amqp_header(server: BrokerServer) -> None:
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"\x16\x03\x01\x02\x00"):
        reader, writer = await asyncio.open_connection(*_place(server))
        writer.write(greeting)
        async with asyncio.timeout(5):
            assert await reader.read() == PROTOCOL_HEADER
        writer.close()


async def test_silent_connection_is_dropped(server: BrokerServer, good: Channel) -> None:
    lines = [await asyncio.open_connection(*_place(server)) for _ in range(50)]
    lines[0][1].write(PROTOCOL_HEADER)
    await _works(good)
    async with asyncio.timeout(5):
        for reader, writer in lines:
            while await reader.read(65_536):
                pass
            writer.close()
    assert len(server.broker.clients) == 1


async def test_slow_reader_delays_no_other_client_and_uses_little_memory(
    server: BrokerServer, good: Channel
) -> None:
    """Its deliveries stop while its socket is full."""
    connection = await RabbitMQ(server.url).connect()
    filler = await connection.open_channel()
    await filler.declare_queue(Queue("much"))
    sent = 6000
    for _ in range(sent):
        await filler.room()
        filler.publish(Message("", "much", b"x" * 4096))
    async with RawClient(server.url) as slow:
        slow.send(1, "basic.consume", queue="much", no_ack=True)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.flush()
        await _works(good)
        await asyncio.sleep(0.1)
        await _works(good)
        assert len(server.broker.node.queues["much"].ready) > 1000
        assert max(_unsent_bytes(client.socket) for client in server.broker.clients) < 2 * _MIB
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await slow.method("basic.consume-ok")
        async with asyncio.timeout(20):
            for _ in range(sent):
                await slow.event()
    assert len(server.broker.node.queues["much"].ready) == 0
    await connection.close()


async def test_client_that_reads_no_answers_is_not_read_further(
    server: BrokerServer, good: Channel
) -> None:
    async with RawClient(server.url) as flood:
        await flood.call(1, "queue.declare", queue="x" * 200)
        flood.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = _method(1, "queue.declare", queue="x" * 200, passive=True) * 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                for _ in range(400):
                    flood.writer.write(request)
                    await flood.writer.drain()
                    await _works(good)
        waiting = [client.socket for client in server.broker.clients]
        assert max(map(_unsent_bytes, waiting)) < 12 * _MIB
        await _works(good)


def _unsent_bytes(client: Any) -> int:
    return int(client._socket.get_write_buffer_size())


async def test_unfinished_large_messages_do_not_fill_memory() -> None:
    async with _create_server(memory_bytes=8 * _MIB, message_bytes=4 * _MIB) as server:
        connection = await RabbitMQ(server.url).connect()
        good = await connection.open_channel()
        await good.declare_queue(Queue("good"))
        async with RawClient(server.url) as hoarder:
            begun = b""
            for number in range(2, 6):
                await hoarder.call(number, "channel.open")
                header = b"\0\x3c\0\0" + (4 * _MIB).to_bytes(8, "big") + b"\0\0"
                begun += _method(number, "basic.publish", routing_key="good")
                begun += frame(2, number, header) + frame(3, number, b"x" * 100_000) * 9
            hoarder.writer.write(begun)
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    assert await hoarder.reader.read() == b""
        await _works(good)
        assert not server.broker.blocked
        await connection.close()


async def test_lost_consumer_requeues_its_messages(server: BrokerServer, good: Channel) -> None:
    for _ in range(20):
        client = RawClient(server.url)
        await client.connect()
        await client.log_in()
        await client.call(1, "channel.open")
        await client.call(1, "basic.consume", queue="good")
        client.writer.transport.abort()
        await asyncio.sleep(0)
        await good.publish(Message("", "good", b"m"))
    for _ in range(500):
        if (await good.declare_queue(Queue("good"), passive=True)).messages == 20:
            break
        await asyncio.sleep(0.01)
    assert (await good.declare_queue(Queue("good"), passive=True)).messages == 20
