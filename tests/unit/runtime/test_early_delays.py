"""No delayed message arrives early, whatever happens to the queues in which it waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, ServiceOptions
from hopback.broker import EmbeddedBroker
from hopback.broker.declare import Ownership, declare
from hopback.headers import FRAME_BYTES, frame_size
from hopback.message import Message, Properties
from hopback.policy.delays import delay
from hopback.testing import AppTest, in_virtual_time
from hopback.topology.delays import DUE
from hopback.topology.model import Policy, Queue, QueueType
from hopback.version import BrokerVersion
from tests.harness.seeded import publish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Channel
    from hopback.fields import FieldValue


class _Reminders:
    """An application that notes how long its delayed messages took."""

    def __init__(self, cancellations: Any = None) -> None:
        self.took: list[float] = []
        self.app = App("shop")
        self.app.delays("1h", cancellations=cancellations)

        @self.app.handler("reminders", retry=["1s"])
        async def remind(published: float, context: Context) -> None:
            self.took.append(self.now() - published)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def publish(self, count: int = 1, *, seconds: float, by_clock: bool = False) -> None:
        for number in range(count):
            wait: dict[str, Any] = {"delay": seconds}
            if by_clock:
                wait = {"at": datetime.fromtimestamp(self.now(), UTC) + timedelta(seconds=seconds)}
            await self.app.publish("reminders", self.now(), message_id=f"m-{number}", **wait)


async def _as_operator(broker: EmbeddedBroker, act: Callable[[Channel], Awaitable[object]]) -> None:
    connection = await broker.connect("operator")
    await act(await connection.open_channel())
    await connection.close()


async def _delete(broker: EmbeddedBroker, *levels: int) -> None:
    for level in levels:
        name = f"hopback.delay.level-{level:02}"
        await _as_operator(broker, lambda channel: channel.delete_queue(name))  # noqa: B023


_VERSIONS = [BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3)]


@pytest.mark.parametrize("version", _VERSIONS, ids=str)
@pytest.mark.parametrize("by_clock", [False, True], ids=["delay", "at"])
@in_virtual_time
async def test_deleted_level_makes_no_message_early(by_clock: bool, version: BrokerVersion) -> None:
    """The first early message restores the level."""
    reminders = _Reminders()
    async with AppTest(reminders.app, broker=EmbeddedBroker(version=version)) as test:
        await _delete(test.broker, 3)
        await reminders.publish(20, seconds=13, by_clock=by_clock)
        await test.drain()
        assert len(reminders.took) == 20
        assert min(reminders.took) >= 13
        assert max(reminders.took) < 20
        early = test.find_events("delay.early")
        assert {one.fields["laps"] for one in early} == {1}
        assert test.find_events("topology.restored", object="hopback.delay.level-03")
        assert test.find_events("delivery.retried") == ()


@in_virtual_time
async def test_level_deleted_while_messages_wait_above_it_makes_none_early() -> None:
    reminders = _Reminders()
    async with AppTest(reminders.app) as test:
        await reminders.publish(20, seconds=13)
        await test.advance(2)
        await _delete(test.broker, 2, 0)
        await test.drain()
    assert len(reminders.took) == 20
    assert min(reminders.took) >= 13


@in_virtual_time
async def test_delay_levels_that_cannot_be_restored_are_replaced_by_retry_queues() -> None:
    """With ownership `check` no queue is created. No attempt is counted and no message is parked."""
    reminders = _Reminders()
    broker = EmbeddedBroker()
    connection = await broker.connect()
    await declare(connection, reminders.app.topology)
    options = ServiceOptions(ownership=Ownership.CHECK)
    async with AppTest(reminders.app, broker=broker, options=options) as test:
        await _delete(broker, *range(12))
        await reminders.publish(5, seconds=2000)
        await test.drain()
        assert test.find_events("delivery.parked") == test.find_events("delivery.retried") == ()
        laps = Counter(one.fields["message_id"] for one in test.find_events("delay.early"))
    assert len(reminders.took) == 5
    assert min(reminders.took) >= 2000
    assert max(reminders.took) < 2060
    assert max(laps.values()) < 60
    await connection.close()


@in_virtual_time
async def test_broken_delay_levels_are_entered_at_most_once_per_second() -> None:
    """With ownership `external` the levels are not restored, so each message enters them once a
    second.
    """
    reminders = _Reminders()
    broker = EmbeddedBroker()
    connection = await broker.connect()
    await declare(connection, reminders.app.topology)
    options = ServiceOptions(ownership=Ownership.EXTERNAL)
    async with AppTest(reminders.app, broker=broker, options=options) as test:
        await _delete(broker, *range(12))
        await reminders.publish(seconds=60)
        await test.drain()
        early = test.find_events("delay.early")
    (took,) = reminders.took
    assert 60 <= took < 70
    assert len(early) <= 61
    assert [one.fields["laps"] for one in early] == list(range(1, len(early) + 1))
    await connection.close()


@in_virtual_time
async def test_early_messages_delay_no_other_messages() -> None:
    """A level is missing and is not restored."""
    reminders = _Reminders()
    broker = EmbeddedBroker()
    connection = await broker.connect()
    await declare(connection, reminders.app.topology)
    options = ServiceOptions(ownership=Ownership.EXTERNAL)
    async with AppTest(reminders.app, broker=broker, options=options) as test:
        await _delete(broker, 5)
        await reminders.publish(200, seconds=32)
        await test.advance(2)
        for _ in range(20):
            await reminders.publish(seconds=3)
            await test.advance(1)
        await test.advance(3)
        bystanders = list(reminders.took)
        await test.drain()
    assert len(bystanders) == 20
    assert 3 <= min(bystanders) <= max(bystanders) < 3.5
    assert len(reminders.took) == 220
    assert min(reminders.took[20:]) >= 32
    await connection.close()


@pytest.mark.parametrize("ttl_ms", [2000, 0])
@in_virtual_time
async def test_policy_that_shortens_waits_is_detected_and_makes_no_message_early(
    ttl_ms: int,
) -> None:
    """The times in `x-death` reveal it. The clock decides from then on."""
    reminders = _Reminders()
    async with AppTest(reminders.app) as test:
        pattern = r"^hopback\.delay\.(level|due\.retry)"
        test.broker.set_policy(Policy("ttl", pattern, {"message-ttl": ttl_ms}, apply_to="queues"))
        await reminders.publish(seconds=13)
        await reminders.publish(seconds=13, by_clock=True)
        await test.drain()
        await reminders.publish(seconds=64)  # one level only: the process knows by now
        await test.drain()
        assert test.find_events("topology.warning", rule="delay-shortened")
        early = test.find_events("delay.early")
    assert len(reminders.took) == 3
    assert min(reminders.took[:2]) >= 13
    assert reminders.took[2] >= 64
    assert len(early) <= 13 + 13 + 64 + 3


class _Cancelled:
    def __init__(self) -> None:
        self.begun: list[str] = []

    async def begin(self, message_id: str) -> bool:
        self.begun.append(message_id)
        return True


@in_virtual_time
async def test_early_message_can_still_be_cancelled() -> None:
    cancelled = _Cancelled()
    reminders = _Reminders(cancelled)
    async with AppTest(reminders.app) as test:
        await _delete(test.broker, 3)
        await reminders.publish(seconds=13)
        await test.advance(10)
        assert cancelled.begun == []
        await test.drain()
    assert cancelled.begun == ["m-0"]


@in_virtual_time
async def test_retry_of_due_message_does_not_repeat_its_delay() -> None:
    """Its destination was missing for a moment."""
    reminders = _Reminders()
    async with AppTest(reminders.app) as test:
        channel = await (await test.broker.connect()).open_channel()
        await channel.declare_queue(Queue("elsewhere", QueueType.QUORUM))
        await reminders.app.publish("elsewhere", 1, delay="100s")
        await channel.delete_queue("elsewhere")
        await test.advance(100.5)
        test.assert_retried(DUE, times=1)
        await channel.declare_queue(Queue("elsewhere", QueueType.QUORUM))
        await test.advance(3)
        assert test.find_events("delay.early") == ()
        assert await channel.get("elsewhere") is not None


def _waiting(text: str) -> Properties:
    """As a producer may publish to the last hop itself: due in ten thousand years."""
    waiting: dict[str, FieldValue] = {
        "exchange": "", "routing-key": "reminders", "mandatory": True, "due": 2**50, "by-clock": True,
        "headers": {"text": text},
    }  # fmt: skip
    return Properties(headers={"hopback-delay": waiting}, delivery_mode=2)


@in_virtual_time
async def test_messages_without_room_for_another_wait_are_parked_and_delay_no_others() -> None:
    """They fill the last hop twice. The frame is full, and every further wait adds a field."""
    reminders = _Reminders()
    async with AppTest(reminders.app) as test:
        room = FRAME_BYTES - frame_size(_waiting(""))
        for number in range(220):
            full = _waiting("x" * (room - number % 20))
            await publish(test.broker, Message("", DUE, b"%d" % number, full))
        await reminders.publish(20, seconds=13)
        await test.advance(15)
        assert len(reminders.took) == 20
        assert 13 <= min(reminders.took) <= max(reminders.took) < 14.1
        parked = test.find_events("delivery.parked", queue=DUE)
        assert sum(len(queue.unacked) for queue in test.broker.snapshot().queues) == 0
        assert len(test.dead_letters(DUE)) == len(parked) == 220
    assert all("cannot wait again" in one.fields["reason"] for one in parked)


@pytest.mark.parametrize("deleted", [None, 3])
@in_virtual_time
async def test_delayed_message_of_another_user_arrives_with_the_user_in_a_header(
    deleted: int | None,
) -> None:
    """The broker accepts only the user of the connection that publishes."""
    app, got = App("shop"), list[Properties]()
    app.delays("1h")

    @app.handler("reminders", retry=["1s"])
    async def remind(context: Context) -> None:
        got.append(context.delivery.properties)

    async with AppTest(app) as test:
        if deleted is not None:
            await _delete(test.broker, deleted)
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        for user in ("alice", "guest"):
            test.broker.user = user
            plain = Message("", "reminders", b"1", Properties(user_id=user, message_id=user))
            await publish(test.broker, delay(plain, 13_000, now_ms + 13_000))
        test.broker.user = "guest"
        assert (await test.drain()).parked == 0
    users = {
        one.message_id: (one.user_id, one.headers.get("hopback-origin-user-id")) for one in got
    }
    assert users["alice"] == (None, "alice")
    assert users["guest"] == ((None, "guest") if deleted else ("guest", None))
