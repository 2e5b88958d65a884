"""The AMQP channel against an in-memory server that violates the protocol."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.port import REPLY_TO
from hopback.errors import (
    AccessRefused,
    AnswerTimeout,
    ChannelClosed,
    ConfirmTimeout,
    ConnectionLost,
    Nacked,
    PreconditionFailed,
    ProtocolError,
    PublishInterrupted,
    ResourceLocked,
    Returned,
)
from hopback.message import Message, Properties
from hopback.testing import in_virtual_time
from hopback.topology.model import Binding, Exchange, Queue
from tests.unit.connections.memory import MemoryServer, connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.rabbitmq import RabbitChannel
    from hopback.message import Delivery


async def _channel(window: int = 100) -> tuple[MemoryServer, RabbitChannel]:
    server, connection = await connect(window=window)
    return server, await connection.open_channel()


async def _turn() -> None:
    """Let everything that is due run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_acks_of_one_loop_turn_are_one_frame() -> None:
    server, channel = await _channel()
    held: list[Delivery] = []
    await channel.consume("q", held.append, tag="c")
    for tag in range(1, 101):
        server.deliver(tag, "c")
    before = server.writes
    for delivery in held:
        channel.ack(delivery.tag)
    await _turn()
    assert server.settlements() == [("basic.ack", 100, True, False)]
    assert server.writes == before + 1


async def test_single_publish_is_written_at_once_and_further_ones_together() -> None:
    """Of a hundred in one turn, 99 share a write."""
    server, channel = await _channel()
    before = server.writes
    fates = [channel.publish(Message("", "q", b"1"))]
    assert len(server.published()) == 1
    fates += [channel.publish(Message("", "q", b"%d" % number)) for number in range(2, 101)]
    assert len(server.published()) == 1
    await _turn()
    assert [int(each.body) for each in server.published()] == list(range(1, 101))
    assert server.writes == before + 2
    assert all(found.mandatory for found in server.published())
    server.send(1, "basic.ack", delivery_tag=0, multiple=True)
    await asyncio.gather(*fates)


async def test_publishes_on_several_channels_share_a_write() -> None:
    server, connection = await connect()
    channels = [await connection.open_channel() for _ in range(10)]
    for _ in range(3):
        before = server.writes
        fates = [channel.publish(Message("", "q", b"1")) for channel in channels]
        await _turn()
        assert server.writes <= before + 2
        for number in range(1, 11):
            server.send(number, "basic.ack", delivery_tag=0, multiple=True)
        await asyncio.gather(*fates)
    assert len(server.published()) == 30


async def test_first_publish_after_many_waits_for_end_of_turn() -> None:
    """The next single publish is written at once."""
    server, channel = await _channel()
    fates = [channel.publish(Message("", "q", b"%d" % number)) for number in range(1, 11)]
    await _turn()
    server.send(1, "basic.ack", delivery_tag=0, multiple=True)
    await asyncio.gather(*fates)
    first = channel.publish(Message("", "q", b"11"))
    assert len(server.published()) == 10
    await _turn()
    assert len(server.published()) == 11
    server.send(1, "basic.ack", delivery_tag=11)
    await first
    _second = channel.publish(Message("", "q", b"12"))
    assert len(server.published()) == 12


async def test_publish_while_reading_is_written_with_acks() -> None:
    server, channel = await _channel()
    fates: list[asyncio.Future[None]] = []

    def forward(delivery: Delivery) -> None:
        fates.append(channel.publish(Message("", "q", delivery.body)))
        channel.ack(delivery.tag)

    await channel.consume("q", forward, tag="c")
    before = server.writes
    server.deliver(1, "c", b"1")
    assert (server.writes, len(server.published())) == (before + 1, 1)
    assert server.settlements() == [("basic.ack", 1, False, False)]


async def test_settlements_keep_their_order() -> None:
    """Acks below a held delivery are combined. Nacks and rejects are not."""
    server, channel = await _channel()
    held: list[Delivery] = []
    await channel.consume("q", held.append, tag="c")
    for tag in range(1, 8):
        server.deliver(tag, "c")
    channel.ack(1)
    channel.ack(2)
    channel.nack(4, requeue=True)
    channel.nack(5, requeue=False)
    channel.reject(6, requeue=True)
    channel.ack(7)
    await _turn()
    assert server.settlements() == [
        ("basic.nack", 4, False, True),
        ("basic.nack", 5, False, False),
        ("basic.reject", 6, False, True),
        ("basic.ack", 2, True, False),
        ("basic.ack", 7, False, False),
    ]


