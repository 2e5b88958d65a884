"""Ramped jobs on brokers without declared designs stop while the cause is not repaired."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.message import Message, Properties, Received
from hopback.ops.brokers.discovery import dead_letter_queues
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import RAMP, AuditQuery, Pace, RedriveRequest, Selection
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.watch_time import WatchTimer
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType, Topology
from hopback.version import BrokerVersion
from tests.unit.ops.service import count_returned
from tests.unit.ops.shop import discard, open_shop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.message import Delivery

_COUNT = 60


def _topology(tiers: dict[str, int], kind: QueueType = QueueType.CLASSIC) -> Topology:
    """A queue that rejects to its dead-letter queue, with retry queues that return to it."""
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    rests = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work.dlq"}
    return Topology(
        "foreign",
        queues=(
            Queue("work", type=kind, arguments=rests),
            Queue("work.dlq", type=kind),
            *(
                Queue(name, arguments={**back, "x-message-ttl": seconds * 1000})
                for name, seconds in tiers.items()
            ),
        ),
    )


class _Plant:
    """A foreign application: its consumer waits in each retry queue, then rejects.

    With `drops_headers` it publishes a new message to the dead-letter queue instead, as some frameworks do.
    """

    def __init__(self, broker: EmbeddedBroker, laps: list[str]) -> None:
        self.broker = broker
        self.laps = laps
        self.repaired = False
        self.fails: Callable[[bytes], bool] = lambda _body: True
        self.drops_headers = False
        self.handled = 0
        self.waited = Counter[bytes]()

    async def run(self) -> None:
        connection = await self.broker.connect("consumer")
        channel = await connection.open_channel()

        def handle(delivery: Delivery) -> None:
            self.handled += 1
            if self.repaired or not self.fails(delivery.body):
                channel.ack(delivery.tag)
                return
            waited = self.waited[delivery.body]
            self.waited[delivery.body] += 1
            if waited < len(self.laps):
                onwards = Message("", self.laps[waited], delivery.body, delivery.properties)
                fate = channel.publish(onwards)
                fate.add_done_callback(lambda _: channel.ack(delivery.tag))
            elif self.drops_headers:
                del self.waited[delivery.body]
                fate = channel.publish(Message("", "work.dlq", delivery.body, Properties()))
                fate.add_done_callback(lambda _: channel.ack(delivery.tag))
            else:
                del self.waited[delivery.body]
                channel.nack(delivery.tag, requeue=False)

        await channel.consume("work", handle)


@asynccontextmanager
async def _plant(
    tiers: dict[str, int],
    laps: list[str],
    kind: QueueType = QueueType.CLASSIC,
    version: BrokerVersion | None = None,
    count: int = _COUNT,
) -> AsyncIterator[tuple[_Plant, Operations]]:
    """The application with dead letters that it produced, and operations that know no design."""
    # A quorum queue of 3.10 has no default limit. One of 4.x is refused before the start.
    usual = BrokerVersion(3, 10) if kind is QueueType.QUORUM else BrokerVersion(4, 0)
    broker = EmbeddedBroker(version=version or usual)
    connection = await broker.connect("set up")
    await declare(connection, _topology(tiers, kind))
    channel = await connection.open_channel()
    plant = _Plant(broker, laps)
    await plant.run()
    for number in range(count):
        await channel.publish(Message("", "work", b"%d" % number, Properties(delivery_mode=2)))
    async with Operations(
        ManagedBroker(broker, management=EmbeddedManagement(broker), clock=LoopClock(time.time))
    ) as operations:
        while (await operations.queue("work.dlq")).messages != count:
            await _pass(1)
        plant.handled = 0
        yield plant, operations
    await connection.close()


async def _pass(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _careful(**pace: Any) -> RedriveRequest:
    return RedriveRequest(
        queue="work.dlq", selection=Selection(), reason="try", pace=Pace(ramp=RAMP, **pace)
    )


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
@pytest.mark.parametrize(
    ("tiers", "laps", "watched"),
    [
        ({"work.retry": 2}, ["work.retry"] * 2, 14),
        ({"work.retry": 4}, ["work.retry"] * 2, 23),
        ({"work.10s": 10, "work.60s": 60}, ["work.10s", "work.60s"], 110),
        ({"work.60s": 60}, ["work.60s"] * 3, 275),
        ({}, [], 5),
    ],
)
@in_virtual_time
async def test_unrepaired_cause_stops_redrive_after_first_message(
    tiers: dict[str, int], laps: list[str], watched: float, kind: QueueType
) -> None:
    """The dry run states the duration of the watch."""
    async with _plant(tiers, laps, kind) as (_, operations):
        plan = await operations.plan(_careful())
        assert plan.watch_s == pytest.approx(watched, abs=3)
        assert plan.target == "to queue work"
        job = await operations.wait((await operations.start(_careful())).id)
        assert (job.state, job.counts.done) == (JobState.STOPPED, 1)
        assert "not repaired" in job.state_reason
        assert job.watch_s == pytest.approx(plan.watch_s, abs=3)
        assert (await operations.queue("work.dlq")).messages == _COUNT


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        (QueueType.CLASSIC, BrokerVersion(4, 0)),
        (QueueType.QUORUM, BrokerVersion(3, 10)),
        (QueueType.QUORUM, BrokerVersion(4, 3)),  # it ends the consumer, not the channel
    ],
    ids=str,
)
@in_virtual_time
async def test_messages_requeued_by_consumer_timeout_do_not_count_as_returned(
    kind: QueueType, version: BrokerVersion
) -> None:
    """The broker closes a channel that holds messages for 30 min.

    The watch ends without them, and the next run takes them and continues with the next stage.
    """
    async with _plant({"work.retry": 2}, ["work.retry"] * 2, kind, version) as (plant, operations):
        plant.repaired = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        request = structs.replace(_careful(watch_s=2700.0), force=True)
        begun = await operations.start(request)
        job = await operations.wait(begun.id)
        assert (job.state, job.state_reason) == (JobState.COMPLETED, "")
        assert (job.counts.done, job.counts.arrived_meanwhile, job.counts.came_back) == (
            _COUNT,
            0,
            0,
        )
        # Each stage once, and once more at the end.
        assert loop.time() - began == pytest.approx((len(RAMP) + 1) * 2700.0, abs=60)
        assert plant.handled == _COUNT


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
@in_virtual_time
async def test_message_returned_after_consumer_timeout_stops_job(
    kind: QueueType,
) -> None:
    """It is retried for 40 min, longer than the job may hold the others."""
    async with _plant({"work.retry": 2400}, ["work.retry"], kind) as (_, operations):
        job = await operations.wait((await operations.start(_careful(watch_s=2700.0))).id)
        assert (job.state, job.counts.done) == (JobState.STOPPED, 1)
        assert "not repaired" in job.state_reason
        assert (await operations.queue("work.dlq")).messages == _COUNT


@in_virtual_time
async def test_cause_that_reappears_later_stops_redrive() -> None:
    async with _plant({"work.retry": 2}, ["work.retry"] * 2) as (plant, operations):
        plant.repaired = True
        job = await operations.start(_careful(rate=0.5))
        while plant.handled < sum(RAMP):
            await _pass(1)
        plant.repaired = False
        ended = await operations.wait(job.id)
        assert ended.state is JobState.STOPPED
        assert sum(RAMP) < ended.counts.done <= _COUNT


def _is_among_40_percent(body: bytes) -> bool:
    return int(body) % 5 in (1, 4)


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
@pytest.mark.parametrize("drops_headers", [False, True])
@pytest.mark.parametrize("in_flight", [10, 500])  # with 10, older messages are ready all the time
@in_virtual_time
async def test_redrive_stops_when_40_percent_of_messages_return(
    in_flight: int, drops_headers: bool, kind: QueueType
) -> None:
    count = 120
    async with _plant({}, [], kind, count=count) as (plant, operations):
        plant.fails, plant.drops_headers = _is_among_40_percent, drops_headers
        request = _careful(in_flight=in_flight)
        job = await operations.wait((await operations.start(request)).id)
        assert job.state is JobState.STOPPED, job
        assert "not repaired" in job.state_reason
        assert plant.handled == job.counts.done <= 6
        arrived = 2  # messages 1 and 4 of the first six
        assert job.counts.arrived_meanwhile == arrived
        assert (await operations.queue("work.dlq")).messages == count - job.counts.done + arrived
        if not drops_headers:
            assert job.counts.came_back in (None, arrived)
            assert await count_returned(operations, job.id) == arrived


@in_virtual_time
async def test_completed_redrive_has_one_count_of_returned_messages() -> None:
    async with _plant({}, [], count=100) as (plant, operations):
        plant.fails = _is_among_40_percent
        job = await operations.wait((await operations.start(_careful(max_returned=100))).id)
        assert (job.state, job.counts.done, job.state_reason) == (JobState.COMPLETED, 100, "")
        assert await count_returned(operations, job.id) == 40
        counted = await operations.job(job.id)
        assert (counted.counts.came_back, counted.state_reason) == (40, "")


@pytest.mark.parametrize("drops_headers", [False, True])
@in_virtual_time
async def test_redrive_continues_while_returned_messages_are_within_tolerance(
    drops_headers: bool,
) -> None:
    async with _plant({}, [], count=100) as (plant, operations):
        plant.fails, plant.drops_headers = _is_among_40_percent, drops_headers
        few = await operations.wait((await operations.start(_careful(max_returned=9))).id)
        assert (few.state, few.counts.done) == (JobState.STOPPED, 31)
        plant.repaired = True
        rest = await operations.wait((await operations.resume(few.id)).id)
        assert (rest.state, rest.counts.done) == (JobState.COMPLETED, 100)
    async with _plant({}, [], count=100) as (plant, operations):
        plant.fails, plant.drops_headers = _is_among_40_percent, drops_headers
        job = await operations.wait((await operations.start(_careful(max_returned=40))).id)
        assert (job.state, job.counts.done) == (JobState.COMPLETED, 100)
        assert job.counts.arrived_meanwhile == 40
        assert (await operations.queue("work.dlq")).messages == 40


@in_virtual_time
async def test_redrive_tolerates_unrelated_failures_at_prior_rate() -> None:
    async with _plant({}, [], count=300) as (plant, operations):
        plant.repaired = True
        connection = await plant.broker.connect("another application")
        channel = await connection.open_channel()

        async def fail_now_and_then() -> None:
            while True:
                await channel.publish(Message("", "work.dlq", b"other", Properties()))
                await _pass(1)

        failing = asyncio.create_task(fail_now_and_then())
        try:
            first = structs.replace(_careful(rate=10.0), selection=Selection(limit=300))
            job = await operations.wait((await operations.start(first)).id)
            assert (job.state, job.counts.done) == (JobState.COMPLETED, 300), job
            assert job.counts.arrived_meanwhile > 20
            # With the same failures, a job whose own messages return stops.
            plant.repaired = False
            again = await operations.wait((await operations.start(_careful())).id)
            assert again.state is JobState.STOPPED
            assert again.counts.done <= sum(RAMP)
        finally:
            failing.cancel()
        await connection.close()


@in_virtual_time
async def test_watching_job_reports_deadline() -> None:
    """The reason is restored after a pause and cleared when the job continues."""
    async with _plant({"work.retry": 2}, ["work.retry"] * 2) as (plant, operations):
        plant.repaired = True
        job = await operations.start(_careful())
        await _pass(2)
        counting = await operations.job(job.id)
        assert counting.counts.done == 0
        assert re.fullmatch(
            r"counting arrivals until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, before the first message is sent",
            counting.state_reason,
        )
        await _pass(10)
        watching = await operations.job(job.id)
        assert (watching.counts.done, watching.state) == (1, JobState.RUNNING)
        assert re.fullmatch(
            r"watching until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ for returned messages",
            watching.state_reason,
        )
        await operations.pause(job.id)
        await _pass(2)
        assert (await operations.job(job.id)).state_reason == "paused"
        await operations.resume(job.id)
        await _pass(2)
        assert (await operations.job(job.id)).state_reason == watching.state_reason
        ended = await operations.wait(job.id)
        assert (ended.state, ended.state_reason) == (JobState.COMPLETED, "")


@in_virtual_time
async def test_returned_count_is_known_only_for_ramped_jobs() -> None:
    async with _plant({"work.retry": 2}, ["work.retry"] * 2) as (plant, operations):
        plant.repaired = True
        half = RedriveRequest(queue="work.dlq", selection=Selection(limit=30), reason="a")
        first = await operations.wait((await operations.start(half)).id)
        assert (first.state, first.counts.came_back) == (JobState.COMPLETED, None)
        rest = await operations.wait((await operations.start(_careful())).id)
        assert (rest.state, rest.counts.came_back) == (JobState.COMPLETED, 0)


@in_virtual_time
async def test_returned_count_of_job_without_watch_is_unknown_until_counted() -> None:
    async with _plant({"work.retry": 2}, ["work.retry"] * 2) as (_, operations):
        plain = RedriveRequest(queue="work.dlq", selection=Selection(), reason="b")
        job = await operations.wait((await operations.start(plain)).id)
        assert (job.state, job.counts.came_back, job.watch_s) == (JobState.COMPLETED, None, None)
        await _pass(30)
        async with aclosing(operations.search(SearchRequest(job=job.id))) as progress:
            first = await anext(progress)
        assert {hit.dead_letter.redrive_job for hit in first.hits} == {job.id}
        # A caller that disconnects before the end has not counted.
        assert (await operations.job(job.id)).counts.came_back is None
        assert await count_returned(operations, job.id) == _COUNT
        assert (await operations.job(job.id)).counts.came_back == _COUNT
        said = await operations.audit(AuditQuery(job=job.id, action="job.came-back"))
        assert [entry.details["found"] for entry in said] == [_COUNT, first.matching]


@in_virtual_time
async def test_dry_run_names_active_job() -> None:
    async with _plant({}, []) as (plant, operations):
        plant.repaired = True
        running = await operations.start(_careful(rate=0.01))
        plan = await operations.plan(_careful())
        assert plan.conflict is not None
        assert plan.conflict.id == running.id
        assert not plan.may_start
        assert "active job" in plan.flaws[0]
        detail = await operations.queue("work.dlq")
        assert detail.foreign_consumers == 0
        await operations.cancel(running.id)
        await operations.wait(running.id)


@in_virtual_time
async def test_discard_with_ramp_does_not_watch_for_returns() -> None:
    async with open_shop() as shop:
        await shop.park(5)
        job = await shop.operations.start(discard(pace=Pace(ramp=(1,), watch_s=600.0)))
        began = asyncio.get_running_loop().time()
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 5)
        assert asyncio.get_running_loop().time() - began < 60


def test_expiration_of_message_gives_retry_wait() -> None:
    """The retry queues have no message TTL."""
    (source,) = dead_letter_queues(_topology({}))
    entry: dict[str, Any] = {
        "queue": "work.later", "reason": "expired", "count": 3, "exchange": "", "routing-keys": [],
        "original-expiration": "20000",
    }  # fmt: skip
    timer = WatchTimer(source)
    timer.see(Received("work.dlq", "", "", b"", Properties(headers={"x-death": [entry]})))
    assert timer.time.seconds == 95.0
    assert "3 waits in work.later" in timer.time.text


@pytest.mark.parametrize(
    ("header", "count"), [("x-retries", 5), ("retry_count", 5), ("x-attempts", 6)]
)
def test_counted_retries_of_message_give_retry_wait(header: str, count: int) -> None:
    (source,) = dead_letter_queues(_topology({"work.retry": 4}))
    timer = WatchTimer(source)
    timer.see(Received("work.dlq", "", "", b"", Properties(headers={header: count})))
    assert "5 rounds are assumed" in timer.time.text


def test_watch_text_states_source_of_its_duration() -> None:
    """The total duration of an earlier failure is longer than its waits."""
    (source,) = dead_letter_queues(_topology({"work.retry": 4}))
    deaths: list[dict[str, Any]] = [
        {"queue": "work", "reason": "rejected", "count": 1, "time": 1032},
        {"queue": "work.retry", "reason": "expired", "count": 2, "time": 1000},
    ]
    timer = WatchTimer(source)
    timer.see(Received("work.dlq", "", "", b"", Properties(headers={"x-death": deaths})))
    assert timer.time.seconds == 53.0
    assert timer.time.text == (
        "53 s: a message took 32 s from its first failure to its last, with 2 x 4 s in work.retry"
    )


@pytest.mark.parametrize("count", [2**62, -1])
def test_watch_is_bounded_for_any_x_death(count: int) -> None:
    (source,) = dead_letter_queues(_topology({"work.retry": 5}))
    entry: dict[str, Any] = {
        "queue": "work.retry",
        "reason": "expired",
        "count": count,
        "time": count,
    }
    timer = WatchTimer(source)
    timer.see(Received("work.dlq", "", "", b"", Properties(headers={"x-death": [entry]})))
    assert 5.0 <= timer.time.seconds <= 480.0
