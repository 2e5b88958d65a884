"""Jobs whose process ended are taken over. Jobs that an operator stopped are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded.management import EmbeddedManagement
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import (
    AuditQuery,
    Pace,
    Selection,
    SessionRequest,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.job_record import JobRecord, JobSpec
from hopback.ops.jobs.journal import MemoryJournal
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue
from tests.unit.ops.jobs.kills import Steps
from tests.unit.ops.shop import ANN, DLQ, MAIN, open_shop, redrive

if TYPE_CHECKING:
    from hopback.broker.embedded import EmbeddedConnection
    from hopback.ops.contract.values import Job
    from tests.unit.ops.shop import Shop

_SLOW = Pace(rate=1.0, in_flight=1)


def _another(shop: Shop, journal: MemoryJournal, vhost: str = "/", **more: Any) -> Operations:
    """Another process on the same broker and journal."""
    return Operations(
        ManagedBroker(
            shop.broker,
            management=EmbeddedManagement(shop.broker),
            vhost=vhost,
            topologies=(shop.topology,),
            clock=shop.operations.clock,
        ),
        journal=journal,
        **more,
    )


@in_virtual_time
async def test_job_is_taken_over_after_its_process_ends() -> None:
    """Every message arrives once. The audit has the new owner and the reason."""
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        async for seen in shop.operations.events(job.id):
            if seen.counts.done:
                break
        await shop.operations.close()
        assert (await shop.operations.job(job.id)).state is JobState.INTERRUPTED
        async with _another(shop, journal) as other:
            (taken,) = await other.take_over()
            assert (taken.id, taken.run) == (job.id, 2)
            assert await other.take_over() == ()
            done = await other.wait(job.id)
            (entry,) = await other.audit(AuditQuery(action="job.take-over"))
        assert (done.state, done.counts.remaining) == (JobState.COMPLETED, 0)
        assert (entry.by, entry.job, entry.reason) == (
            "hopback",
            job.id,
            "the process that ran it ended",
        )
        assert sorted(shop.bodies(MAIN)) == sorted(b"%d" % number for number in range(20))
        assert shop.bodies(DLQ) == []


@in_virtual_time
async def test_paused_cancelled_or_foreign_jobs_are_not_taken_over() -> None:
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        await shop.operations.interrupt(job.id)
        async with (
            _another(shop, journal) as other,
            _another(shop, journal, vhost="beside") as beside,
        ):
            assert await other.take_over() == ()
            await other.resume(job.id)
            await other.close()
            assert await beside.take_over() == ()
            await other.cancel(job.id)
            assert await other.take_over() == ()


@in_virtual_time
async def test_interrupted_job_older_than_100_other_jobs_is_taken_over() -> None:
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        await shop.operations.close()
        for number in range(101):
            spec = JobSpec(
                request=redrive(queue=f"other{number}.dlq"),
                broker=shop.operations.broker.journal_name,
            )
            other = JobRecord(f"j-{number}", spec)
            await journal.begin(other, "another process")
            await journal.save(other.to(JobState.COMPLETED, 0.0), "another process")
        async with _another(shop, journal) as there:
            taken = await there.take_over()
            assert [each.id for each in taken] == [job.id]


@in_virtual_time
async def test_job_with_a_missing_target_does_not_prevent_the_takeover_of_others() -> None:
    journal, queues = MemoryJournal(), ("q.validator.dlq", "q.thumbnail.dlq")
    async with open_shop("file-pipeline", journal=journal) as shop:
        channel = await (await shop.broker.connect("test")).open_channel()
        await channel.declare_queue(Queue("gone"))
        jobs = []
        for queue, target in zip(
            queues, (Target(), Target(TargetKind.QUEUE, "", "gone")), strict=True
        ):
            await shop.park(20, queue=queue)
            asked = redrive(queue=queue, target=target, pace=_SLOW)
            jobs.append(await shop.operations.start(asked))
        await shop.operations.close()
        await channel.delete_queue("gone")
        async with _another(shop, journal) as other:
            assert [each.id for each in await other.take_over()] == [jobs[0].id]


_COUNT, _LIMIT, _HELD = 30, 20, 5
_CLASSIC, _QUORUM = {"queue": MAIN, "queue_type": "classic"}, {"queue": MAIN}


async def _interrupted(shop: Shop, steps: Steps) -> Job:
    """A job whose process was killed when it had sent some."""
    await shop.park(_COUNT)
    steps.broker, shop.broker.faults = shop.broker, steps
    steps.kill_at(_LIMIT)
    asked = redrive(selection=Selection(limit=_LIMIT), pace=Pace(in_flight=2))
    return await shop.operations.wait((await shop.operations.start(asked)).id)


async def _holding(shop: Shop, job: Job) -> EmbeddedConnection:
    """The connection of its host, which is dead: the broker has not found out, and it holds some."""
    connection = await shop.broker.connect(f"hopback job {job.id} {job.queue}")
    channel = await connection.open_channel()
    await channel.qos(_HELD)
    await channel.consume(DLQ, lambda _: None)
    assert shop.held() == _HELD
    return connection


@pytest.mark.parametrize("live", [True, False], ids=["by its name", "by its consumer"])
@pytest.mark.parametrize("params", [_CLASSIC, _QUORUM], ids=["classic", "quorum"])
@in_virtual_time
async def test_job_waits_for_stale_connection_that_holds_its_messages(
    params: dict[str, str], live: bool
) -> None:
    """It reports the reason and then moves the held messages."""
    steps = Steps()
    async with open_shop("ratatoskr", params, journal=steps.journal, live=live) as shop:
        job = await _interrupted(shop, steps)
        assert job.state is JobState.INTERRUPTED
        moved = shop.bodies(MAIN)
        dead = await _holding(shop, job)
        await shop.operations.resume(job.id)
        async for seen in shop.operations.events(job.id):
            if "it may hold messages of this job" in seen.state_reason:
                break
        assert (seen.state, shop.bodies(MAIN)) == (JobState.RUNNING, moved)
        await dead.close()
        done = await shop.operations.wait(job.id)
        if params is _CLASSIC:
            assert (done.state, done.counts.done) == (JobState.COMPLETED, _LIMIT)
            assert set(shop.bodies(MAIN)) == {b"%d" % number for number in range(_LIMIT)}
        else:  # the dead host has requeued its messages behind the others
            assert (done.state, done.counts.remaining > 0) == (JobState.FAILED, True)
            assert "unknown where the selection ends" in done.state_reason
            assert shop.bodies(MAIN) == moved
            return
        assert set(shop.bodies(DLQ)) == {b"%d" % number for number in range(_LIMIT, _COUNT)}


@in_virtual_time
async def test_stale_connection_that_never_ends_interrupts_job() -> None:
    """No message is moved. The reason names the connection."""
    steps = Steps()
    async with open_shop("ratatoskr", _CLASSIC, journal=steps.journal) as shop:
        job = await _interrupted(shop, steps)
        moved = shop.bodies(MAIN)
        dead = await _holding(shop, job)
        await shop.operations.resume(job.id)
        ended = await shop.operations.wait(job.id)
        assert ended.state is JobState.INTERRUPTED
        assert f"'hopback job {job.id} {job.queue}' may hold messages" in ended.state_reason
        assert (ended.counts.done, shop.bodies(MAIN)) == (job.counts.done, moved)
        await shop.operations.resume(job.id)
        await shop.operations.cancel(job.id)
        assert (await shop.operations.wait(job.id)).state is JobState.CANCELLED
        assert shop.bodies(MAIN) == moved
        await dead.close()


@in_virtual_time
async def test_resumed_job_waits_for_session_that_holds_its_messages() -> None:
    steps = Steps()
    async with open_shop(journal=steps.journal) as shop:
        job = await _interrupted(shop, steps)
        session = await shop.operations.on_behalf_of(ANN).open_session(
            DLQ, SessionRequest(limit=_HELD)
        )
        await shop.operations.resume(job.id)
        async for seen in shop.operations.events(job.id):
            if f"'hopback browse {DLQ}'" in seen.state_reason:
                break
        await shop.operations.release(session.id)
        done = await shop.operations.wait(job.id)
        assert done.state in {JobState.COMPLETED, JobState.FAILED}
        moved = set(shop.bodies(MAIN))
        assert moved <= {b"%d" % number for number in range(_LIMIT)}
        assert done.state is JobState.FAILED or len(moved) == _LIMIT


@in_virtual_time
async def test_resumed_job_waits_for_dry_run_of_its_process() -> None:
    journal = MemoryJournal()
    async with open_shop(journal=journal) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        await shop.operations.interrupt(job.id)
        broker = shop.operations.broker
        cost = (await broker.snapshot()).cost(DLQ)
        async with walk(broker.query, DLQ, 20, cost) as messages:
            await anext(messages)
            await shop.operations.resume(job.id)
            async for seen in shop.operations.events(job.id):
                if f"'hopback look {DLQ}'" in seen.state_reason:
                    break
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.remaining) == (JobState.COMPLETED, 0)
        assert sorted(shop.bodies(MAIN)) == sorted(b"%d" % number for number in range(20))


@pytest.mark.parametrize("live", [True, False], ids=["by its tag", "by its consumer"])
@pytest.mark.parametrize("read", [5, 20], ids=["some", "all"])
@pytest.mark.parametrize("params", [_CLASSIC, _QUORUM], ids=["classic", "quorum"])
@in_virtual_time
async def test_resumed_job_waits_for_dry_run_of_another_process(
    params: dict[str, str], read: int, live: bool
) -> None:
    journal = MemoryJournal()
    async with open_shop("ratatoskr", params, journal=journal, live=live) as shop:
        await shop.park(20)
        job = await shop.operations.start(redrive(pace=_SLOW))
        await shop.operations.interrupt(job.id)
        moved = shop.bodies(MAIN)
        async with _another(shop, MemoryJournal()) as other:
            cost = (await other.broker.snapshot()).cost(DLQ)
            async with walk(other.broker.query, DLQ, read, cost) as messages:
                for _ in range(min(read, 20 - len(moved))):
                    await anext(messages)
                await shop.operations.resume(job.id)
                async for seen in shop.operations.events(job.id):
                    if "waiting until" in seen.state_reason or seen.state is not JobState.RUNNING:
                        break
                assert (seen.state, shop.bodies(MAIN)) == (JobState.RUNNING, moved)
        done = await shop.operations.wait(job.id)
        if params is _QUORUM and read < 20:  # the look has requeued its messages behind the others
            assert (done.state, done.counts.done) == (JobState.FAILED, 0)
        else:
            assert (done.state, done.counts.done) == (JobState.COMPLETED, 20)
        assert len(shop.bodies(MAIN)) == done.counts.done
