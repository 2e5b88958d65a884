"""Re-drive jobs in virtual time: moved messages, skipped messages and final states."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import Fault
from hopback.errors import (
    AccessRefused,
    BadRequest,
    ConnectionFailed,
    ConnectionLost,
    CountMismatch,
    JobConflict,
    LoginRefused,
    ManagementError,
    ManagementRefused,
    NoSuch,
    NotFound,
    StoreUnavailable,
    UnsafeOperation,
)
from hopback.message import Message
from hopback.ops.contract.requests import (
    RAMP,
    AuditQuery,
    Pace,
    Selection,
    SessionRequest,
    Settings,
    Submission,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import Job, JobState
from hopback.ops.jobs.control import ControlRequest
from hopback.ops.jobs.journal import MemoryJournal
from hopback.ops.jobs.publish_failure import is_away
from hopback.policy.redrive import Redriver
from hopback.testing import in_virtual_time
from hopback.topology.model import Policy
from hopback.version import BrokerVersion
from tests.unit.ops.service import count_returned
from tests.unit.ops.shop import ANN, DLQ, MAIN, Shop, discard, open_shop, properties, redrive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.errors import BrokerError
    from hopback.message import Delivery
    from hopback.ops.jobs.job_record import JobRecord


@in_virtual_time
async def test_redrive_moves_all_messages_in_order() -> None:
    """Each message carries the id of the job."""
    async with open_shop() as shop:
        await shop.park(1200)
        job = await shop.operations.start(redrive())
        assert job.state is JobState.RUNNING
        done = await shop.operations.wait(job.id)
        assert (done.state, done.state_reason) == (JobState.COMPLETED, "")
        assert (done.counts.selected, done.counts.done, done.counts.remaining) == (1200, 1200, 0)
        assert shop.bodies(MAIN) == [b"%d" % number for number in range(1200)]
        assert shop.queue(DLQ).messages == ()
        first = shop.queue(MAIN).ready[0].properties
        assert first.headers["hopback-redrive-job"] == job.id
        assert first.headers["hopback-redrives"] == 1
        assert first.delivery_mode == 2
    assert shop.broker.connections == ()


@in_virtual_time
async def test_filtered_redrive_returns_other_messages_in_order() -> None:
    async with open_shop() as shop:
        await shop.publish(
            Message(
                "",
                DLQ,
                b"%d" % n,
                replace(properties(f"m{n}"), type="even" if n % 2 == 0 else "odd"),
            )
            for n in range(300)
        )
        job = await shop.operations.start(redrive(selection=Selection(filter="type:even")))
        done = await shop.operations.wait(job.id)
        assert (done.counts.done, done.counts.skipped, done.counts.returned) == (150, 150, 150)
        assert shop.bodies(MAIN) == [b"%d" % n for n in range(0, 300, 2)]
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(1, 300, 2)]


@in_virtual_time
async def test_messages_that_arrive_during_redrive_stay_and_are_counted() -> None:
    """The selection ends at the depth at the start."""
    async with open_shop() as shop:
        await shop.park(40)
        job = await shop.operations.start(redrive(pace=Pace(rate=10)))
        await shop.publish(Message("", DLQ, b"late %d" % n) for n in range(3))
        done = await shop.operations.wait(job.id)
        assert (done.counts.done, done.counts.arrived_meanwhile) == (40, 3)
        assert shop.bodies(DLQ) == [b"late 0", b"late 1", b"late 2"]


@in_virtual_time
async def test_redrive_rate_of_10_per_second_takes_4_seconds_for_40_messages() -> None:
    async with open_shop() as shop:
        await shop.park(40)
        clock = asyncio.get_running_loop()
        began = clock.time()
        job = await shop.operations.start(redrive(pace=Pace(rate=10)))
        await shop.operations.wait(job.id)
        assert clock.time() - began == pytest.approx(3.9, abs=0.19)


@in_virtual_time
async def test_limited_redrive_moves_only_first_messages() -> None:
    async with open_shop() as shop:
        await shop.park(500)
        job = await shop.operations.start(redrive(selection=Selection(limit=201)))
        done = await shop.operations.wait(job.id)
        assert (done.counts.selected, done.counts.done) == (201, 201)
        assert len(shop.bodies(MAIN)) == 201
        assert shop.bodies(DLQ)[0] == b"201"
        assert not any(message.redelivered for message in shop.queue(DLQ).ready)


@in_virtual_time
async def test_redrive_of_session_moves_only_chosen_messages() -> None:
    """The other messages return in order, and the session ends."""
    async with open_shop() as shop:
        await shop.park(20)
        session = await shop.operations.on_behalf_of(ANN).open_session(
            DLQ, SessionRequest(limit=10)
        )
        dead_letters = (await shop.operations.messages(session.id, limit=100)).dead_letters
        chosen = tuple(dead_letter.id for dead_letter in dead_letters[2:8:2])
        request = redrive(selection=Selection(session=session.id, ids=chosen), expected_count=3)
        job = await shop.operations.start(request)
        done = await shop.operations.wait(job.id)
        assert (done.counts.selected, done.counts.done, done.counts.returned) == (3, 3, 7)
        assert shop.bodies(MAIN) == [b"2", b"4", b"6"]
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(20) if n not in {2, 4, 6}]
        with pytest.raises(NoSuch, match="handed over"):
            shop.operations.session(session.id)


@in_virtual_time
async def test_unexpected_count_starts_no_job() -> None:
    """`expected_count` includes the filter."""
    async with open_shop() as shop:
        await shop.park(5)
        with pytest.raises(CountMismatch, match="expected 4 messages, found 5"):
            await shop.operations.start(redrive(expected_count=4))
        selection = Selection(filter="id:m1")
        with pytest.raises(CountMismatch, match="found 1"):
            await shop.operations.start(redrive(selection=selection, expected_count=5))
        assert shop.bodies(DLQ) == [b"0", b"1", b"2", b"3", b"4"]
        assert await shop.operations.jobs() == ()


@in_virtual_time
async def test_second_job_of_queue_raises_conflict() -> None:
    """The error names the active job. The same key returns the same job."""
    async with open_shop() as shop:
        await shop.park(10)
        first = await shop.operations.start(redrive(pace=Pace(rate=1)), Submission(key="k"))
        with pytest.raises(JobConflict) as refused:
            await shop.operations.start(redrive())
        assert refused.value.job is not None
        assert refused.value.job.id == first.id
        assert (await shop.operations.start(redrive(), Submission(key="k"))).id == first.id
        await shop.operations.wait(first.id)
        with pytest.raises(JobConflict, match="the key 'k' belongs to job"):
            await shop.operations.start(discard(), Submission(key="k"))
        assert (await shop.operations.start(redrive(), Submission(key="k"))).id == first.id


@in_virtual_time
async def test_paused_job_waits_and_cancelled_job_returns_messages() -> None:
    async with open_shop() as shop:
        await shop.park(100)
        job = await shop.operations.start(redrive(pace=Pace(rate=10)))
        await shop.operations.on_behalf_of(ANN).pause(job.id)
        seen = [news.state async for news in _until(shop, job.id, JobState.PAUSED)]
        assert seen[-1] is JobState.PAUSED
        moved = len(shop.bodies(MAIN))
        await _pass(60)
        assert len(shop.bodies(MAIN)) == moved
        await shop.operations.resume(job.id)
        await shop.operations.set_rate(job.id, 20)
        await _pass(2)
        assert len(shop.bodies(MAIN)) > moved
        await shop.operations.cancel(job.id)
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.CANCELLED
        assert done.counts.done == len(shop.bodies(MAIN)) < 100
        assert shop.bodies(MAIN) + shop.bodies(DLQ) == [b"%d" % n for n in range(100)]
        with pytest.raises(JobConflict):
            await shop.operations.resume(job.id)


@in_virtual_time
async def test_pause_longer_than_consumer_timeout_sends_no_message_twice() -> None:
    """The broker has requeued the held messages, so the next run takes them again."""
    async with open_shop() as shop:
        await shop.park(30)
        job = await shop.operations.start(redrive(pace=Pace(rate=10)))
        await _pass(1)
        await shop.operations.pause(job.id)
        async for _ in _until(shop, job.id, JobState.PAUSED):
            pass
        await _pass(7200)
        await shop.operations.resume(job.id)
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 30), done.state_reason
        assert sorted(shop.bodies(MAIN)) == sorted(b"%d" % n for n in range(30))
        assert shop.bodies(DLQ) == []


@in_virtual_time
async def test_rate_set_during_pause_is_reported() -> None:
    async with open_shop() as shop:
        await shop.park(10)
        job = await shop.operations.start(redrive(pace=Pace(rate=1)))
        await shop.operations.pause(job.id)
        async for _ in _until(shop, job.id, JobState.PAUSED):
            pass
        await shop.operations.set_rate(job.id, 20)
        await _pass(1)
        told = await shop.operations.job(job.id)
        assert (told.state, told.rate) == (JobState.PAUSED, 20)
        await shop.operations.set_rate(job.id, None)
        await _pass(1)
        assert (await shop.operations.job(job.id)).rate is None
        await shop.operations.cancel(job.id)


class _Away(MemoryJournal):
    """A journal whose database does not answer while it is away."""

    is_away = False
    fails_once = False

    async def renew(self, ident: str, owner: str) -> ControlRequest:
        """As ever, if it is there."""
        self._answer()
        return await super().renew(ident, owner)

    async def save(self, job: JobRecord, owner: str, *failures: Any, **more: Any) -> None:
        """As ever, if it is there."""
        self._answer()
        if self.fails_once:
            self.fails_once = False
            raise StoreUnavailable("the database does not answer")
        await super().save(job, owner, *failures, **more)

    def _answer(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the database does not answer")


@in_virtual_time
async def test_job_is_cancelled_after_database_returns() -> None:
    """A heartbeat that fails is tried again, so requests from other processes arrive."""
    journal = _Away()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=Pace(rate=0.1, in_flight=1)))
        await _pass(1)
        journal.is_away = True
        await _pass(6)  # longer than a heartbeat, shorter than the way to the next checkpoint
        journal.is_away = False
        await journal.change_control(job.id, lambda _: ControlRequest(cancelled=True))
        assert (await shop.operations.wait(job.id)).state is JobState.CANCELLED


@in_virtual_time
async def test_caller_that_exits_at_job_end_waits_for_audit_and_connection_close() -> None:
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(3)
        job = await shop.operations.start(redrive())
        async for told in shop.operations.events(job.id):
            last = told.state
    assert last is JobState.COMPLETED
    said = [entry.action for entry in await journal.read_entries(AuditQuery(job=job.id))]
    assert said == ["job.end", "job.start"]


@in_virtual_time
async def test_job_is_interrupted_if_its_end_cannot_be_stored() -> None:
    journal = _Away()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=Pace(rate=5, in_flight=1)))
        await _pass(1)
        journal.is_away = True
        ended = await shop.operations.wait(job.id)
        assert ended.state is JobState.INTERRUPTED
        assert "the database does not answer" in ended.state_reason
        journal.is_away = False
        assert sorted(shop.bodies(MAIN) + shop.bodies(DLQ)) == sorted(b"%d" % n for n in range(20))


@in_virtual_time
async def test_job_interrupted_by_database_resumes_without_duplicates() -> None:
    journal = _Away()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=Pace(rate=5, in_flight=1)))
        await _pass(1)
        journal.fails_once = True
        ended = await shop.operations.wait(job.id)
        assert (ended.state, ended.can_resume) == (JobState.INTERRUPTED, True)
        await shop.operations.resume(job.id)
        assert (await shop.operations.wait(job.id)).state is JobState.COMPLETED
        assert sorted(shop.bodies(MAIN)) == sorted(b"%d" % n for n in range(20))


async def _until(shop: Shop, ident: str, state: JobState) -> AsyncIterator[Job]:
    async for news in shop.operations.events(ident):
        yield news
        if news.state is state:
            return


async def _pass(seconds: float) -> None:
    await asyncio.sleep(seconds)  # virtual


@in_virtual_time
async def test_missing_or_unroutable_target_is_refused_before_start() -> None:
    async with open_shop() as shop:
        await shop.park(3)
        for target, why in (
            (Target(TargetKind.QUEUE, routing_key="oders"), "'oders' does not exist"),
            (Target(TargetKind.EXCHANGE, "nowhere", "k"), "'nowhere' does not exist"),
            (Target(TargetKind.EXCHANGE, "amq.direct", "k"), "to no queue"),
        ):
            with pytest.raises(UnsafeOperation, match=why):
                await shop.operations.start(redrive(target=target))
            assert not (await shop.operations.plan(redrive(target=target))).may_start
        assert len(shop.bodies(DLQ)) == 3


@in_virtual_time
async def test_full_target_stops_job_without_loss() -> None:
    """The job retries with growing pauses, then stops and can be resumed."""
    async with open_shop() as shop:
        await shop.park(50)
        shop.broker.set_policy(
            Policy("full", f"^{MAIN}$", {"max-length": 10, "overflow": "reject-publish"})
        )
        job = await shop.operations.start(redrive(pace=Pace(in_flight=1)))
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.FAILED
        assert "gave up after 5 attempts" in done.state_reason
        moved = len(shop.bodies(MAIN))
        assert (moved, len(shop.bodies(DLQ))) == (done.counts.done, 50 - moved)
        assert shop.held() == 0
        counts = {message.returns for message in shop.queue(DLQ).ready}
        assert counts <= {0, 1}
        shop.broker.clear_policy("full")
        await shop.operations.resume(job.id)
        again = await shop.operations.wait(job.id)
        assert (again.state, again.counts.done, again.run) == (JobState.COMPLETED, 50, 2)
        assert shop.bodies(MAIN) == [b"%d" % n for n in range(50)]


@in_virtual_time
async def test_job_waits_for_unreachable_broker_and_continues() -> None:
    """It reports the reason, keeps its queue and does not move messages that arrive later."""
    async with open_shop() as shop:
        await shop.park(300)
        job = await shop.operations.start(redrive(pace=Pace(rate=100)))
        await _pass(1)
        shop.broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        shop.broker.cut()
        await _pass(600)
        waiting = await shop.operations.job(job.id)
        assert waiting.state is JobState.RUNNING
        assert waiting.state_reason.startswith("waiting for the broker, up to 30 min: ")
        assert 0 < waiting.counts.done < 300
        shop.broker.faults.clear()
        await shop.publish(Message("", DLQ, b"late") for _ in range(50))
        with pytest.raises(JobConflict):
            await shop.operations.start(redrive())
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done, done.state_reason) == (JobState.COMPLETED, 300, "")
        assert shop.bodies(DLQ) == [b"late"] * 50
        assert set(shop.bodies(MAIN)) == {b"%d" % n for n in range(300)}


@in_virtual_time
async def test_job_is_interrupted_if_broker_stays_away_and_resumes_exactly() -> None:
    async with open_shop(settings=Settings(patience_s=300)) as shop:
        await shop.park(300)
        job = await shop.operations.start(redrive(pace=Pace(rate=100)))
        await _pass(1)
        shop.broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        shop.broker.cut()
        began = asyncio.get_running_loop().time()
        stopped = await shop.operations.wait(job.id)
        assert stopped.state is JobState.INTERRUPTED
        assert "refused the connection" in stopped.state_reason
        assert 300 <= asyncio.get_running_loop().time() - began < 330
        shop.broker.faults.clear()
        await shop.publish(Message("", DLQ, b"late") for _ in range(50))
        await shop.operations.resume(job.id)
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 300)
        assert shop.bodies(DLQ) == [b"late"] * 50
        assert set(shop.bodies(MAIN)) == {b"%d" % n for n in range(300)}


@in_virtual_time
async def test_waiting_job_can_be_cancelled_or_interrupted() -> None:
    async with open_shop() as shop:
        await shop.park(300)
        job = await shop.operations.start(redrive(pace=Pace(rate=100)))
        await _pass(1)
        shop.broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        shop.broker.cut()
        await _pass(60)
        await shop.operations.cancel(job.id)
        assert (await shop.operations.wait(job.id)).state is JobState.CANCELLED
        shop.broker.faults.clear()
        left = await shop.operations.start(redrive(pace=Pace(rate=100)))
        await _pass(0.5)
        shop.broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        shop.broker.cut()
        await _pass(60)
        await shop.operations.pause(left.id)
        await _pass(1)
        paused = await shop.operations.job(left.id)
        assert (paused.state, paused.state_reason[:22]) == (
            JobState.PAUSED,
            "waiting for the broker",
        )
        await shop.operations.close()
        ended = await shop.operations.job(left.id)
        assert (ended.state, ended.can_resume) == (JobState.INTERRUPTED, True)
        shop.broker.faults.clear()


@pytest.mark.parametrize(
    ("failed", "passes"),
    [
        (ConnectionLost("the connection ended"), True),
        (ConnectionFailed("connection refused"), True),
        (ManagementError("the node is starting", status=503), True),
        (LoginRefused("403 ACCESS_REFUSED"), False),
        (AccessRefused(403, "ACCESS_REFUSED"), False),
        (ManagementRefused("no", status=401), False),
        (NotFound(404, "no queue"), False),
    ],
)
def test_only_connection_errors_make_job_wait(failed: BrokerError, passes: bool) -> None:
    """A request that the broker refuses will be refused again."""
    assert is_away(failed) is passes


@pytest.mark.parametrize("limit", [None, 200])
@in_virtual_time
async def test_arrivals_before_interruption_are_counted_after_resume(limit: int | None) -> None:
    async with open_shop() as shop:
        await shop.park(300)
        selection = Selection(limit=limit)
        job = await shop.operations.start(redrive(selection=selection, pace=Pace(rate=100)))
        await _pass(1)
        await shop.publish(Message("", DLQ, b"late") for _ in range(600))
        shop.broker.cut()
        await _pass(0.1)
        await shop.publish(Message("", DLQ, b"later") for _ in range(50))
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, limit or 300)
        assert done.run == 2
        assert done.counts.arrived_meanwhile == 650


@in_virtual_time
async def test_broker_restart_loses_no_message() -> None:
    async with open_shop() as shop:
        await shop.park(200)
        job = await shop.operations.start(redrive(pace=Pace(rate=100)))
        await _pass(1)
        shop.broker.restart()
        everything = {*shop.bodies(MAIN), *shop.bodies(DLQ)}
        assert everything == {b"%d" % n for n in range(200)}
        assert (await shop.operations.wait(job.id)).counts.done == 200


@in_virtual_time
async def test_lost_confirms_cause_duplicates_only() -> None:
    """Unconfirmed messages are not acked."""
    async with open_shop() as shop:
        await shop.park(20)
        shop.broker.faults.chance(Fault.LOSE_CONFIRM, 1.0)
        job = await shop.operations.start(redrive())
        done = await shop.operations.wait(job.id)
        assert done.state in {JobState.FAILED, JobState.INTERRUPTED}
        everything = {*shop.bodies(MAIN), *shop.bodies(DLQ)}
        assert everything == {b"%d" % n for n in range(20)}


@in_virtual_time
async def test_loop_guard_skips_message_redriven_three_times() -> None:
    """It is counted as skipped and listed."""
    async with open_shop() as shop:
        await shop.park(1, headers={"hopback-redrives": 3})
        await shop.park(1)
        job = await shop.operations.start(redrive())
        done = await shop.operations.wait(job.id)
        assert (done.counts.done, done.counts.skipped) == (1, 1)
        (failed,) = await shop.operations.failures(job.id)
        assert failed.reason == "re-driven 3 times already, expected fewer than 3"
        again = await shop.operations.start(redrive(max_redrives=0))
        assert (await shop.operations.wait(again.id)).counts.done == 1


@in_virtual_time
async def test_tiny_rate_sends_first_message_and_keeps_timers_reliable() -> None:
    """Its wait is infinite. A timer at "not a number" stopped all other timers of the service."""
    async with open_shop() as shop:
        await shop.park(3)
        job = await shop.operations.start(redrive(pace=Pace(rate=1e-320)))
        await _pass(5)
        await shop.operations.cancel(job.id)
        ended = await shop.operations.wait(job.id)
        assert (ended.state, ended.counts.done) == (JobState.CANCELLED, 1)


@pytest.mark.parametrize("is_chosen", [False, True])
@in_virtual_time
async def test_message_that_fails_in_two_runs_is_listed_and_retried_once(is_chosen: bool) -> None:
    """The retry could move an equal message that was never part of the job."""
    async with open_shop() as shop:
        often = Message("", DLQ, b"often", properties("often", {"hopback-redrives": 3}))
        await shop.publish([often])
        await shop.park(30)
        selection = Selection()
        if is_chosen:
            selection = Selection(session=(await shop.operations.open_session(DLQ)).id)
        pace = Pace(rate=10, in_flight=1)
        job = await shop.operations.start(redrive(selection=selection, pace=pace))
        await _pass(2)
        assert len(await shop.operations.failures(job.id)) == 1
        shop.broker.cut()
        done = await shop.operations.wait(job.id)
        assert (done.state, done.run, done.counts.skipped) == (JobState.COMPLETED, 2, 1)
        assert len(await shop.operations.failures(job.id)) == 1
        again = await shop.operations.retry_failures(job.id)
        assert again.counts.selected == 1


@in_virtual_time
async def test_message_that_is_moved_after_reconnecting_is_no_longer_listed_as_failed() -> None:
    async with open_shop("freeflow") as shop:
        dlq, gone = "freeflow.events.dlq", "freeflow.users.queue"
        origins = (gone, *("freeflow.audit.queue",) * 30)
        await shop.publish(
            Message("", dlq, b"%d" % number, properties("m", {"hopback-queue": origin}))
            for number, origin in enumerate(origins)
        )
        channel = await (await shop.broker.connect("test")).open_channel()
        await channel.delete_queue(gone)
        job = await shop.operations.start(redrive(queue=dlq, pace=Pace(rate=10, in_flight=1)))
        await _pass(2)
        assert len(await shop.operations.failures(job.id)) == 1
        queue = shop.topology.queue(gone)
        assert queue is not None
        await channel.declare_queue(queue)
        shop.broker.cut()
        done = await shop.operations.wait(job.id)
        assert (done.state, done.run, done.counts.done) == (JobState.COMPLETED, 2, 31)
        assert await shop.operations.failures(job.id) == ()


@in_virtual_time
async def test_ramped_redrive_stops_when_messages_return_to_dlq() -> None:
    """The first message returns at once, so the job stops after one."""
    async with open_shop() as shop:
        await shop.park(100)

        connection = await shop.broker.connect("failing consumer")
        channel = await connection.open_channel()

        def park_again(delivery: Delivery) -> None:
            fate = channel.publish(Message("", DLQ, delivery.body, delivery.properties))
            fate.add_done_callback(lambda _: channel.ack(delivery.tag))

        await channel.consume(MAIN, park_again)
        job = await shop.operations.start(redrive(pace=Pace(ramp=RAMP, watch_s=5)))
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.STOPPED
        assert "not repaired" in done.state_reason
        assert done.counts.done == 1
        assert len(shop.bodies(DLQ)) == 100
        assert await count_returned(shop.operations, job.id) == 1
        assert (await shop.operations.job(job.id)).counts.came_back == 1
        await connection.close()


@in_virtual_time
async def test_ramped_redrive_continues_if_no_message_returns() -> None:
    """Stages of 1, 5 and 25 messages, each followed by a watch, then all others."""
    async with open_shop() as shop:
        await shop.park(50)
        started = shop.operations.clock.now()
        job = await shop.operations.start(redrive(pace=Pace(ramp=RAMP, watch_s=5)))
        await _pass(4)
        assert shop.bodies(MAIN) == [], "it counts arrivals for 5 s first"
        await _pass(2)
        assert len(shop.bodies(MAIN)) == 1
        await _pass(5)
        assert len(shop.bodies(MAIN)) == 6
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 50)
        assert shop.operations.clock.now() - started >= 15


@pytest.mark.parametrize("selection", [Selection(limit=0), Selection(filter="nonsense>1")])
@in_virtual_time
async def test_invalid_redrive_request_starts_no_job(selection: Selection) -> None:
    async with open_shop() as shop:
        await shop.park(1)
        with pytest.raises(Exception, match="expected"):
            await shop.operations.start(redrive(selection=selection))
        with pytest.raises(BadRequest, match="reason"):
            await shop.operations.start(redrive(reason=" "))
        with pytest.raises(BadRequest, match="rate"):
            await shop.operations.start(redrive(pace=Pace(rate=-1)))
        assert await shop.operations.jobs() == ()


@in_virtual_time
async def test_redrive_is_refused_until_delivery_limit_is_lifted() -> None:
    """A killed job would return messages that may exceed the limit. The plan reports it as well."""
    async with open_shop("ratatoskr", version=BrokerVersion(4, 0)) as shop:
        await shop.park(5)
        planned = await shop.operations.plan(redrive())
        assert not planned.may_start
        assert "requeued 21 times" in planned.flaws[0]
        with pytest.raises(UnsafeOperation, match=r"requeued 21 times.*Lift the limit"):
            await shop.operations.start(redrive())
        assert (await shop.operations.plan(redrive(force=True))).may_start
        await shop.operations.lift_limit(DLQ)
        assert (await shop.operations.plan(redrive())).may_start
        job = await shop.operations.start(redrive())
        assert (await shop.operations.wait(job.id)).counts.done == 5


@in_virtual_time
async def test_message_that_cannot_be_rewritten_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Redriver.message

    def message(self: Redriver, delivery: Delivery) -> Message:
        if delivery.body == b"3":
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "a fault of ours")
        return made(self, delivery)

    monkeypatch.setattr(Redriver, "message", message)
    async with open_shop() as shop:
        await shop.park(10)
        done = await shop.operations.wait((await shop.operations.start(redrive())).id)
        assert (done.state, done.counts.done, done.counts.failed) == (JobState.COMPLETED, 9, 1)
        assert shop.bodies(DLQ) == [b"3"]
        assert shop.bodies(MAIN) == [b"%d" % n for n in range(10) if n != 3]


@in_virtual_time
async def test_audit_of_a_filtered_job_has_the_same_numbers_as_the_job() -> None:
    async with open_shop() as shop:
        await shop.park(10)
        asked = redrive(selection=Selection(filter="id:m3"), expected_count=1)
        job = await shop.operations.wait((await shop.operations.start(asked)).id)
        (ended,) = await shop.operations.audit(AuditQuery(action="job.end"))
    counted = {name: ended.details.get(name, 0) for name in ("selected", "done", "remaining")}
    assert counted == {"selected": job.matching, "done": job.counts.done, "remaining": job.left}
    assert counted == {"selected": 1, "done": 1, "remaining": 0}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@in_virtual_time
async def test_first_run_stops_when_another_consumer_takes_messages(kind: str) -> None:
    """Each message that it takes would move the end of the first five messages."""
    async with open_shop("ratatoskr", {"queue": MAIN, "queue_type": kind}) as shop:
        assert shop.queue(DLQ).type == kind
        await shop.park(10)
        channel = await (await shop.broker.connect("another tool")).open_channel()
        await channel.qos(1)
        await channel.consume(DLQ, lambda _: None)
        job = await shop.operations.start(redrive(selection=Selection(limit=5)))
        job = await shop.operations.wait(job.id)
    assert (job.state, "1 other consumer" in job.state_reason) == (JobState.FAILED, True)
