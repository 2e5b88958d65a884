"""The publisher, on servers in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.publisher import Publisher
from hopback.broker.supervise import Backoff
from hopback.errors import (
    ConnectionFailed,
    LoginRefused,
    Nacked,
    ProtocolError,
    PublishInterrupted,
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


def _open_channels(server: MemoryServer) -> list[int]:
    return sorted(server.core.channels)


async def test_a_publish_waits_for_its_confirm() -> None:
    """Not done when sent; done when stored."""
    broker = _Broker()
    async with Publisher(broker) as publisher:
        sending = asyncio.create_task(publisher.publish(Message("", "q", b"x")))
        await _turns()
        assert not sending.done()
        broker.servers[0].send(1, "basic.ack", delivery_tag=1)
        await sending


async def test_a_channel_nacked_again_and_again_is_replaced() -> None:
    """After ten nacks in a row a new channel is opened, and the old one closed when it is idle."""
    broker = _Broker()
    async with Publisher(broker) as publisher:
        for number in range(1, 11):
            sending = asyncio.create_task(publisher.publish(Message("", "q", b"x")))
            await _turns()
            assert _open_channels(broker.servers[0]) == [1]
            broker.servers[0].send(1, "basic.nack", delivery_tag=number)
            with pytest.raises(Nacked):
                await sending
        await _turns()
        assert _open_channels(broker.servers[0]) == [2]
        sending = asyncio.create_task(publisher.publish(Message("", "q", b"y")))
        await _turns()
        broker.servers[0].send(2, "basic.ack", delivery_tag=1)
        await sending
    assert len(broker.servers) == 1


async def test_nacks_with_a_confirm_between_them_replace_nothing() -> None:
    """A queue that is full now and then is no reason for a new channel."""
    broker = _Broker()
    async with Publisher(broker) as publisher:
        for number in range(1, 31):
            sending = asyncio.create_task(publisher.publish(Message("", "q", b"x")))
            await _turns(8 if number > 1 else 30)
            name = "basic.ack" if number % 5 == 0 else "basic.nack"
            broker.servers[0].send(1, name, delivery_tag=number)
            await asyncio.gather(sending, return_exceptions=True)
        await _turns()
        assert _open_channels(broker.servers[0]) == [1]


async def test_a_closed_channel_fails_what_was_on_it_and_nothing_else() -> None:
    """Publishes that still wait for room go on over the next channel."""
    broker = _Broker()
    async with Publisher(broker) as publisher:
        sending = [
            asyncio.create_task(publisher.publish(Message("", "q", b"%d" % number)))
            for number in range(8)
        ]
        await _turns()
        assert len(broker.servers[0].published()) == 5
        broker.servers[0].send(1, "channel.close", reply_code=404, reply_text="NOT_FOUND")
        await _turns()
        broker.servers[0].send(2, "basic.ack", delivery_tag=3, multiple=True)
        results = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(result) for result in results[:5]] == [PublishInterrupted] * 5
    assert results[5:] == [None] * 3


async def test_a_lost_line_is_made_again_for_those_who_wait() -> None:
    """What was in flight is interrupted; what was not yet sent is sent on the new line."""
    broker = _Broker()
    async with Publisher(broker, backoff=_QUICK) as publisher:
        sending = [
            asyncio.create_task(publisher.publish(Message("", "q", b"%d" % number)))
            for number in range(6)
        ]
        await _turns()
        broker.servers[0].break_line()
        first = await asyncio.gather(*sending[:5], return_exceptions=True)
        assert [type(result) for result in first] == [PublishInterrupted] * 5
        await asyncio.wait_for(broker.connected_twice.wait(), 5)
        await _turns()
        broker.servers[1].send(1, "basic.ack", delivery_tag=1)
        await sending[5]
    assert [found.body for found in broker.servers[1].published()] == [b"5"]


async def test_a_message_that_cannot_be_sent_is_an_error_at_once() -> None:
    """Too large headers harm neither the channel nor later publishes."""
    broker = _Broker()
    async with Publisher(broker) as publisher:
        too_large = Properties(headers={"big": "x" * 140_000})
        with pytest.raises(ProtocolError, match="one frame"):
            await publisher.publish(Message("", "q", b"", too_large))
        sending = asyncio.create_task(publisher.publish(Message("", "q", b"x")))
        await _turns()
        broker.servers[0].send(1, "basic.ack", delivery_tag=1)
        await sending


async def test_no_broker_in_time_says_that_nothing_was_sent() -> None:
    """The reason of the last failure is in the error."""
    broker = _Broker()
    broker.failure = ConnectionFailed("nobody there")
    publisher = Publisher(broker, timeout=0.02, backoff=_QUICK)
    publisher.start()
    with pytest.raises(ConnectionFailed, match=r"nothing was sent.*nobody there"):
        await publisher.publish(Message("", "q", b"x"))
    await publisher.close()


@pytest.mark.parametrize("kind", [ConnectionFailed, LoginRefused])
async def test_entering_fails_at_once_where_there_is_no_broker(
    kind: type[ConnectionFailed],
) -> None:
    """The reason of the first try, and not half a minute later at the first publish."""
    broker = _Broker()
    broker.failure = kind("nobody there")
    with pytest.raises(kind, match="nobody there"):
        async with Publisher(broker, timeout=3600):
            raise AssertionError("expected no publisher")


async def test_a_closed_publisher_refuses() -> None:
    """Nobody waits for a line that will not come; closing twice is no error."""
    broker = _Broker()
    publisher = Publisher(broker)
    publisher.start()
    await _turns()
    await publisher.close()
    await publisher.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        await publisher.publish(Message("", "q", b"x"))


async def test_a_line_that_ended_for_good_says_why() -> None:
    """What no new connection can repair reaches the next sender, not only a log."""
    broker = _Broker()
    broker.failure = TopologyError("not like this")
    publisher = Publisher(broker, timeout=5)
    publisher.start()
    await _turns()
    with pytest.raises(ConnectionFailed, match="not like this"):
        await publisher.publish(Message("", "q", b"x"))
    await publisher.close()
