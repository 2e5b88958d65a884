"""The broker on a socket: answers to a client, their order and their texts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ClockKind, ServerLimits, ServerSettings
from hopback.errors import ConnectionFailed, NotFound
from hopback.message import Message, Properties
from hopback.topology.model import Queue
from hopback.version import BrokerVersion
from hopback.wire import Delivered, ReturnedMessage, SettlementReceived
from hopback.wire.properties import encode_properties
from tests.integration.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.fields import Headers

pytestmark = pytest.mark.socket


def served(**settings: Any) -> BrokerServer:
    """A server on free ports, in virtual time."""
    return BrokerServer(
        ServerSettings(**{"port": 0, "http_port": None, "clock": ClockKind.VIRTUAL, **settings})
    )


@pytest.fixture
async def server() -> AsyncIterator[BrokerServer]:
    """A server with RabbitMQ 4.0's behaviour."""
    async with served() as server:
        yield server


@pytest.fixture
async def client(server: BrokerServer) -> AsyncIterator[RawClient]:
    """A client with channel 1 and a queue `q`."""
    async with RawClient(server.url) as client:
        await client.call(1, "queue.declare", queue="q", durable=True)
        yield client


async def test_server_properties_contain_product_and_version() -> None:
    """They equal those of RabbitMQ and identify Hopback."""
    async with served(version=BrokerVersion(4, 3)) as server:
        client = RawClient(server.url)
        await client.connect()
        handshake = await client.log_in()
        told = handshake.server_properties
        client.writer.close()
    assert (told["product"], told["version"]) == ("RabbitMQ", "4.3.0")
    assert "Hopback" in told["information"]
    assert told["capabilities"]["publisher_confirms"] is True
    assert handshake.tuning.channel_max == 2047


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"password": "wrong"}, "403 ACCESS_REFUSED - Login was refused using authentication mech"),
        ({"user": "nobody"}, "403 ACCESS_REFUSED"),
        ({"virtual_host": "other"}, "530 NOT_ALLOWED - vhost other not found"),
    ],
)
async def test_refused_login_has_text_of_rabbitmq(
    server: BrokerServer, login: dict[str, Any], words: str
) -> None:
    client = RawClient(server.url)
    await client.connect()
    with pytest.raises(ConnectionFailed, match=words):
        await client.log_in(**login)
    client.writer.close()


async def test_configured_users_replace_guest() -> None:
    async with served(users={"ann": "s3cret"}) as server:
        place = server.url.removeprefix("amqp://")
        await (await RabbitMQ(f"amqp://ann:s3cret@{place}").connect()).close()
        with pytest.raises(ConnectionFailed, match="403"):
            await RabbitMQ(server.url).connect()
        assert "s3cret" not in repr(server.settings)


async def test_return_precedes_confirm_and_confirms_are_combined(
    client: RawClient,
) -> None:
    """Publishes of one write are confirmed by one ack. An unroutable one does not wait."""
    await client.call(1, "confirm.select")
    client.publish("q")
    client.publish("nowhere", mandatory=True)
    client.publish("q")
    client.publish("q")
    first = await client.event()
    assert isinstance(first, ReturnedMessage)
    assert (first.code, first.text, first.routing_key) == (312, "NO_ROUTE", "nowhere")
    for tag in (2, 4):
        confirmed = await client.event()
        assert isinstance(confirmed, SettlementReceived)
        assert (confirmed.name, confirmed.tag, confirmed.multiple) == ("basic.ack", tag, True)


