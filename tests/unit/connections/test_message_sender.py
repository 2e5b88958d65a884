"""The sender, on servers in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.message_sender import MessageSender
from hopback.broker.supervise import Backoff
from hopback.errors import (
    ConnectionFailed,
    InvalidMessage,
    LoginRefused,
    Nacked,
    PublishInterrupted,
    PublishRefused,
    TopologyError,
)
from hopback.message import Message, Properties
from tests.unit.connections.memory import MemoryServer, connect

if TYPE_CHECKING:
    from hopback.broker.rabbitmq import RabbitConnection

_QUICK = Backoff(first=0.001, most=0.001)


class _Broker:
    """Each connection goes to a new server in memory."""

    address = "memory://"

    def __init__(self) -> None:
        self.servers: list[MemoryServer] = []
        self.failure: Exception | None = None
        self.connected_twice = asyncio.Event()

    async def connect(self, name: str = "hopback") -> RabbitConnection:
        if self.failure is not None:
            raise self.failure
        server, connection = await connect(window=5)
        self.servers.append(server)
        if len(self.servers) == 2:
            self.connected_twice.set()
        return connection


async def _turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _prove(sender: MessageSender, server: MemoryServer, scratch: int = 2) -> None:
    """Have a publish to the default exchange confirmed on a scratch channel: later ones share channel 1."""
    sending = asyncio.create_task(sender.send(Message("", "q", bytes(100))))
    await _turns()
    server.send(scratch, "basic.ack", delivery_tag=1)
    await sending


def _open_channels(server: MemoryServer) -> list[int]:
    return sorted(server.core.channels)


async def test_publish_waits_for_its_confirm() -> None:
    broker = _Broker()
    async with MessageSender(broker) as sender:
        await _prove(sender, broker.servers[0])
        sending = asyncio.create_task(sender.send(Message("", "q", b"x")))
        await _turns()
        assert not sending.done()
        broker.servers[0].send(1, "basic.ack", delivery_tag=1)
        await sending


async def test_channel_nacked_ten_times_in_a_row_is_replaced() -> None:
    """The old channel is closed when it is idle."""
    broker = _Broker()
    async with MessageSender(broker) as sender:
        await _prove(sender, broker.servers[0])
        for number in range(1, 11):
            sending = asyncio.create_task(sender.send(Message("", "q", b"x")))
            await _turns()
            assert _open_channels(broker.servers[0]) == [1, 2]
            broker.servers[0].send(1, "basic.nack", delivery_tag=number)
            with pytest.raises(Nacked):
                await sending
        await _turns()
        assert _open_channels(broker.servers[0]) == [2, 3]
        sending = asyncio.create_task(sender.send(Message("", "q", b"y")))
        await _turns()
        broker.servers[0].send(3, "basic.ack", delivery_tag=1)
        await sending
    assert len(broker.servers) == 1


async def test_nacks_with_confirms_between_keep_channel() -> None:
    """A queue may be full for a moment."""
    broker = _Broker()
    async with MessageSender(broker) as sender:
        await _prove(sender, broker.servers[0])
        for number in range(1, 31):
            sending = asyncio.create_task(sender.send(Message("", "q", b"x")))
            await _turns(8 if number > 1 else 30)
            name = "basic.ack" if number % 5 == 0 else "basic.nack"
            broker.servers[0].send(1, name, delivery_tag=number)
            await asyncio.gather(sending, return_exceptions=True)
        await _turns()
        assert _open_channels(broker.servers[0]) == [1, 2]


def _on_channel(server: MemoryServer, number: int) -> list[bytes]:
    return [found.body for found in server.published() if found.channel == number]


async def test_publishes_of_unproven_route_have_separate_channels() -> None:
    """A refusal fails one message.

    The first confirm proves the route, and later publishes share a channel.
    """
    broker = _Broker()
    async with MessageSender(broker) as sender:
        refused = asyncio.create_task(sender.send(Message("missing", "k", b"refused")))
        await _turns()
        accepted = asyncio.create_task(sender.send(Message("there", "k", b"accepted")))
        await _turns()
        server = broker.servers[0]
        assert (_on_channel(server, 2), _on_channel(server, 3)) == ([b"refused"], [b"accepted"])
        server.send(2, "channel.close", reply_code=404, reply_text="NOT_FOUND")
        with pytest.raises(PublishRefused, match="404"):
            await refused
        server.send(3, "basic.ack", delivery_tag=1)
        await accepted
        shared = [
            asyncio.create_task(sender.send(Message("there", "k", b"more"))) for _ in range(3)
        ]
        await _turns()
        assert _on_channel(server, 1) == [b"more"] * 3
        server.send(1, "basic.ack", delivery_tag=3, multiple=True)
        await asyncio.gather(*shared)


@pytest.mark.parametrize(
    "message",
    [
        Message("topics", "another.key", b"x"),
        Message("topics", "a.key", bytes(101)),
        Message("topics", "a.key", b"x", Properties(user_id="someone")),
        Message("topics", "a.key", b"x", Properties(headers={"CC": ["another.key"]})),
        Message("topics", "a.key", b"x", Properties(delivery_mode=7)),
    ],
    ids=["key", "size", "user_id", "CC", "delivery_mode"],
)
async def test_publish_that_may_be_refused_does_not_share_channel(message: Message) -> None:
    broker = _Broker()
    async with MessageSender(broker) as sender:
        first = asyncio.create_task(sender.send(Message("topics", "a.key", bytes(100))))
        await _turns()
        broker.servers[0].send(2, "basic.ack", delivery_tag=1)
        await first
        sending = asyncio.create_task(sender.send(message))
        await _turns()
        assert _on_channel(broker.servers[0], 1) == []
        broker.servers[0].send(2, "basic.ack", delivery_tag=2)
        await sending


async def test_routing_key_is_ignored_for_exchanges_that_are_not_topics() -> None:
    broker = _Broker()
    async with MessageSender(broker, keyless=["direct"]) as sender:
        first = asyncio.create_task(sender.send(Message("direct", "a", b"x")))
        await _turns()
        broker.servers[0].send(2, "basic.ack", delivery_tag=1)
        await first
        sending = asyncio.create_task(sender.send(Message("direct", "b", b"y")))
        await _turns()
        assert _on_channel(broker.servers[0], 1) == [b"y"]
        broker.servers[0].send(1, "basic.ack", delivery_tag=1)
        await sending


async def test_publishes_that_wait_for_first_of_their_route_keep_order() -> None:
    broker = _Broker()
    async with MessageSender(broker) as sender:
        sending = [
            asyncio.create_task(sender.send(Message("", "q", b"%d" % number)))
            for number in range(5)
        ]
        await _turns()
        server = broker.servers[0]
        assert [found.body for found in server.published()] == [b"0"]
        server.send(2, "basic.ack", delivery_tag=1)
        await _turns()
        assert _on_channel(server, 1) == [b"1", b"2", b"3", b"4"]
        server.send(1, "basic.ack", delivery_tag=4, multiple=True)
        await asyncio.gather(*sending)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        (Properties(expiration="soon"), "expiration"),
        (Properties(expiration="-1"), "expiration"),
        (Properties(expiration="315360000001"), "expiration"),
        (Properties(headers={"CC": "q"}), "'CC'"),
        (Properties(headers={"BCC": {"q": 1}}), "'BCC'"),
        (Properties(reply_to="amq.rabbitmq.reply-to"), "reply_to"),
    ],
)
async def test_property_that_every_broker_refuses_raises_before_sending(
    properties: Properties, named: str
) -> None:
    broker = _Broker()
    async with MessageSender(broker) as sender:
        with pytest.raises(InvalidMessage, match=f"not sent.*{named}.*expected"):
            await sender.send(Message("", "q", b"x", properties))
        await _turns()
        assert broker.servers[0].published() == []


async def test_closed_shared_channel_fails_only_refused_publish() -> None:
    """An exchange was deleted. Every interrupted publish is sent again on a separate channel."""
    broker = _Broker()
    async with MessageSender(broker) as sender:
        for number, exchange in enumerate(("there", "gone"), start=1):
            proving = asyncio.create_task(sender.send(Message(exchange, "k", bytes(9))))
            await _turns()
            broker.servers[0].send(2, "basic.ack", delivery_tag=number)
            await proving
        bodies = (b"there", b"gone", b"there")
        sending = [
            asyncio.create_task(sender.send(Message(body.decode(), "k", body))) for body in bodies
        ]
        await _turns()
        server = broker.servers[0]
        assert _on_channel(server, 1) == list(bodies)
        server.send(1, "channel.close", reply_code=404, reply_text="NOT_FOUND")
        await _turns()
        again = [found for found in server.published() if found.channel > 1 and len(found.body) < 9]
        # The third waits for the first, which has the same route.
        assert [found.body for found in again] == [b"there", b"gone"]
        there, gone = again
        server.send(there.channel, "basic.ack", delivery_tag=3 if there.channel == 2 else 1)
        server.send(gone.channel, "channel.close", reply_code=404, reply_text="NOT_FOUND")
        await _turns()
        last = server.published()[-1]
        server.send(last.channel, "basic.ack", delivery_tag=1)
        results = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), PublishRefused, type(None)]


async def test_lost_connection_is_reopened_for_waiting_publishes() -> None:
    """Publishes in flight are interrupted."""
    broker = _Broker()
    async with MessageSender(broker, backoff=_QUICK) as sender:
        await _prove(sender, broker.servers[0])
        sending = [
            asyncio.create_task(sender.send(Message("", "q", b"%d" % number)))
            for number in range(6)
        ]
        await _turns()
        broker.servers[0].break_line()
        first = await asyncio.gather(*sending[:5], return_exceptions=True)
        assert [type(result) for result in first] == [PublishInterrupted] * 5
        await asyncio.wait_for(broker.connected_twice.wait(), 5)
        await _turns()
        broker.servers[1].send(2, "basic.ack", delivery_tag=1)
        await sending[5]
    assert [found.body for found in broker.servers[1].published()] == [b"5"]


async def test_unencodable_message_raises_at_once() -> None:
    """Headers that are too large affect neither the channel nor later publishes."""
    broker = _Broker()
    async with MessageSender(broker) as sender:
        too_large = Properties(headers={"big": "x" * 140_000})
        with pytest.raises(InvalidMessage, match="one frame"):
            await sender.send(Message("", "q", b"", too_large))
        await _prove(sender, broker.servers[0], scratch=3)


async def test_publish_without_broker_raises_connection_failed_after_timeout() -> None:
    broker = _Broker()
    broker.failure = ConnectionFailed("connection refused")
    sender = MessageSender(broker, timeout=0.02, backoff=_QUICK)
    sender.start()
    with pytest.raises(ConnectionFailed, match=r"not sent.*connection refused"):
        await sender.send(Message("", "q", b"x"))
    await sender.close()


@pytest.mark.parametrize("kind", [ConnectionFailed, LoginRefused])
async def test_entering_publisher_without_broker_raises_at_once(
    kind: type[ConnectionFailed],
) -> None:
    broker = _Broker()
    broker.failure = kind("connection refused")
    with pytest.raises(kind, match="connection refused"):
        async with MessageSender(broker, timeout=3600):
            raise AssertionError("expected no sender")


async def test_closed_publisher_refuses_publish() -> None:
    """Closing twice is not an error."""
    broker = _Broker()
    sender = MessageSender(broker)
    sender.start()
    await _turns()
    await sender.close()
    await sender.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await sender.send(Message("", "q", b"x"))


async def test_publisher_that_ended_permanently_raises_reason() -> None:
    broker = _Broker()
    broker.failure = TopologyError("not like this")
    sender = MessageSender(broker, timeout=5)
    sender.start()
    await _turns()
    with pytest.raises(ConnectionFailed, match="not like this"):
        await sender.send(Message("", "q", b"x"))
    await sender.close()
