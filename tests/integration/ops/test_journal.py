"""Jobs and audit in SQL, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING

import pytest
from msgspec import structs
from sqlalchemy import text

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker
from hopback.clock import ManualClock, SystemClock
from hopback.designs import DESIGNS
from hopback.errors import JobConflict, LeaseLost, StoreUnavailable
from hopback.headers import timestamp
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    AuditQuery,
    Pace,
    PatchOperation,
    RedriveRequest,
    Selection,
    Submission,
    Target,
    TargetKind,
    Who,
)
from hopback.ops.contract.values import AuditEntry, Counts, FailedMessage, JobState, Moment
from hopback.ops.jobs.control import ControlRequest
from hopback.ops.jobs.job_record import Checkpoint, ChosenDigests, JobRecord, JobSpec
from hopback.ops.jobs.journal import Journal, JournalShare
from hopback.ops.jobs.retention import forget_old
from hopback.ops.operations import Operations
from hopback.store import migrate, open_database
from hopback.store.database import EngineDatabase
from tests.integration.database import sql_database

if TYPE_CHECKING:
    from hopback.sql.database import SqlDatabase
    from tests.harness.shared import SharedPostgres

__all__ = ["sql_database"]

REQUEST = RedriveRequest(
    queue="orders.dlq",
    reason="repaired",
    target=Target(TargetKind.QUEUE, routing_key="orders", reset=False),
    pace=Pace(rate=5.0, ramp=(1, 5)),
    max_redrives=3,
)
SPEC = JobSpec(
    request=REQUEST,
    broker="rabbit /",
    chosen=ChosenDigests(("a", "b"), 10),
    by=Who("u-1", "Ann"),
)
JOB = JobRecord(
    "j-1",
    SPEC,
    counts=Counts(10, 3),
    checkpoint=Checkpoint(1, ("x", "y"), 6, last="y"),
    created=1.0,
)


async def test_job_reads_back_with_every_field_as_written(sql_database: SqlDatabase) -> None:
    journal = Journal(sql_database, SystemClock())
    request = structs.replace(
        REQUEST,
        change=(PatchOperation("replace", "/sku", None), PatchOperation("remove", "/old")),
        selection=Selection(filter="age>2h", limit=10),
    )
    job = replace(JOB, spec=structs.replace(SPEC, request=request))
    await journal.begin(job, "me")
    assert await journal.job("j-1") == job


async def test_second_job_of_queue_raises_conflict_with_first(sql_database: SqlDatabase) -> None:
    """Jobs of other queues and brokers are not affected."""
    journal = Journal(sql_database, SystemClock())
    await journal.begin(JOB, "me")
    other = replace(JOB, id="j-2")
    with pytest.raises(JobConflict) as refused:
        await Journal(sql_database, SystemClock()).begin(other, "you")
    assert refused.value.job is not None
    assert refused.value.job.id == "j-1"
    elsewhere = replace(
        JOB,
        id="j-3",
        spec=structs.replace(SPEC, request=structs.replace(REQUEST, queue="bills.dlq")),
    )
    assert await journal.begin(elsewhere, "you") == elsewhere
    await journal.save(JOB.to(JobState.COMPLETED, 2.0), "me")
    assert await journal.begin(other, "you") == other
    assert [job.id for job in await journal.jobs(queue="orders.dlq")] == ["j-2", "j-1"]
    assert [job.id for job in await journal.jobs(active=True)] == ["j-2", "j-3"]


async def test_concurrent_begins_start_one_job(sql_database: SqlDatabase) -> None:
    journals = [Journal(sql_database, SystemClock()) for _ in range(8)]
    began = await asyncio.gather(
        *(
            journal.begin(replace(JOB, id=f"j-{number}"), f"owner {number}")
            for number, journal in enumerate(journals)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(each, JobRecord) for each in began) == 1
    assert sum(isinstance(each, JobConflict) for each in began) == 7


async def test_same_key_returns_same_job_after_its_end(sql_database: SqlDatabase) -> None:
    journal = Journal(sql_database, SystemClock())
    keyed = replace(JOB, spec=structs.replace(SPEC, submission=Submission(key="k")))
    await journal.begin(keyed, "me")
    assert (await journal.begin(replace(keyed, id="j-2"), "you")).id == "j-1"
    await journal.save(keyed.to(JobState.CANCELLED, 2.0), "me")
    assert (await journal.begin(replace(keyed, id="j-2"), "you")).id == "j-1"
    found = await journal.keyed("rabbit /", "k")
    assert found is not None
    assert found.state is JobState.CANCELLED


async def test_same_key_takes_precedence_over_active_job_of_queue(
    sql_database: SqlDatabase,
) -> None:
    journal = Journal(sql_database, SystemClock())
    keyed = replace(JOB, spec=structs.replace(SPEC, submission=Submission(key="k")))
    await journal.begin(keyed, "me")
    await journal.save(keyed.to(JobState.COMPLETED, 2.0), "me")
    await journal.begin(replace(JOB, id="j-2"), "you")
    assert (await journal.begin(replace(keyed, id="j-3"), "me")).id == "j-1"


async def test_job_with_expired_lease_is_interrupted_and_can_be_taken_over(
    sql_database: SqlDatabase,
) -> None:
    """The first owner gets an error and stops."""
    clock = ManualClock()
    journal = Journal(sql_database, clock, lease_s=30.0)
    await journal.begin(JOB, "dead")
    assert await journal.renew("j-1", "dead") == ControlRequest(rate=None)
    clock.advance(31)
    lost = await journal.job("j-1")
    assert lost is not None
    assert (lost.state, lost.counts, lost.checkpoint) == (
        JobState.INTERRUPTED,
        JOB.counts,
        JOB.checkpoint,
    )
    assert await journal.jobs(active=True) == ()
    again = replace(lost.to(JobState.RUNNING, clock.now()), run=2)
    assert await journal.begin(again, "alive") == again
    with pytest.raises(LeaseLost):
        await journal.save(JOB, "dead")
    with pytest.raises(LeaseLost):
        await journal.renew("j-1", "dead")
    with pytest.raises(JobConflict):
        await journal.amend(lost)


async def test_new_job_may_begin_after_interrupted_job(sql_database: SqlDatabase) -> None:
    """The interrupted job stays listed."""
    clock = ManualClock()
    journal = Journal(sql_database, clock)
    await journal.begin(JOB, "dead")
    clock.advance(31)
    await journal.begin(replace(JOB, id="j-2"), "alive")
    clock.advance(1)
    states = {job.id: job.state for job in await journal.jobs()}
    assert states == {"j-1": JobState.INTERRUPTED, "j-2": JobState.RUNNING}


async def test_control_requests_reach_owner_with_next_heartbeat(sql_database: SqlDatabase) -> None:
    journal = Journal(sql_database, SystemClock())
    await journal.begin(JOB, "me")
    await journal.change_control("j-1", lambda _: ControlRequest(paused=True, rate=2.5))
    assert await journal.control("j-1") == ControlRequest(paused=True, rate=2.5)
    assert await journal.renew("j-1", "me") == ControlRequest(paused=True, rate=2.5)


async def test_simultaneous_requests_of_two_processes_are_all_kept(
    sql_database: SqlDatabase,
) -> None:
    broker, topology = EmbeddedBroker(), DESIGNS["raffle"].build()
    here, there = (
        Operations(
            ManagedBroker(broker, topologies=(topology,)),
            journal=Journal(sql_database, SystemClock()),
        )
        for _ in range(2)
    )
    await _fill(broker, 30)
    async with here, there:
        for _ in range(5):
            job = await here.start(
                RedriveRequest(queue="raffle_dlq", reason="repaired", pace=Pace(rate=1.0))
            )
            await asyncio.gather(here.pause(job.id), there.set_rate(job.id, 2.0))
            assert await here.journal.control(job.id) == ControlRequest(paused=True, rate=2.0)
            await asyncio.gather(
                here.cancel(job.id), there.set_rate(job.id, 3.0), return_exceptions=True
            )
            async with asyncio.timeout(5):
                assert (await there.wait(job.id)).state is JobState.CANCELLED


async def test_failures_are_read_in_order_by_page(sql_database: SqlDatabase) -> None:
    journal = Journal(sql_database, SystemClock())
    failures = [FailedMessage(f"{n}-x", "d", "m", "too large", Moment(1)) for n in range(5)]
    await journal.begin(JOB, "me")
    await journal.save(JOB, "me", failures[:3])
    await journal.save(JOB, "me", failures[3:])
    assert await journal.failures("j-1", 1, 3) == tuple(failures[1:4])
    assert await journal.failures("j-2", 0, 3) == ()


async def test_failures_of_earlier_runs_are_only_deleted_by_the_owner(
    sql_database: SqlDatabase,
) -> None:
    journal = Journal(sql_database, SystemClock())
    first, second = (FailedMessage("1-x", "d", "m", why, Moment(1)) for why in ("old", "new"))
    await journal.begin(JOB, "me")
    await journal.save(JOB, "me", [first])
    with pytest.raises(LeaseLost):
        await journal.save(JOB, "you", [second], is_restart=True)
    assert await journal.failures("j-1", 0, 3) == (first,)
    await journal.save(JOB, "me", [second], is_restart=True)
    assert await journal.failures("j-1", 0, 3) == (second,)


async def test_audit_cannot_be_changed_or_deleted(sql_database: SqlDatabase) -> None:
    journal = Journal(sql_database, SystemClock())
    for number in range(3):
        await journal.write_entry(
            AuditEntry(Moment(number), "Ann", "job.start", "q", details={"n": number})
        )
    await journal.write_entry(AuditEntry(Moment(9), "Bob", "login"))
    entries = await journal.read_entries(AuditQuery(by="Ann", limit=2))
    assert [(entry.at, entry.details["n"]) for entry in entries] == [(2.0, 2), (1.0, 1)]
    older = await journal.read_entries(AuditQuery(by="Ann", before=entries[-1].number))
    assert [entry.at for entry in older] == [0.0]
    for statement in ("UPDATE hopback_audit SET action = 'none'", "DELETE FROM hopback_audit"):
        with pytest.raises(StoreUnavailable, match="append-only"):
            await sql_database.write(methodcaller("__call__", statement))
    assert len(await journal.read_entries(AuditQuery())) == 4


async def test_retention_of_audit_leaves_an_entry(sql_database: SqlDatabase) -> None:
    """Old entries are deleted in batches."""
    clock = ManualClock(400 * 86_400.0)
    journal = Journal(sql_database, clock)
    for number in range(1201):
        await journal.write_entry(AuditEntry(Moment(number), "Ann", "job.start"))
    await journal.write_entry(AuditEntry(Moment(clock.now() - 86_400), "Bob", "job.start"))
    found = await forget_old(journal, clock, audit_days=365)
    assert found == (1201, 0)
    entries = await journal.read_entries(AuditQuery())
    assert [(entry.by, entry.action) for entry in entries] == [
        ("hopback", "audit.retention"), ("Bob", "job.start"),
    ]  # fmt: skip
    assert entries[0].details == {
        "entries": 1201,
        "jobs": 0,
        "entriesBefore": timestamp(35 * 86_400),
    }
    assert await forget_old(journal, clock, audit_days=365) == (0, 0)
    for statement in (
        "DELETE FROM hopback_audit",
        "DELETE FROM hopback_audit_retention",
        "UPDATE hopback_audit_retention SET deleted_before = 9e9",
    ):
        with pytest.raises(StoreUnavailable, match="append-only"):
            await sql_database.write(methodcaller("__call__", statement))
    select = "SELECT at, deleted_before FROM hopback_audit_retention"
    lines = await sql_database.read(methodcaller("__call__", select))
    assert lines == [(clock.now(), 35 * 86_400.0)]


async def test_retention_deletes_finished_jobs_and_keeps_resumable_ones(
    sql_database: SqlDatabase,
) -> None:
    clock = ManualClock(1000.0)
    journal = Journal(sql_database, clock)
    for number, state in enumerate(
        (JobState.COMPLETED, JobState.CANCELLED, JobState.INTERRUPTED, JobState.FAILED)
    ):
        job = replace(JOB, id=f"j-{number}")
        await journal.begin(job, "me")
        failed = [FailedMessage("l", "d", "m", "no route", Moment(1))] * 600
        await journal.save(job.to(state, 2.0), "me", failed)
    assert await forget_old(journal, clock, job_days=0) == (0, 0)
    clock.advance(365 * 86_400.0)
    assert await forget_old(journal, clock, job_days=366) == (0, 0)
    found = await forget_old(journal, clock, job_days=90)
    assert found == (0, 2)
    assert [job.id for job in await journal.jobs()] == ["j-3", "j-2"]
    assert (await journal.failures("j-0", 0, 5), len(await journal.failures("j-3", 0, 5))) == (
        (),
        5,
    )


async def test_retention_deletes_cancelled_job_without_process(
    sql_database: SqlDatabase,
) -> None:
    clock = ManualClock(1000.0)
    journal = Journal(sql_database, clock)
    await journal.begin(JOB, "me")
    interrupted = JOB.to(JobState.INTERRUPTED, 2.0)
    await journal.save(interrupted, "me")
    await journal.amend(interrupted.to(JobState.CANCELLED, 3.0))
    clock.advance(91 * 86_400.0)
    assert (await forget_old(journal, clock, job_days=90))[1] == 1


async def test_first_broker_shows_audit_entries_of_unserved_brokers(
    sql_database: SqlDatabase,
) -> None:
    journal = Journal(sql_database, SystemClock())
    for action, broker in (("ours", "a /"), ("theirs", "b /"), ("gone", "c /")):
        await journal.write_entry(AuditEntry(Moment(2.0), "Ann", action), broker)
    first = JournalShare("a /", frozenset({"b /"}))
    second = JournalShare("b /", frozenset({"a /"}), is_first=False)
    read = [await journal.read_entries(AuditQuery(), share) for share in (None, first, second)]
    assert [[entry.action for entry in entries] for entries in read] == [
        ["gone", "theirs", "ours"], ["gone", "ours"], ["theirs"],
    ]  # fmt: skip


async def test_role_without_create_permission_can_use_existing_tables(
    postgres: SharedPostgres,
) -> None:
    url = postgres.create_database()
    owner = open_database(url)
    await migrate(owner, SystemClock())
    role = f"app_{uuid.uuid4().hex}"
    async with owner.begin() as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN PASSWORD 'app'",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        ):
            await connection.execute(text(statement))
    engine = open_database(
        owner.url.set(username=role, password="app").render_as_string(hide_password=False)
    )
    assert await migrate(engine, SystemClock()) == []
    assert await Journal(EngineDatabase(engine), SystemClock()).begin(JOB, "me") == JOB
    await engine.dispose()
    async with owner.begin() as connection:
        await connection.execute(text(f"DROP OWNED BY {role}"))
        await connection.execute(text(f"DROP ROLE {role}"))
    await owner.dispose()


async def test_job_is_paused_by_another_process(sql_database: SqlDatabase) -> None:
    broker = EmbeddedBroker()
    topology = DESIGNS["raffle"].build()
    journals = [Journal(sql_database, SystemClock()) for _ in range(2)]
    here, there = (
        Operations(ManagedBroker(broker, topologies=(topology,)), journal=journal)
        for journal in journals
    )
    await _fill(broker, 30)
    async with here, there:
        request = RedriveRequest(
            queue="raffle_dlq", selection=Selection(), reason="repaired", pace=Pace(rate=5.0)
        )
        job = await here.start(request)
        with pytest.raises(JobConflict):
            await there.start(request)
        await there.pause(job.id)
        async for news in there.events(job.id):
            if news.state is JobState.PAUSED:
                break
        await there.set_rate(job.id, None)
        await there.resume(job.id)
        done = await there.wait(job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 30)


async def _fill(broker: EmbeddedBroker, count: int) -> None:
    connection = await broker.connect("test")
    await declare(connection, DESIGNS["raffle"].build())
    channel = await connection.open_channel()
    for number in range(count):
        await channel.publish(
            Message("", "raffle_dlq", b"%d" % number, Properties(delivery_mode=2))
        )
    await connection.close()
