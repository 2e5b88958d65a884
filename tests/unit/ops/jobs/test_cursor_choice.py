"""Jobs on a classic queue whose broker is killed and redelivers messages whose acks were not on
disk.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedManagement
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.errors import ConnectionFailed
from hopback.headers.names import REDRIVE_JOB
from hopback.message import Message
from hopback.ops.brokers.discovery import Override
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    RAMP,
    Pace,
    RedriveRequest,
    Selection,
    SessionRequest,
)
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.classic_cursor import ClassicCursor
from hopback.ops.jobs.cursor import CursorEvent, mark_of
from hopback.ops.jobs.cursor_choice import choose_prefetch
from hopback.ops.jobs.job_record import Checkpoint, JobSpec
from hopback.ops.jobs.journal import MemoryJournal
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType, Topology
from hopback.version import BrokerVersion
from tests.unit.ops.jobs.kills import end_leases
from tests.unit.ops.shop import (
    ANN,
    DLQ,
    MAIN,
    CountingBroker,
    Shop,
    discard,
    properties,
    redrive,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hopback.broker.embedded import EmbeddedConnection
    from hopback.fields import FieldValue
    from hopback.message import Delivery
    from hopback.ops.contract.requests import DiscardRequest
    from hopback.ops.contract.values import Job

_COUNT, _LIMIT, _IN_FLIGHT = 120, 100, 2
_PACE = Pace(20.0, in_flight=_IN_FLIGHT)
_REMEMBERED = 6 * _IN_FLIGHT
_WINDOW = 3 * _REMEMBERED
"""More than a job ever has marks of: the last acks, what is in its hands, what it looks for."""


class _Node(CountingBroker):
    """A broker that can refuse all outside connections."""

    is_down = False

    async def connect(self, name: str = "hopback") -> EmbeddedConnection:
        """A new connection, unless it is down."""
        if self.is_down and name != "test":
            raise ConnectionFailed("the node is down")
        return await super().connect(name)


class _Lost(MemoryJournal):
    """A journal whose process can be killed."""

    def kill(self) -> None:
        """Kill the process. Another process sees that its lease has expired."""
        end_leases(self)


@asynccontextmanager
async def _classic_shop(
    journal: MemoryJournal, room: int | None, *, live: bool, is_shared: bool
) -> AsyncIterator[Shop]:
    """A classic queue with room for `room` messages and its dead-letter queue.

    Only `live` describes them. If the dead-letter queue `is_shared`, each message has to name the
    queue it failed in.
    """
    broker = _Node(version=BrokerVersion(3, 10))
    rests: dict[str, FieldValue] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ}
    if room is not None:
        rests |= {"x-max-length": room, "x-overflow": "reject-publish"}
    topology = Topology(
        "foreign",
        queues=(
            Queue(MAIN, type=QueueType.CLASSIC, arguments=rests),
            Queue(DLQ, type=QueueType.CLASSIC),
            *([Queue("beside", type=QueueType.CLASSIC, arguments=rests)] if is_shared else ()),
        ),
    )
    connection = await broker.connect("test")
    await declare(connection, topology)
    await connection.close()
    async with Operations(
        ManagedBroker(
            broker,
            management=EmbeddedManagement(broker) if live else None,
            overrides=() if is_shared else [Override(DLQ, main_queue=MAIN)],
            clock=LoopClock(time.time),
        ),
        journal=journal,
    ) as operations:
        yield Shop(broker, topology, operations)


class _Life:
    """A job on a classic queue and its interruptions."""

    def __init__(self, shop: Shop, journal: _Lost, parked: Sequence[Message]) -> None:
        assert isinstance(shop.broker, _Node)
        self.shop, self.node = shop, shop.broker
        self._journal = journal
        self._parked = list(parked)
        self.ident = ""

    async def start(self, asked: RedriveRequest | DiscardRequest) -> None:
        """Fill the queue and begin."""
        await self.shop.publish(self._parked)
        self.ident = (await self.shop.operations.start(asked)).id

    async def reach(self, done: int) -> None:
        """Return when this number of messages is done."""
        async for job in self.shop.operations.events(self.ident):
            if job.counts.done >= done:
                break
        assert job.is_active

    async def kill_service(self) -> None:
        """Kill the process and let another one resume the job."""
        self._journal.kill()
        self.shop.broker.cut(buffered=False)
        await self.shop.operations.wait(self.ident)
        await self.shop.operations.resume(self.ident)

    async def kill_broker(self, forgotten: int, *, late: int = 0, seen: bool = True) -> None:
        """Restart the broker without the last acks, with or without redelivered flags."""
        self.node.is_down = True
        self.node.cut(buffered=False)
        ready = self.shop.queue(DLQ).ready
        dead_again = [one for one in ready if REDRIVE_JOB in one.properties.headers]
        left = Counter(one.body for one in ready) - Counter(one.body for one in dead_again)
        kept: list[Message] = []
        for message in reversed(self._parked):  # of equal ones the first are done
            is_left = left[message.body] > 0
            left[message.body] -= is_left
            if is_left or forgotten > 0:
                kept.insert(0, message)
            forgotten -= not is_left
        await self.empty(DLQ)
        kept += [Message("", DLQ, one.body, one.properties) for one in dead_again]
        new = [Message("", DLQ, b"late %d" % n, properties("late")) for n in range(late)]
        await self.shop.publish([*kept, *new])
        self._parked += new
        if seen:
            # Deliver and requeue all messages at once: the job may resume quickly.
            channel = await (await self.node.connect("test")).open_channel()
            for _ in range(len(kept) + late):
                await channel.get(DLQ)
            self.node.cut(buffered=False)
        self.node.is_down = False

    async def empty(self, queue: str) -> None:
        """Let another consumer take all messages."""
        connection = await self.node.connect("test")
        await (await connection.open_channel()).purge_queue(queue)
        await connection.close()

    async def end(self) -> Job:
        """The job as it ends."""
        return await self.shop.operations.wait(self.ident)


@asynccontextmanager
async def _life(
    parked: Sequence[Message],
    *,
    room: int | None = None,
    live: bool = True,
    is_shared: bool = False,
) -> AsyncIterator[_Life]:
    journal = _Lost()
    async with _classic_shop(journal, room, live=live, is_shared=is_shared) as shop:
        yield _Life(shop, journal, parked)


def _parked(count: int = _COUNT) -> list[Message]:
    return [Message("", DLQ, b"%d" % n, properties(f"m{n}")) for n in range(count)]


def _others(parked: Sequence[Message], selected: Sequence[Message]) -> list[bytes]:
    return [message.body for message in parked if message not in selected]


@pytest.mark.parametrize("seen", [True, False], ids=["marked as seen", "not marked"])
@pytest.mark.parametrize("late", [0, 70], ids=["nothing new", "new ones"])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@pytest.mark.parametrize("service_killed", [False, True], ids=["alone", "with the service"])
@pytest.mark.parametrize("forgotten", [4, 30, 200])
@in_virtual_time
async def test_redrive_completes_after_broker_loses_more_acks_than_marks(
    forgotten: int, service_killed: bool, limit: int | None, late: int, seen: bool
) -> None:
    """Forgotten messages are sent again, the remaining ones are sent, and unselected messages stay."""
    parked = _parked()
    async with _life(parked) as life:
        await life.start(redrive(selection=Selection(limit=limit), pace=_PACE))
        if service_killed:
            await life.reach(40)
            await life.kill_service()
        await life.reach(60)
        await life.kill_broker(forgotten, late=late, seen=seen)
        job = await life.end()
        selected = parked[:limit]
        new = [b"late %d" % n for n in range(late)]
        assert life.shop.bodies(DLQ) == _others(parked, selected) + new
        moved = Counter(life.shop.bodies(MAIN))
        assert set(moved) == {message.body for message in selected}
        assert moved.total() - len(selected) <= forgotten + _WINDOW
        assert (job.state, job.counts.done) == (JobState.COMPLETED, len(selected))
        assert "lost their acks" in job.state_reason or forgotten <= _WINDOW
        assert job.counts.arrived_meanwhile == late
        assert life.shop.held() == 0


@pytest.mark.parametrize("every", [2, 5, 40])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@in_virtual_time
async def test_filtered_messages_stay_after_broker_loses_acks(
    limit: int | None, every: int
) -> None:
    """They are between, before and behind the redelivered messages, and are counted once."""
    parked = [
        Message("", DLQ, b"%d" % n, properties("yes" if n % every else "no")) for n in range(_COUNT)
    ]
    async with _life(parked) as life:
        await life.start(redrive(selection=Selection(limit=limit, filter="id:yes"), pace=_PACE))
        for done, forgotten in ((10, 15), (20, 50), (30, 25)):
            await life.reach(done)
            await life.kill_broker(forgotten)
        job = await life.end()
        selected = [message for message in parked[:limit] if message.properties.message_id == "yes"]
        assert life.shop.bodies(DLQ) == _others(parked, selected)
        assert set(life.shop.bodies(MAIN)) == {message.body for message in selected}
        skipped = len(parked[:limit]) - len(selected)
        assert (job.state, job.counts.done, job.counts.skipped) == (
            JobState.COMPLETED,
            len(selected),
            skipped,
        )


@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@in_virtual_time
async def test_discard_completes_after_broker_loses_acks(limit: int | None) -> None:
    parked = _parked()
    async with _life(parked) as life:
        await life.start(discard(selection=Selection(limit=limit), pace=_PACE))
        await life.reach(60)
        await life.kill_broker(50, late=5)
        job = await life.end()
        new = [b"late %d" % n for n in range(5)]
        assert life.shop.bodies(DLQ) == _others(parked, parked[:limit]) + new
        assert (job.state, job.counts.done) == (JobState.COMPLETED, len(parked[:limit]))


@in_virtual_time
async def test_redrive_of_chosen_messages_completes_after_broker_loses_acks() -> None:
    """They are recognised by content."""
    parked = _parked()
    async with _life(parked) as life:
        await life.shop.publish(parked)
        session = await life.shop.operations.on_behalf_of(ANN).open_session(
            DLQ, SessionRequest(limit=_LIMIT)
        )
        asked = redrive(selection=Selection(session=session.id), pace=_PACE)
        life.ident = (await life.shop.operations.start(asked)).id
        await life.reach(60)
        await life.kill_broker(50, late=5)
        job = await life.end()
        new = [b"late %d" % n for n in range(5)]
        assert life.shop.bodies(DLQ) == _others(parked, parked[:_LIMIT]) + new
        assert set(life.shop.bodies(MAIN)) == {message.body for message in parked[:_LIMIT]}
        assert (job.state, job.counts.done) == (JobState.COMPLETED, _LIMIT)
        assert "last message" not in job.state_reason


@in_virtual_time
async def test_paused_job_completes_after_broker_loses_acks() -> None:
    parked = _parked()
    async with _life(parked) as life:
        await life.start(redrive(pace=_PACE))
        await life.reach(60)
        await life.shop.operations.pause(life.ident)
        async for job in life.shop.operations.events(life.ident):
            if job.state is JobState.PAUSED:
                break
        await life.kill_broker(50)
        await life.shop.operations.resume(life.ident)
        ended = await life.end()
        assert (ended.state, ended.counts.done) == (JobState.COMPLETED, _COUNT)
        assert set(life.shop.bodies(MAIN)) == {message.body for message in parked}
        assert life.shop.bodies(DLQ) == []


@in_virtual_time
async def test_failed_job_completes_after_broker_loses_acks() -> None:
    """It had received all acks before the broker was killed."""
    parked = _parked()
    async with _life(parked, room=70) as life:
        await life.start(redrive(pace=_PACE))
        assert (await life.end()).state is JobState.FAILED
        moved = set(life.shop.bodies(MAIN))
        await life.empty(MAIN)
        await life.kill_broker(30)
        await life.shop.operations.resume(life.ident)
        await life.reach(90)
        moved |= set(life.shop.bodies(MAIN))
        await life.empty(MAIN)
        job = await life.end()
        assert (job.state, job.counts.done) == (JobState.COMPLETED, _COUNT)
        assert moved | set(life.shop.bodies(MAIN)) == {message.body for message in parked}
        assert life.shop.bodies(DLQ) == []


@in_virtual_time
async def test_checkpoint_remembers_acked_messages() -> None:
    """A classic queue may have received an ack without having written it to disk."""
    parked = _parked(3)
    async with _life(parked) as life:
        await life.shop.publish(parked)
        channel = await (await life.node.connect("test")).open_channel()
        held = [one for _ in parked if (one := await channel.get(DLQ)) is not None]
        for rest in (2, 0):
            cursor = ClassicCursor(Checkpoint(rest=len(held) + rest), remembered=10, head=0)
            for delivery in held:
                cursor.handle(CursorEvent.DELIVERED, delivery)
                cursor.handle(CursorEvent.ACKED, delivery.tag)
            cursor.handle(CursorEvent.APPLIED)
            mark = cursor.checkpoint()
            assert mark.window == tuple(map(mark_of, held))
            assert (mark.last, mark.last_stays) == (mark_of(held[-1]), False)


@pytest.mark.parametrize("every", [1, 3], ids=["all", "a filter"])
@pytest.mark.parametrize("last", range(56, 70, 3))
@in_virtual_time
async def test_job_completes_after_second_kill_near_its_end(last: int, every: int) -> None:
    ids = ["no" if n % every else "yes" for n in range(75 * every)]
    parked = [Message("", DLQ, b"%d" % n, properties(ids[n])) for n in range(75 * every)]
    limit = 74 * every
    async with _life(parked) as life:
        pace = Pace(4.0, in_flight=1)
        await life.start(redrive(selection=Selection(limit=limit, filter="id:yes"), pace=pace))
        await life.reach(20)
        await life.kill_service()
        await life.reach(54)
        await life.kill_broker(3, late=80)
        await life.reach(last)
        await life.kill_broker(10, late=80)
        job = await life.end()
        selected = [message for message in parked[:limit] if message.properties.message_id == "yes"]
        new = [b"late %d" % n for n in range(80)] * 2
        assert life.shop.bodies(DLQ) == _others(parked, selected) + new
        assert set(life.shop.bodies(MAIN)) == {message.body for message in selected}
        assert (job.state, job.counts.done) == (JobState.COMPLETED, len(selected))
        assert job.counts.skipped == limit - len(selected)


@pytest.mark.parametrize("forgotten", [0, 50])
@pytest.mark.parametrize("late", [0, 70], ids=["nothing new", "new ones"])
@in_virtual_time
async def test_job_fails_if_equal_messages_hide_end_of_selection(forgotten: int, late: int) -> None:
    """It moves no other message and does not report completion."""
    parked = [Message("", DLQ, b"%d" % (n % 7), properties("m")) for n in range(_COUNT)]
    async with _life(parked) as life:
        await life.start(redrive(selection=Selection(limit=_LIMIT), pace=_PACE))
        await life.reach(60)
        await life.kill_broker(forgotten, late=late)
        job = await life.end()
        left = Counter(life.shop.bodies(DLQ))
        others = Counter(message.body for message in parked[_LIMIT:])
        others.update(b"late %d" % n for n in range(late))
        assert not others - left
        assert job.state is JobState.FAILED
        assert "unknown where the selection ends" in job.state_reason


@pytest.mark.parametrize("forgotten", [0, 50])
@in_virtual_time
async def test_job_fails_if_queue_type_is_unknown(forgotten: int) -> None:
    """It may be a quorum queue, where browsing is counted."""
    parked = _parked()
    async with _life(parked, live=False) as life:
        await life.start(redrive(pace=_PACE))
        await life.reach(60)
        await life.kill_broker(forgotten)
        job = await life.end()
        left, moved = set(life.shop.bodies(DLQ)), set(life.shop.bodies(MAIN))
        assert left | moved == {message.body for message in parked}
        if forgotten:
            assert job.state is JobState.FAILED
            assert "Without the management API" in job.state_reason
        else:
            assert (job.state, job.counts.done, left) == (JobState.COMPLETED, _COUNT, set())


@in_virtual_time
async def test_duplicate_batch_behind_selection_does_not_extend_it() -> None:
    half = _parked(_COUNT // 2)
    parked = half + half
    async with _life(parked) as life:
        await life.start(redrive(selection=Selection(limit=_LIMIT), pace=_PACE))
        await life.reach(40)
        await life.shop.publish([Message("", DLQ, b"late")] * _COUNT)
        await life.kill_service()
        await life.end()
        left = Counter(life.shop.bodies(DLQ))
        assert not Counter(message.body for message in parked[_LIMIT:]) - left
        assert left[b"late"] == _COUNT


@pytest.mark.parametrize("late", [0, 70], ids=["nothing new", "new ones"])
@pytest.mark.parametrize("forgotten", [20, 40, 200])
@in_virtual_time
async def test_duplicate_batch_with_lost_acks_completes_or_fails_with_reason(
    forgotten: int, late: int
) -> None:
    half = _parked(_COUNT // 2)
    parked = half + half
    async with _life(parked) as life:
        await life.start(redrive(selection=Selection(limit=_LIMIT), pace=_PACE))
        await life.reach(80)
        await life.kill_broker(forgotten, late=late)
        job = await life.end()
        left = Counter(life.shop.bodies(DLQ))
        others = Counter(message.body for message in parked[_LIMIT:])
        others.update(b"late %d" % n for n in range(late))
        assert not others - left
        assert left == others or job.state is JobState.FAILED


@pytest.mark.parametrize(("count", "limit", "done"), [(65, None, 20), (97, 93, 40)])
@in_virtual_time
async def test_duplicate_batch_and_killed_service_move_only_selection(
    count: int, limit: int | None, done: int
) -> None:
    parked = (_parked(count // 2) * 3)[:count]
    async with _life(parked) as life:
        await life.start(redrive(selection=Selection(limit=limit), pace=Pace(20.0, in_flight=5)))
        await life.reach(done)
        await life.kill_service()
        job = await life.end()
        left = Counter(life.shop.bodies(DLQ))
        others = Counter(message.body for message in parked[len(parked[:limit]) :])
        assert not others - left
        if job.state is JobState.COMPLETED:
            assert (left, job.counts.done) == (others, len(parked[:limit]))
        else:
            assert "unknown where the selection ends" in job.state_reason


@in_virtual_time
async def test_returned_messages_are_not_taken_for_lost_acks() -> None:
    """Every sent message dies again and is at the end of the queue. None of them is sent twice."""
    parked = _parked()
    async with _life(parked) as life:

        async def fail() -> None:
            channel = await (await life.node.connect("worker")).open_channel()
            await channel.consume(MAIN, lambda one: channel.nack(one.tag, requeue=False))

        await fail()
        await life.start(redrive(pace=_PACE))
        await life.reach(100)
        await life.kill_service()
        await fail()
        job = await life.end()
        assert (job.state, job.counts.done) == (JobState.COMPLETED, _COUNT)
        back = life.shop.queue(DLQ).ready
        assert {one.body for one in back} == {message.body for message in parked}
        assert len(back) <= _COUNT + _WINDOW


def _some_fail(every: int) -> list[Message]:
    """Some messages name an unrelated queue. They stay and count as failed."""
    failed_in = ["vault" if n % every == 0 else MAIN for n in range(_COUNT)]
    return [
        Message("", DLQ, b"%d" % n, properties(f"m{n}", {"hopback-queue": queue}))
        for n, queue in enumerate(failed_in)
    ]


def _movable(messages: Sequence[Message]) -> list[Message]:
    return [one for one in messages if one.properties.headers["hopback-queue"] == MAIN]


@pytest.mark.parametrize("late", [0, 70], ids=["nothing new", "new ones"])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@pytest.mark.parametrize("forgotten", [0, 5, 30, 200])
@in_virtual_time
async def test_job_with_failures_completes_after_broker_loses_acks(
    forgotten: int, limit: int | None, late: int
) -> None:
    """Failed messages stay and are counted once."""
    parked = _some_fail(every=10)
    async with _life(parked, room=50, is_shared=True) as life:
        await life.start(redrive(selection=Selection(limit=limit), pace=_PACE))
        gave_up = await life.end()
        assert gave_up.state is JobState.FAILED
        assert gave_up.counts.failed > 1
        moved = Counter(life.shop.bodies(MAIN))
        await life.empty(MAIN)
        await life.kill_broker(forgotten, late=late)
        reasons = ""
        while (await life.shop.operations.resume(life.ident)).is_active:
            job = await life.end()
            reasons += job.state_reason
            moved.update(life.shop.bodies(MAIN))
            await life.empty(MAIN)
            if job.state is JobState.COMPLETED:
                break
        selected = _movable(parked[:limit])
        assert set(moved) == {one.body for one in selected}
        assert moved.total() - len(selected) <= forgotten + _WINDOW
        new = [b"late %d" % n for n in range(late)]
        assert life.shop.bodies(DLQ) == _others(parked, selected) + new
        failed = len(parked[:limit]) - len(selected)
        assert (job.counts.done, job.counts.failed) == (len(selected), failed)
        assert "lost their acks" in reasons or forgotten <= _WINDOW


@pytest.mark.parametrize("seen", [True, False], ids=["marked as seen", "not marked"])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@pytest.mark.parametrize("forgotten", [0, 1, 30, 200])
@in_virtual_time
async def test_stopped_job_with_failures_after_broker_loses_acks_retries_or_fails(
    forgotten: int, limit: int | None, seen: bool
) -> None:
    """It tries the failed messages again, or reports that the end of the selection is unknown."""
    parked = _some_fail(every=10)
    async with _life(parked, is_shared=True) as life:
        handled = Counter[bytes]()

        async def work() -> None:
            channel = await (await life.node.connect("worker")).open_channel()

            def handle(one: Delivery) -> None:
                handled[one.body] += 1
                if int(one.body) < _COUNT // 2:
                    channel.ack(one.tag)
                else:
                    channel.nack(one.tag, requeue=False)

            await channel.consume(MAIN, handle)

        await work()
        pace = Pace(ramp=RAMP)
        await life.start(redrive(selection=Selection(limit=limit), pace=pace))
        stopped = await life.end()
        selected = {one.body for one in _movable(parked[:limit])}
        assert (stopped.state, stopped.counts.done) == (JobState.STOPPED, len(selected))
        assert set(handled) == selected
        await life.kill_broker(forgotten, seen=seen)
        await work()
        await life.shop.operations.resume(life.ident)
        job = await life.end()
        assert set(handled) == selected
        assert handled.total() - len(selected) <= forgotten
        assert job.counts.done == len(selected)
        back = {
            one.body for one in life.shop.queue(DLQ).ready if REDRIVE_JOB in one.properties.headers
        }
        assert back == {body for body in selected if int(body) >= _COUNT // 2}
        there = [
            one for one in life.shop.queue(DLQ).ready if REDRIVE_JOB not in one.properties.headers
        ]
        failed = {one.body for one in parked if one.body not in selected}
        if job.state is JobState.COMPLETED:
            left = {one.body for one in there} - failed
            assert not left or (len(left) == 1 and "may still have it" in job.state_reason)
            assert failed <= {one.body for one in there}
            assert job.counts.failed == len(parked[:limit]) - len(selected)
        elif job.state is JobState.FAILED:
            assert forgotten
            assert "interrupted at its end" in job.state_reason
        else:  # messages sent twice were redelivered twice
            assert (job.state, bool(forgotten)) == (JobState.STOPPED, True)


@pytest.mark.parametrize(
    ("count", "is_classic", "is_paced", "held"),
    [
        pytest.param(1_000, True, False, 1_500, id="a short queue: three windows"),
        pytest.param(100_000, True, False, 5_000, id="a long one: a twentieth"),
        pytest.param(1_000_000, True, False, 10_000, id="a very long one: a second's work"),
        pytest.param(1_000_000, True, True, 1_500, id="at a rate: none waits for long"),
        pytest.param(1_000_000, False, False, 4_000, id="a quorum queue: eight windows"),
        pytest.param(1_000_000, False, True, 1_500, id="a quorum queue at a rate"),
    ],
)
def test_prefetch_of_a_job_depends_on_queue_type_length_and_rate(
    count: int, is_classic: bool, is_paced: bool, held: int
) -> None:
    request = RedriveRequest(queue="q", reason="t", selection=Selection(limit=count))
    spec = JobSpec(request=request, broker="here")
    assert choose_prefetch(spec, is_classic=is_classic, is_paced=is_paced) == held