async def test_refused_publish_is_nacked_alone(client: RawClient) -> None:
    """Earlier publishes are confirmed before it, later ones after it."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await client.call(1, "queue.declare", queue="full", arguments=full)
    await client.call(1, "confirm.select")
    for key in ("full", "full", "q"):
        client.publish(key)
    heard = [await client.event() for _ in range(3)]
    assert [(event.name, event.tag, event.multiple) for event in heard] == [  # type: ignore[union-attr]
        ("basic.ack", 1, False),
        ("basic.nack", 2, False),
        ("basic.ack", 3, False),
    ]


async def test_consume_ok_precedes_first_delivery(client: RawClient) -> None:
    client.publish("q", b"one")
    tag = (await client.call(1, "basic.consume", queue="q"))["consumer_tag"]
    delivered = await client.event()
    assert tag.startswith("amq.ctag-")
    assert isinstance(delivered, Delivered)
    assert (delivered.consumer.decode(), delivered.body, delivered.tag) == (tag, b"one", 1)


async def test_deleted_queue_cancels_its_consumer(client: RawClient) -> None:
    """The cancel follows the answer to the deletion, and the channel stays open."""
    await client.call(1, "basic.consume", queue="q", consumer_tag="me")
    assert (await client.call(1, "queue.delete", queue="q"))["message_count"] == 0
    assert (await client.method("basic.cancel"))["consumer_tag"] == "me"


async def test_channel_error_names_method_and_keeps_connection(
    client: RawClient,
) -> None:
    """The channel number can be used again."""
    client.send(1, "queue.bind", queue="q", exchange="missing", routing_key="k")
    closed = await client.method("channel.close")
    assert closed["reply_text"] == "NOT_FOUND - no exchange 'missing' in vhost '/'"
    assert (closed["reply_code"], closed["class_id"], closed["method_id"]) == (404, 50, 20)
    await client.call(1, "channel.open")
    await client.call(1, "queue.declare", queue="q", durable=True)


async def test_connection_error_closes_after_close_ok(client: RawClient) -> None:
    client.send(1, "basic.qos", prefetch_size=1)
    closed = await client.method("connection.close")
    assert (closed["reply_code"], closed["class_id"], closed["method_id"]) == (540, 60, 10)
    client.flush()
    assert await client.reader.read() == b""


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("basic.recover", {"requeue": False}, "requeue=false"),
        ("basic.qos", {"prefetch_size": 9}, "prefetch_size!=0 (9)"),
        ("channel.flow", {"active": False}, "active=false"),
    ],
)
async def test_unsupported_methods_are_refused_with_540(
    client: RawClient, name: str, arguments: dict[str, Any], words: str
) -> None:
    client.send(1, name, **arguments)
    closed = await client.method("connection.close")
    assert (closed["reply_code"], closed["reply_text"]) == (540, f"NOT_IMPLEMENTED - {words}")


async def test_immediate_publish_is_refused(client: RawClient) -> None:
    """RabbitMQ has refused it since 3.0."""
    client.publish("q", immediate=True)
    assert (await client.method("connection.close"))["reply_code"] == 540


async def test_empty_queue_name_means_last_declared_queue(client: RawClient) -> None:
    """It works for bind, consume, get, purge and delete."""
    made = (await client.call(1, "queue.declare", exclusive=True))["queue"]
    assert made.startswith("amq.gen-")
    await client.call(1, "queue.bind", exchange="amq.topic", routing_key="a.*")
    client.publish("a.b", b"one", exchange="amq.topic")
    client.send(1, "basic.get", no_ack=True)
    assert (await client.event()).body == b"one"  # type: ignore[union-attr]
    assert (await client.call(1, "queue.purge"))["message_count"] == 0
    await client.call(1, "queue.delete")
    fresh = 2
    await client.call(fresh, "channel.open")
    client.send(fresh, "basic.get")
    closed = await client.method("channel.close")
    assert closed["reply_text"] == "NOT_FOUND - no previously declared queue"


async def test_nowait_requests_are_not_answered(client: RawClient) -> None:
    """Errors are still reported."""
    client.send(1, "queue.declare", queue="quiet", nowait=True)
    client.send(1, "exchange.declare", exchange="e", type="fanout", nowait=True)
    client.send(1, "queue.bind", queue="quiet", exchange="e", nowait=True)
    client.publish("", b"one", exchange="e")
    found = await client.call(1, "queue.declare", queue="quiet", passive=True)
    assert found["message_count"] == 1
    client.send(1, "queue.declare", queue="quiet", durable=True, nowait=True)
    assert (await client.method("channel.close"))["reply_code"] == 406


async def test_get_reports_remaining_messages_and_empty(client: RawClient) -> None:
    for body in (b"one", b"two"):
        client.publish("q", body)
    client.send(1, "basic.get", queue="q")
    found = await client.event()
    assert (found.body, found.remaining) == (b"one", 1)  # type: ignore[union-attr]
    client.send(1, "basic.recover", requeue=True)
    await client.method("basic.recover-ok")
    client.send(1, "basic.get", queue="q", no_ack=True)
    again = await client.event()
    assert (again.body, again.redelivered) == (b"one", True)  # type: ignore[union-attr]
    await client.call(1, "queue.purge", queue="q")
    for _ in range(3):
        for _ in range(4000):
            client.send(1, "basic.get", queue="q", no_ack=True)
        for _ in range(4000):
            await client.method("basic.get-empty")


async def test_transaction_takes_effect_at_commit(client: RawClient) -> None:
    """It covers publishes and acks. A rollback discards them."""
    await client.call(1, "tx.select")
    client.publish("q", b"lost")
    await client.call(1, "tx.rollback")
    client.publish("q", b"kept")
    assert (await client.call(1, "queue.declare", queue="q", passive=True))["message_count"] == 0
    await client.call(1, "tx.commit")
    assert (await client.call(1, "queue.declare", queue="q", passive=True))["message_count"] == 1
    client.send(1, "confirm.select")
    assert (await client.method("channel.close"))["reply_code"] == 406


async def test_direct_reply_reaches_its_consumer_without_queue(
    server: BrokerServer, client: RawClient
) -> None:
    name = "amq.rabbitmq.reply-to"
    await client.call(1, "basic.consume", queue=name, no_ack=True, consumer_tag="replies")
    asked = encode_properties(Properties(reply_to=name))
    client.publish("q", b"a question", properties=asked)
    await client.call(1, "queue.declare", queue="q", passive=True)
    async with RawClient(server.url) as other:
        other.send(1, "basic.get", queue="q", no_ack=True)
        back = str((await other.event()).properties.reply_to)  # type: ignore[union-attr]
        assert back.startswith(f"{name}.")
        await other.call(1, "queue.declare", queue=back, passive=True)
        other.publish(back, b"an answer", mandatory=True)
        other.flush()
        reply = await client.event()
        assert isinstance(reply, Delivered)
        assert (reply.consumer, reply.body) == (b"replies", b"an answer")
        await client.call(1, "basic.cancel", consumer_tag="replies")
        other.publish(back, b"too late", mandatory=True)
        assert isinstance(await other.event(), ReturnedMessage)
    client.publish("q", b"a question", properties=asked)
    assert (await client.method("channel.close"))["reply_code"] == 406


async def test_alarm_blocks_only_publishers(server: BrokerServer, client: RawClient) -> None:
    """They are notified and not read.

    When the alarm ends, their publishes are processed in order.
    """
    server.block()
    async with RawClient(server.url) as other:
        client.publish("q", b"waits")
        client.send(1, "queue.declare", queue="later")
        assert (await client.method("connection.blocked"))["reason"] == "low on memory"
        await other.call(1, "queue.declare", queue="now")
        assert await client.is_silent()
        server.block(blocked=False)
        await client.method("connection.unblocked")
        await client.method("queue.declare-ok")
        found = await other.call(1, "queue.declare", queue="q", passive=True)
        assert found["message_count"] == 1


async def test_memory_limit_raises_alarm_until_consumers_free_memory() -> None:
    limits = ServerLimits(memory_bytes=2_000_000)
    async with served(limits=limits) as server:
        publisher, consumer = await _two(server)
        await publisher.declare_queue(Queue("q"))
        fates = [publisher.publish(Message("", "q", b"x" * 100_000)) for _ in range(40)]
        for _ in range(1000):
            if server.broker.blocked:
                break
            await asyncio.sleep(0.01)
        assert 15 < len(server.broker.node.queues["q"].ready) < 25
        taken = 0
        await consumer.qos(5)
        arrived = asyncio.Event()

        def take(delivery: Any) -> None:
            nonlocal taken
            taken += 1
            consumer.ack(delivery.tag)
            if taken == 40:
                arrived.set()

        await consumer.consume("q", take)
        await asyncio.gather(*fates)
        await asyncio.wait_for(arrived.wait(), 10)
        assert not server.broker.blocked


async def _two(server: BrokerServer) -> tuple[Any, Any]:
    first = await RabbitMQ(server.url).connect()
    second = await RabbitMQ(server.url).connect()
    return await first.open_channel(), await second.open_channel()


async def test_message_whose_headers_outgrow_frame_by_x_death_is_delivered(
    server: BrokerServer,
) -> None:
    """RabbitMQ delivers it too."""
    connection = await RabbitMQ(server.url).connect()
    channel = await connection.open_channel()
    back: Headers = {"x-message-ttl": 1000, "x-dead-letter-exchange": ""}
    back = {**back, "x-dead-letter-routing-key": "q"}
    await channel.declare_queue(Queue("q"))
    await channel.declare_queue(Queue("waits", arguments=back))
    headers = {"long": "x" * 130_900}
    await channel.publish(Message("", "waits", b"x" * 300_000, Properties(headers=headers)))
    await server.advance(1)
    found = await channel.get("q")
    assert found is not None
    assert len(found.body) == 300_000
    assert found.properties.headers["long"] == headers["long"]
    assert "x-death" in found.properties.headers
    await connection.close()


async def test_stop_closes_connections_with_text_of_rabbitmq(
    server: BrokerServer, client: RawClient
) -> None:
    """No task is left."""
    stopping = asyncio.create_task(server.stop())
    closed = await client.method("connection.close")
    assert closed["reply_code"] == 320
    client.flush()
    await stopping
    assert server.broker.clients == []


async def test_connections_channels_and_declarations_are_limited() -> None:
    limits = ServerLimits(connections=2, channels=3, declared=10)
    async with served(limits=limits) as server:
        async with RawClient(server.url) as one, RawClient(server.url):
            third = RawClient(server.url)
            await third.connect()
            with pytest.raises((EOFError, ConnectionResetError)):
                await third.log_in()
            third.writer.close()
            # Six exchanges are there from the beginning.
            for number in range(4):
                await one.call(1, "queue.declare", queue=f"q{number}")
            await one.call(1, "queue.declare", queue="q0")
            one.send(1, "queue.declare", queue="one too many")
            assert (await one.method("channel.close"))["reply_code"] == 406
        await server.broker.empty.wait()
        connection = await RabbitMQ(server.url).connect()
        channels = [await connection.open_channel() for _ in range(3)]
        with pytest.raises(ConnectionFailed, match="channel_max"):
            await connection.open_channel()
        with pytest.raises(NotFound):
            await channels[0].declare_queue(Queue("none"), passive=True)
        await connection.close()


async def test_message_beyond_size_limit_closes_channel_with_406() -> None:
    """Far beyond the limit it closes the connection."""
    async with served(limits=ServerLimits(message_bytes=1000)) as server:
        async with RawClient(server.url) as client:
            client.publish("q", b"x" * 1001)
            closed = await client.method("channel.close")
            assert closed["reply_text"].endswith("is larger than configured max size 1000")
        async with RawClient(server.url) as client:
            client.publish("q", b"x" * 2001)
            assert (await client.method("connection.close"))["reply_code"] == 506


async def test_client_without_heartbeats_is_dropped(server: BrokerServer) -> None:
    """The server sends its heartbeats in time."""
    client = RawClient(server.url)
    await client.connect()
    await client.log_in(tuning={"heartbeat": 1})
    heard = b""
    async with asyncio.timeout(10):
        while data := await client.reader.read(100):
            heard += data
    client.writer.close()
    assert heard.startswith(b"\x08\x00\x00\x00\x00\x00\x00\xce" * 2)


async def test_blocked_publisher_needs_no_heartbeat(server: BrokerServer) -> None:
    """The server does not read its data."""
    client = RawClient(server.url)
    await client.connect()
    await client.log_in(tuning={"heartbeat": 1})
    await client.call(1, "channel.open")
    server.block()
    client.publish("q")
    await client.method("connection.blocked")
    async with asyncio.timeout(10):
        beats = await client.reader.readexactly(8 * 6)
    assert beats == b"\x08\x00\x00\x00\x00\x00\x00\xce" * 6
    server.block(blocked=False)
    client.writer.write(b"\x08\x00\x00\x00\x00\x00\x00\xce")
    await client.method("connection.unblocked")
    client.writer.close()


async def test_copies_of_message_count_as_memory() -> None:
    async with served(limits=ServerLimits(memory_bytes=500_000)) as server:
        async with RawClient(server.url) as client:
            for number in range(200):
                await client.call(1, "queue.declare", queue=f"q{number}")
                await client.call(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout")
            for _ in range(20):
                client.publish("", exchange="amq.fanout")
            await client.method("connection.blocked")
        stored = sum(len(queue.ready) for queue in server.broker.node.queues.values())
        assert 600 <= stored <= 1200


async def test_consumers_per_channel_are_limited() -> None:
    async with served(limits=ServerLimits(consumers=2)) as server, RawClient(server.url) as client:
        await client.call(1, "queue.declare", queue="q")
        for _ in range(2):
            await client.call(1, "basic.consume", queue="q")
        client.send(1, "basic.consume", queue="q")
        closed = await client.method("connection.close")
    assert closed["reply_text"] == "NOT_ALLOWED - reached maximum (2) of consumers per channel"