async def test_consumer_cancelled_by_broker_is_cancelled_by_client() -> None:
    """RabbitMQ 4.3 keeps a consumer that timed out until the client cancels it."""
    server, channel = await _channel()
    told: list[str] = []
    seen: list[Delivery] = []
    await channel.consume("q", seen.append, on_cancel=told.append, tag="c")
    server.send(1, "basic.cancel", consumer_tag="c", nowait=True)
    await _turn()
    assert told == ["c"]
    assert server.asked()[-1] == ("basic.cancel", {"consumer_tag": "c", "nowait": True})


async def test_consumer_whose_caller_was_cancelled_ends_without_a_logged_error() -> None:
    """The channel closes before the broker has answered the cancel of the consumer."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unhandled.append(told))
    server, channel = await _channel()
    server.silent_on = {"basic.consume", "basic.cancel"}
    consuming = asyncio.create_task(channel.consume("q", lambda _: None, tag="c"))
    await _turn()
    consuming.cancel()
    server.send(1, "basic.consume-ok", consumer_tag="c")
    await _turn()
    assert server.asked()[-1] == ("basic.cancel", {"consumer_tag": "c", "nowait": False})
    await channel.close()
    gc.collect()  # asyncio reports an error that was not retrieved when its future is deleted
    assert unhandled == []


async def test_delivery_for_unknown_consumer_is_requeued() -> None:
    server, channel = await _channel()
    seen: list[Delivery] = []
    await channel.consume("q", seen.append, tag="c")
    server.send(1, "basic.cancel", consumer_tag="c", nowait=True)
    server.deliver(9, "c")
    await _turn()
    assert seen == []
    assert server.settlements() == [("basic.nack", 9, False, True)]
    await channel.qos(1)


async def test_confirms_in_any_order_reach_their_publishes() -> None:
    """Ack of one, nack of several, a return before its ack."""
    server, channel = await _channel()
    fates = [channel.publish(Message("", f"q{number}", b"x")) for number in range(1, 6)]
    await _turn()
    server.send(1, "basic.ack", delivery_tag=3)
    server.content(
        1,
        "basic.return",
        b"x",
        Properties(delivery_mode=2),
        reply_code=312,
        reply_text="NO_ROUTE",
        routing_key="q4",
    )
    server.send(1, "basic.nack", delivery_tag=2, multiple=True)
    server.send(1, "basic.ack", delivery_tag=5, multiple=True)
    results = await asyncio.gather(*fates, return_exceptions=True)
    assert [type(result) for result in results] == [
        Nacked,
        Nacked,
        type(None),
        Returned,
        type(None),
    ]


async def test_unmatched_return_confirms_no_publish() -> None:
    """If the returned message is unknown, no publish in flight is confirmed."""
    server, channel = await _channel()
    fate = channel.publish(Message("", "q", b"x"))
    await _turn()
    server.content(1, "basic.return", b"other", reply_code=312, routing_key="elsewhere")
    server.send(1, "basic.ack", delivery_tag=1)
    with pytest.raises(PublishInterrupted):
        await fate
    assert isinstance(await channel.wait_closed(), ProtocolError)


async def test_headers_changed_between_publishes_are_encoded_again() -> None:
    server, channel = await _channel()
    headers: dict[str, int] = {}
    properties = Properties(headers=headers)
    channel.publish(Message("", "q", b"", properties))
    headers["a"] = 1
    channel.publish(Message("", "q", b"", properties))
    headers["a"] = 2
    channel.publish(Message("", "q", b"", properties))
    await _turn()
    sent = [dict(found.properties.headers) for found in server.published()]
    assert sent == [{}, {"a": 1}, {"a": 2}]
    server.send(1, "basic.ack", delivery_tag=0, multiple=True)


async def test_publish_waits_while_broker_blocks_connection() -> None:
    """Open and new channels wait."""
    server, connection = await connect()
    channel = await connection.open_channel()
    told: list[tuple[bool, str]] = []
    connection.watch_blocking(lambda blocked, reason: told.append((blocked, reason)))
    server.send(0, "connection.blocked", reason="low on disk")
    new = await connection.open_channel()
    waits = [asyncio.ensure_future(channel.room()), asyncio.ensure_future(new.room())]
    await _turn()
    assert [wait.done() for wait in waits] == [False, False]
    server.send(0, "connection.unblocked")
    await asyncio.gather(*waits)
    assert told == [(True, "low on disk"), (False, "")]


@in_virtual_time
async def test_confirm_timeout_pauses_while_broker_blocks() -> None:
    """The broker reads the pending messages after its alarm.

    Sending them again would store them twice.
    """
    server, connection = await connect()
    channel = await connection.open_channel()
    fate = channel.publish(Message("", "q", b"x"))
    server.send(0, "connection.blocked", reason="low on memory")
    await asyncio.sleep(100)
    assert not fate.done()
    server.send(0, "connection.unblocked")
    await asyncio.sleep(20)
    assert not fate.done()
    server.send(1, "basic.ack", delivery_tag=1)
    await fate
    late = channel.publish(Message("", "q", b"y"))
    with pytest.raises(ConfirmTimeout):
        await late


async def test_publish_waits_while_socket_buffer_is_full() -> None:
    _, connection = await connect()
    channel = await connection.open_channel()
    connection.wire.pause_writing()
    wait = asyncio.ensure_future(channel.room())
    await _turn()
    assert not wait.done()
    connection.wire.resume_writing()
    await wait


async def test_waiting_publish_fails_when_channel_closes() -> None:
    server, channel = await _channel(window=1)
    fate = channel.publish(Message("", "q", b"x"))
    wait = asyncio.ensure_future(channel.room())
    await _turn()
    server.break_line()
    with pytest.raises(ConnectionLost):
        await wait
    with pytest.raises(PublishInterrupted):
        await fate


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, AccessRefused), (405, ResourceLocked), (406, PreconditionFailed), (541, ChannelClosed)],
)
async def test_closed_channel_raises_broker_reason_for_all_callers(
    code: int, error: type[ChannelClosed]
) -> None:
    server, channel = await _channel()
    fate = channel.publish(Message("", "q", b"x"))
    await _turn()
    server.send(1, "channel.close", reply_code=code, reply_text="BECAUSE - of that")
    with pytest.raises(PublishInterrupted, match="BECAUSE"):
        await fate
    for _ in range(2):
        with pytest.raises(error, match="BECAUSE") as caught:
            await channel.declare_queue(Queue("q"))
        assert type(caught.value) is error
        assert caught.value.code == code
    with pytest.raises(error):
        channel.ack(1)


async def test_unexpected_reply_closes_connection() -> None:
    server, channel = await _channel()
    server.core.channels[1].owed[server.core.role].append(("queue.declare-ok",))
    server.send(1, "queue.declare-ok", queue="q")
    assert isinstance(await channel.wait_closed(), ProtocolError)


async def test_close_interrupts_publishes_in_flight() -> None:
    server, connection = await connect()
    channel = await connection.open_channel()
    fate = channel.publish(Message("", "q", b"x"))
    closing = asyncio.ensure_future(connection.close())
    await _turn()
    server.flush()
    await closing
    with pytest.raises(PublishInterrupted):
        await fate
    assert await connection.wait_closed() is None


async def test_channel_without_confirms_is_closed() -> None:
    """Unconfirmed publishes are kept in memory, so their number is limited."""
    server, connection = await connect(window=1, confirm_timeout=0.001)
    channel = await connection.open_channel()
    for _ in range(5):
        with pytest.raises(ConfirmTimeout):
            await channel.publish(Message("", "q", b"x"))
    await channel.wait_closed()
    assert server.asked()[-1][0] == "channel.close"


async def test_settlement_on_closing_connection_raises() -> None:
    """The broker requeues all deliveries, so the ack must not appear to count."""
    server, connection = await connect()
    channel = await connection.open_channel()
    held: list[Delivery] = []
    await channel.consume("q", held.append, tag="c")
    server.deliver(1, "c")
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    with pytest.raises(ChannelClosed):
        channel.ack(1)
    await closing
    assert server.settlements() == []
    assert channel.lost == (1,)


async def test_deliveries_without_acks_are_never_unsettled() -> None:
    """Replies to requests are received on one channel for as long as the process runs."""
    server, channel = await _channel()
    replies: list[Delivery] = []
    held: list[Delivery] = []
    await channel.consume(REPLY_TO, replies.append, tag="replies", no_ack=True)
    await channel.consume("q", held.append, tag="c")
    for tag in range(1, 101):
        server.deliver(tag, "replies")
    for tag in (101, 102, 103):
        server.deliver(tag, "c")
    for delivery in held[:2]:
        channel.ack(delivery.tag)
    await _turn()
    assert server.settlements() == [("basic.ack", 102, True, False)]
    await channel.close()
    assert len(replies) == 100
    assert channel.lost == (103,)


_REQUESTS: dict[str, Callable[[RabbitChannel], Awaitable[object]]] = {
    "exchange.declare": lambda channel: channel.declare_exchange(Exchange("x", "direct")),
    "exchange.delete": lambda channel: channel.delete_exchange("x"),
    "queue.declare": lambda channel: channel.declare_queue(Queue("q")),
    "queue.delete": lambda channel: channel.delete_queue("q"),
    "queue.purge": lambda channel: channel.purge_queue("q"),
    "queue.bind": lambda channel: channel.bind(Binding("x", "q", "k")),
    "queue.unbind": lambda channel: channel.unbind(Binding("x", "q", "k")),
    "basic.qos": lambda channel: channel.qos(1),
    "basic.consume": lambda channel: channel.consume("q", lambda _: None),
    "basic.get": lambda channel: channel.get("q"),
    "basic.recover": lambda channel: channel.recover(),
}


@pytest.mark.parametrize("name", _REQUESTS)
@in_virtual_time
async def test_unanswered_request_raises_answer_timeout(name: str) -> None:
    """The channel is closed, because its later requests would wait behind it.

    Others are not affected.
    """
    server, connection = await connect()
    channel, other = await connection.open_channel(), await connection.open_channel()
    server.silent_on.add(name)
    with pytest.raises(AnswerTimeout, match=rf"no answer to {name} within 30 s"):
        await _REQUESTS[name](channel)
    with pytest.raises((AnswerTimeout, ChannelClosed)):
        channel.publish(Message("", "q", b"x"))
    await channel.close()
    server.silent_on.clear()
    await other.declare_queue(Queue("q"))


@pytest.mark.parametrize("name", ["channel.open", "confirm.select"])
@in_virtual_time
async def test_unanswered_channel_open_raises_answer_timeout(name: str) -> None:
    server, connection = await connect()
    server.silent_on.add(name)
    with pytest.raises(AnswerTimeout, match=name):
        await connection.open_channel()
    server.silent_on.clear()
    await connection.open_channel()


@in_virtual_time
async def test_unanswered_channel_close_does_not_wait_forever() -> None:
    server, channel = await _channel()
    server.write = lambda data: None  # type: ignore[method-assign]
    await channel.close()


@in_virtual_time
async def test_answer_timeout_pauses_while_connection_is_blocked() -> None:
    server, channel = await _channel()
    server.silent_on.add("queue.declare")
    server.send(0, "connection.blocked", reason="low on memory")
    declaring = asyncio.ensure_future(channel.declare_queue(Queue("q")))
    await asyncio.sleep(100)
    assert not declaring.done()
    server.send(0, "connection.unblocked")
    await asyncio.sleep(20)
    server.send(1, "queue.declare-ok", queue="q", message_count=0, consumer_count=0)
    assert (await declaring).name == "q"


@pytest.mark.parametrize("name", ["basic.cancel", "basic.consume"])
async def test_request_waits_until_earlier_consume_or_cancel_is_answered(name: str) -> None:
    server, channel = await _channel()
    if name == "basic.cancel":
        await channel.consume("q", lambda _: None, tag="c")
    server.silent_on.add(name)
    early = channel.cancel("c") if name == "basic.cancel" else channel.consume("q", print, tag="c")
    first = asyncio.ensure_future(early)
    await _turn()
    second = asyncio.ensure_future(channel.qos(1))
    await _turn()
    assert "basic.qos" not in [asked for asked, _ in server.asked()]
    server.send(1, f"{name}-ok", consumer_tag="c")
    await asyncio.gather(first, second)
    assert server.asked()[-1][0] == "basic.qos"
