"""The embedded broker behind the port in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EmbeddedBroker, EmbeddedChannel
from hopback.errors import (
    ChannelClosed,
    ConnectionLost,
    Nacked,
    NotFound,
    PreconditionFailed,
    PublishInterrupted,
    Returned,
)
from hopback.message import Message, Properties
from hopback.topology.model import Exchange, Policy, Queue, QueueType
from hopback.version import BrokerVersion
from tests.unit.embedded.node_setup import pass_time, to

if TYPE_CHECKING:
    from hopback.broker.port import Broker
    from hopback.message import Delivery


def _message(queue: str, body: str = "m") -> Message:
    return Message("", queue, body.encode())


async def _channel(broker: EmbeddedBroker, *queues: str) -> EmbeddedChannel:
    connection = await broker.connect()
    channel = await connection.open_channel()
    for name in queues:
        await channel.declare_queue(Queue(name))
    return channel


async def test_embedded_broker_publishes_delivers_and_acks() -> None:
    broker: Broker = EmbeddedBroker()
    connection = await broker.connect("program")
    channel = await connection.open_channel()
    assert (await channel.declare_queue(Queue("q"))).messages == 0
    got: list[bytes] = []
    done = asyncio.Event()

    def on_delivery(delivery: Delivery) -> None:
        got.append(delivery.body)
        channel.ack(delivery.tag)
        if len(got) == 3:
            done.set()

    await channel.qos(1)
    await channel.consume("q", on_delivery)
    for body in "123":
        await channel.publish(_message("q", body))
    await done.wait()
    await connection.close()
    assert got == [b"1", b"2", b"3"]
    assert await connection.wait_closed() is None


async def test_answers_arrive_in_later_turn_and_in_order() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    log: list[str] = []
    await channel.consume("q", lambda delivery: log.append(delivery.body.decode()))
    fates = [channel.publish(_message("q", body)) for body in "12"]
    for fate in fates:
        fate.add_done_callback(lambda fate: log.append(f"confirmed {fates.index(fate) + 1}"))
    assert (log, [fate.done() for fate in fates]) == ([], [False, False])
    await asyncio.gather(*fates)
    assert [entry for entry in log if entry.startswith("c")] == ["confirmed 1", "confirmed 2"]
    assert [entry for entry in log if not entry.startswith("c")] == ["1", "2"]


async def test_each_publish_has_its_own_result() -> None:
    """The publishes have the same message id."""
    channel = await _channel(EmbeddedBroker(), "q")
    full = Queue("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    await channel.declare_queue(full)
    same = Properties(message_id="1")
    fates = [channel.publish(Message("", name, b"", same)) for name in ("q", "none", "full", "q")]
    results = await asyncio.gather(*fates, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), Returned, Nacked, type(None)]
    await channel.publish(_message("none"), mandatory=False)


async def test_published_messages_are_persistent_by_default() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    for properties in (Properties(), Properties(delivery_mode=1), Properties(headers={"a": 1})):
        await channel.publish(Message("", "q", b"", properties))
    modes = [(await _taken(channel, "q")).properties.delivery_mode for _ in range(3)]
    assert modes == [2, 1, 2]


async def _taken(channel: EmbeddedChannel, queue: str) -> Delivery:
    taken = await channel.get(queue)
    assert taken is not None
    return taken


async def test_ttl_passes_in_virtual_time() -> None:
    channel = await _channel(EmbeddedBroker(), "main")
    await channel.declare_queue(Queue("wait", arguments=to("main", message_ttl=1_800_000)))
    await channel.publish(_message("wait"))
    loop = asyncio.get_running_loop()
    begin, arrived = loop.time(), loop.create_future()
    await channel.consume("main", arrived.set_result)
    delivery = await arrived
    assert loop.time() - begin == pytest.approx(1800)
    assert delivery.properties.headers["x-first-death-reason"] == "expired"


async def test_channel_error_reaches_all_callers() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    await channel.publish(_message("q"))
    assert await channel.get("q") is not None
    with pytest.raises(NotFound, match="no queue 'none'") as caught:
        await channel.declare_queue(Queue("none"), passive=True)
    assert await channel.wait_closed() is caught.value
    for call in (lambda: channel.publish(_message("q")), lambda: channel.ack(1)):
        with pytest.raises(NotFound):
            call()
    other = await _channel_of(channel)
    assert (await other.declare_queue(Queue("q"), passive=True)).messages == 1


async def _channel_of(channel: EmbeddedChannel) -> EmbeddedChannel:
    return await channel._connection.open_channel()


async def test_publish_that_closes_channel_interrupts_later_ones() -> None:
    """Earlier ones are confirmed."""
    channel = await _channel(EmbeddedBroker(), "q")
    bad = Message("", "q", b"", Properties(expiration="soon"))
    fates = [channel.publish(message) for message in (_message("q"), bad, _message("q"))]
    before, wrong, behind = await asyncio.gather(*fates, return_exceptions=True)
    assert before is None
    for interrupted in (wrong, behind):
        assert isinstance(interrupted, PublishInterrupted)
        assert isinstance(interrupted.__cause__, PreconditionFailed)
    other = await _channel_of(channel)
    assert (await other.declare_queue(Queue("q"), passive=True)).messages == 1


async def test_unknown_delivery_tag_closes_channel_later() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    channel.ack(7)
    error = await channel.wait_closed()
    assert isinstance(error, PreconditionFailed)
    assert error.text == "PRECONDITION_FAILED - unknown delivery tag 7"


async def test_close_waits_for_pending_confirms() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    fate = channel.publish(_message("q"))
    await channel.close()
    await fate
    assert await channel.wait_closed() is None
    with pytest.raises(ChannelClosed, match="closed by us"):
        await channel.get("q")
    await channel.close()


async def test_connection_error_ends_all_its_channels() -> None:
    """Before 4.0 an unknown exchange type closes the connection."""
    channel = await _channel(EmbeddedBroker(version=BrokerVersion(3, 13)))
    other = await _channel_of(channel)
    with pytest.raises(ConnectionLost, match="503 COMMAND_INVALID"):
        await channel.declare_exchange(Exchange("x", "foo"))
    assert isinstance(await other.wait_closed(), ConnectionLost)


async def test_deliveries_in_transit_arrive_before_cancel_returns() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    got: list[bytes] = []
    tag = await channel.consume("q", lambda delivery: got.append(delivery.body))
    await channel.publish(_message("q", "1"))
    await channel.cancel(tag)
    await channel.publish(_message("q", "2"))
    assert got == [b"1"]
    assert (await channel.declare_queue(Queue("q"), passive=True)).messages == 1


async def test_deleted_queue_calls_cancel_callback() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    gone: list[str] = []
    tag = await channel.consume("q", lambda _: None, on_cancel=gone.append)
    await channel.delete_queue("q")
    assert gone == [tag]


async def test_cancelled_get_requeues_its_message() -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker, "q")
    await channel.publish(_message("q"))
    task = asyncio.ensure_future(channel.get("q"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await channel.qos(0)
    assert len(broker.snapshot().queue("q").ready) == 1


async def test_callback_that_raises_does_not_stop_others() -> None:
    channel = await _channel(EmbeddedBroker(), "q")
    problems: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: problems.append(repr(context["exception"]))
    )
    got: list[bytes] = []

    def on_delivery(delivery: Delivery) -> None:
        got.append(delivery.body)
        raise ValueError(len(got))

    await channel.consume("q", on_delivery)
    for body in "12":
        await channel.publish(_message("q", body))
    assert (got, problems) == ([b"1", b"2"], ["ValueError(1)", "ValueError(2)"])


async def test_window_limits_publishes_in_flight() -> None:
    broker = EmbeddedBroker(window=2)
    channel = await _channel(broker, "q")
    broker.faults.latency = 10
    for _ in range(2):
        await channel.room()
        channel.publish(_message("q"))
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await channel.room()
    assert loop.time() - begin == pytest.approx(10)


async def test_alarm_stops_reading_from_publishers() -> None:
    """Their settlements wait too. Others still consume."""
    broker = EmbeddedBroker()
    publisher, consumer = await _channel(broker, "q"), await _channel(broker)
    for body in "123":
        await publisher.publish(_message("q", body))
    held = await _taken(publisher, "q")
    broker.block()
    fate = publisher.publish(_message("q", "4"))
    publisher.ack(held.tag)
    assert (await _taken(consumer, "q")).body == b"2"
    await pass_time(10)
    assert not fate.done()
    assert len(broker.snapshot().queue("q").unacked) == 2
    broker.block(blocked=False)
    await fate
    found = broker.snapshot().queue("q")
    assert [len(found.ready), len(found.unacked)] == [2, 1]


async def test_broker_works_on_a_second_event_loop() -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker, "dead")
    await channel.declare_queue(Queue("q", arguments=to("dead", message_ttl=1000)))
    await channel.publish(_message("q"))
    broker._loop = None
    broker._timer = None
    await _channel(broker)
    await pass_time(1)
    assert len(broker.snapshot().queue("dead").ready) == 1


async def test_policies_and_snapshots_need_no_channel() -> None:
    broker = EmbeddedBroker()
    broker.set_policy(Policy("p", "q", {"max-length": 1}))
    channel = await _channel(broker)
    await channel.declare_queue(Queue("q", QueueType.QUORUM))
    for body in "12":
        await channel.publish(_message("q", body))
    found = broker.snapshot().queue("q")
    assert (found.type, [message.body for message in found.ready]) == ("quorum", [b"2"])
    broker.clear_policy("p")
    with pytest.raises(KeyError, match="none"):
        broker.snapshot().queue("none")
