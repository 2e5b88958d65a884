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


async def test_a_publish_waits_for_its_confirm() -> None:
    """Not done when sent; done when stored."""
    broker = _Broker()
    async with MessageSender(broker) as sender:
        await _prove(sender, broker.servers[0])
        sending = asyncio.create_task(sender.send(Message("", "q", b"x")))
        await _turns()
        assert not sending.done()
        broker.servers[0].send(1, "basic.ack", delivery_tag=1)
        await sending


async def test_a_channel_nacked_again_and_again_is_replaced() -> None:
    """After ten nacks in a row a new channel is opened, and the old one closed when it is idle."""
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


async def test_nacks_with_a_confirm_between_them_replace_nothing() -> None:
    """A queue that is full now and then is no reason for a new channel."""
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


async def test_publishes_of_an_unproven_route_have_a_channel_each() -> None:
    """A refusal fails one message; the route is proven by the first confirm, and shared from then on."""
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
async def test_a_publish_that_may_be_refused_does_not_share_a_channel(message: Message) -> None:
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


async def test_the_routing_key_does_not_matter_on_exchanges_known_not_to_be_topics() -> None:
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


async def test_publishes_that_wait_for_the_first_of_their_route_follow_it_in_order() -> None:
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
async def test_a_property_that_every_broker_refuses_is_an_error_before_it_is_sent(
    properties: Properties, named: str
) -> None:
    broker = _Broker()
    async with MessageSender(broker) as sender:
        with pytest.raises(InvalidMessage, match=f"not sent.*{named}.*expected"):
            await sender.send(Message("", "q", b"x", properties))
        await _turns()
        assert broker.servers[0].published() == []


async def test_a_shared_channel_that_is_closed_fails_only_the_refused_publish() -> None:
    """An exchange was deleted: every interrupted publish is sent again, on a channel of its own."""
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


async def test_a_lost_line_is_made_again_for_those_who_wait() -> None:
    """What was in flight is interrupted; what was not yet sent is sent on the new line."""
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


async def test_a_message_that_cannot_be_sent_is_an_error_at_once() -> None:
    """Too large headers harm neither the channel nor later publishes."""
    broker = _Broker()
    async with MessageSender(broker) as sender:
        too_large = Properties(headers={"big": "x" * 140_000})
        with pytest.raises(InvalidMessage, match="one frame"):
            await sender.send(Message("", "q", b"", too_large))
        await _prove(sender, broker.servers[0], scratch=3)


async def test_no_broker_in_time_says_that_nothing_was_sent() -> None:
    """The reason of the last failure is in the error."""
    broker = _Broker()
    broker.failure = ConnectionFailed("nobody there")
    sender = MessageSender(broker, timeout=0.02, backoff=_QUICK)
    sender.start()
    with pytest.raises(ConnectionFailed, match=r"not sent.*nobody there"):
        await sender.send(Message("", "q", b"x"))
    await sender.close()


@pytest.mark.parametrize("kind", [ConnectionFailed, LoginRefused])
async def test_entering_fails_at_once_where_there_is_no_broker(
    kind: type[ConnectionFailed],
) -> None:
    """The reason of the first try, and not half a minute later at the first publish."""
    broker = _Broker()
    broker.failure = kind("nobody there")
    with pytest.raises(kind, match="nobody there"):
        async with MessageSender(broker, timeout=3600):
            raise AssertionError("expected no sender")


async def test_a_closed_publisher_refuses() -> None:
    """Nobody waits for a line that will not come; closing twice is no error."""
    broker = _Broker()
    sender = MessageSender(broker)
    sender.start()
    await _turns()
    await sender.close()
    await sender.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await sender.send(Message("", "q", b"x"))


async def test_a_line_that_ended_for_good_says_why() -> None:
    """What no new connection can repair reaches the next sender, not only a log."""
    broker = _Broker()
    broker.failure = TopologyError("not like this")
    sender = MessageSender(broker, timeout=5)
    sender.start()
    await _turns()
    with pytest.raises(ConnectionFailed, match="not like this"):
        await sender.send(Message("", "q", b"x"))
    await sender.close()
