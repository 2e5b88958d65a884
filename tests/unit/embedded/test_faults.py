"""Fault switches: effects on a program and on the broker."""

from __future__ import annotations

import asyncio

import pytest

from hopback.broker.embedded import EmbeddedBroker, EmbeddedChannel, Fault, Faults
from hopback.errors import (
    ConfirmTimeout,
    ConnectionFailed,
    ConnectionLost,
    Nacked,
    PublishInterrupted,
    Returned,
)
from hopback.message import Message
from hopback.topology.model import Queue
from tests.unit.embedded.node_setup import pass_time

_MESSAGE = Message("", "q", b"m")


async def _channel(broker: EmbeddedBroker) -> EmbeddedChannel:
    channel = await (await broker.connect()).open_channel()
    await channel.declare_queue(Queue("q"))
    return channel


def _ready(broker: EmbeddedBroker) -> int:
    return len(broker.snapshot().queue("q").ready)


@pytest.mark.parametrize(
    ("fault", "error", "stored"),
    [
        (Fault.NACK, Nacked, 0),
        (Fault.RETURN, Returned, 0),
        (Fault.LOSE_CONFIRM, ConfirmTimeout, 1),
        (Fault.CUT_BEFORE_PUBLISH, PublishInterrupted, 0),
        (Fault.CUT_AFTER_PUBLISH, PublishInterrupted, 1),
    ],
)
async def test_publish_faults_raise_and_leave_documented_state(
    fault: Fault, error: type[Exception], stored: int
) -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker)
    broker.faults.inject(fault)
    with pytest.raises(error):
        await channel.publish(_MESSAGE)
    assert _ready(broker) == stored
    await (await _channel(broker)).publish(_MESSAGE)
    assert _ready(broker) == stored + 1


async def test_lost_confirm_raises_timeout() -> None:
    broker = EmbeddedBroker(confirm_timeout=30)
    channel = await _channel(broker)
    broker.faults.inject(Fault.LOSE_CONFIRM)
    lost = channel.publish(_MESSAGE)
    await channel.publish(_MESSAGE)
    await pass_time(29.9)
    assert not lost.done()
    with pytest.raises(ConfirmTimeout, match="within 30 s"):
        await lost


@pytest.mark.parametrize(
    ("fault", "left"), [(Fault.CUT_BEFORE_SETTLE, 1), (Fault.CUT_AFTER_SETTLE, 0)]
)
async def test_cut_before_settlement_requeues_and_after_it_does_not(
    fault: Fault, left: int
) -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker)
    await channel.publish(_MESSAGE)
    taken = await channel.get("q")
    assert taken is not None
    broker.faults.inject(fault)
    channel.ack(taken.tag)
    assert isinstance(await channel.wait_closed(), ConnectionLost)
    assert _ready(broker) == left


@pytest.mark.parametrize(("buffered", "seen"), [(True, 2), (False, 0)])
async def test_cut_connection_requeues_deliveries_in_transit(buffered: bool, seen: int) -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker)
    for _ in range(2):
        await channel.publish(_MESSAGE)
    got: list[object] = []
    consuming = asyncio.ensure_future(channel.consume("q", got.append))
    await asyncio.sleep(0)
    broker.cut(buffered=buffered)
    await asyncio.gather(consuming, return_exceptions=True)
    assert isinstance(await channel.wait_closed(), ConnectionLost)
    assert (len(got), _ready(broker)) == (seen, 2)
    assert broker.connections == ()


async def test_calls_between_cut_and_its_detection_are_lost() -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker)
    await channel.publish(_MESSAGE)
    taken = await channel.get("q")
    assert taken is not None
    broker.cut()
    fate = channel.publish(_MESSAGE)
    channel.ack(taken.tag)
    with pytest.raises(PublishInterrupted):
        await fate
    assert _ready(broker) == 1


async def test_connections_can_be_refused_repeatedly() -> None:
    broker = EmbeddedBroker()
    broker.faults.inject(Fault.REFUSE_CONNECTION, 2)
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await broker.connect()
    await broker.connect()


async def test_slow_connection_delays_answers_in_order() -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker)
    broker.faults.latency = 0.5
    loop = asyncio.get_running_loop()
    begin = loop.time()
    fates = [channel.publish(_MESSAGE) for _ in range(3)]
    order: list[int] = []
    for fate in fates:
        fate.add_done_callback(lambda fate: order.append(fates.index(fate)))
    await asyncio.gather(*fates)
    assert loop.time() - begin == pytest.approx(0.5)
    await channel.get("q")
    assert loop.time() - begin == pytest.approx(1.0)
    assert order == [0, 1, 2]


async def test_restart_cuts_connections_and_keeps_durable_messages() -> None:
    broker = EmbeddedBroker()
    channel = await _channel(broker)
    await channel.publish(_MESSAGE)
    broker.restart()
    assert isinstance(await channel.wait_closed(), ConnectionLost)
    assert _ready(broker) == 1


def test_random_faults_are_seeded() -> None:
    def strikes(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.chance(Fault.NACK, 0.5)
        return [faults.strikes(Fault.NACK) for _ in range(64)]

    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)
    assert 10 < sum(strikes(1)) < 54


def test_fault_switches_are_off_by_default() -> None:
    faults = Faults()
    active = [faults.active]
    faults.inject(Fault.NACK)
    active.append(faults.active)
    assert [faults.strikes(Fault.NACK) for _ in range(2)] == [True, False]
    active.append(faults.active)
    assert active == [False, True, False]
    faults.chance(Fault.NACK, 1.0)
    faults.clear()
    assert not faults.strikes(Fault.NACK)
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        faults.chance(Fault.NACK, 2)
