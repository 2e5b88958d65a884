"""Run jobs as tasks of this process, and follow jobs of other processes in the journal.

A job runs until its engine ends it. If the broker is unavailable, the job waits and then continues
with another run of the engine. The lease of the job is renewed regularly.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from msgspec import structs

from hopback.errors import (
    BrokerError,
    HopbackError,
    JobConflict,
    LeaseLost,
    NoSuch,
    SessionOver,
    StoreUnavailable,
    UnsafeOperation,
)
from hopback.ops.brokers.consumers import job_connection_name
from hopback.ops.contract.values import AuditEntry, Counts, Job, JobState, Moment
from hopback.ops.jobs.actions import action_of
from hopback.ops.jobs.completion_event import completion_event
from hopback.ops.jobs.control import ControlRequest, EndJob
from hopback.ops.jobs.cursor_choice import open_driver
from hopback.ops.jobs.engine import Engine
from hopback.ops.jobs.job_record import PROCESS_ENDED, JobRecord, JobSpec, first_checkpoint
from hopback.ops.jobs.leased_job import LeasedJob
from hopback.ops.jobs.publish_failure import is_away
from hopback.ops.jobs.recovery import wait_for_broker, wait_for_holders
from hopback.ops.jobs.spec_builder import snapshot_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages
    from hopback.ops.contract.requests import Settings
    from hopback.ops.jobs.journal import Journal


_log = logging.getLogger("hopback.ops")
_BEAT_S = 1.0
"""Seconds between renewals of a lease. Requests of operators in other processes are delayed by up
to this time.
"""
_MOST_RUNS = 20
"""Runs after which a job is not taken over again, because it may be the reason why processes are killed."""
_ENDING_S = 10.0
"""Seconds to wait during shutdown for jobs that have ended, which write an audit entry and close
connections.
"""
_LOOK_AGAIN_S = 0.5
"""Seconds between reads of a job that another process runs while a caller follows it."""


def new_job_id() -> str:
    """Return a new id. It is short enough to type."""
    return f"j-{token_hex(6)}"


class JobRunner:
    """Start, resume, control and follow jobs."""

    def __init__(self, broker: ManagedBroker, journal: Journal, settings: Settings) -> None:
        self._broker = broker
        self._journal = journal
        self._settings = settings
        self._clock = broker.clock
        self._leased: dict[str, LeasedJob] = {}
        self._starting: set[asyncio.Task[Job]] = set()

    async def shield(self, starting: Coroutine[Any, Any, Job]) -> Job:
        """Wait until a job has started. If the caller is cancelled, the job is still started completely."""
        task = asyncio.create_task(starting)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return await asyncio.shield(task)

    async def start(
        self,
        job_id: str,
        spec: JobSpec,
        snapshot: BrokerSnapshot,
        chosen: ChosenMessages | None = None,
    ) -> JobRecord:
        """Save a new job and start it. If a job with the same key exists, that job is returned.

        `chosen` contains the selected messages if a browse session holds them. They are handed
        over.
        """
        now = self._clock.now()
        job = JobRecord(
            job_id,
            spec,
            counts=Counts(spec.most),
            rate=spec.pace.rate,
            created=now,
            updated=now,
            checkpoint=first_checkpoint(spec.span),
        )
        return await self._launch(job, snapshot, chosen)

    async def resume(self, job: JobRecord) -> JobRecord:
        """Resume a job that was interrupted or has failed. Raises JobConflict if this is no longer
        possible.
        """
        snapshot = await snapshot_for(self._broker, job.spec)
        if job.spec.chosen is None:
            # If another job has moved messages, the first messages of the queue are different now.
            for other in await self._journal.jobs(broker=job.spec.broker, queue=job.queue):
                if other.id != job.id and other.updated > job.updated and other.counts.done:
                    raise JobConflict(
                        f"job {other.id} has worked on {job.queue!r} since; start a new one", other
                    )
        again = replace(job.to(JobState.RUNNING, self._clock.now()), run=job.run + 1)
        return await self._launch(again, snapshot, None)

    async def take_over(
        self, jobs: Iterable[JobRecord]
    ) -> AsyncIterator[tuple[JobRecord, JobRecord]]:
        """Resume jobs whose processes have ended. Yields each job before and after it was resumed.

        Paused jobs are skipped, and so are jobs that have already lost many processes.
        """
        for job in jobs:
            if not job.is_orphaned or job.run >= _MOST_RUNS:
                continue
            if (await self._journal.control(job.id)).paused:
                continue
            # Another process may have been faster, another job may have changed the queue, or it
            # or its target may not exist.
            with suppress(JobConflict, NoSuch, UnsafeOperation):
                yield job, await self.resume(job)

    async def _launch(
        self, job: JobRecord, snapshot: BrokerSnapshot, chosen: ChosenMessages | None
    ) -> JobRecord:
        owner = token_hex(8)
        begun = await self._journal.begin(job, owner)
        if begun.id != job.id:
            return begun
        leased = LeasedJob(job, owner, self._journal, self._clock)
        if chosen is not None:
            # If the session has just ended, its messages are requeued and the job takes them from
            # the queue.
            with suppress(SessionOver):
                leased.handed = chosen.session.hand_over(chosen.dead_letters)
        self._leased[job.id] = leased
        leased.task = asyncio.create_task(self._run_to_end(leased, snapshot), name=f"job {job.id}")
        return job

    async def _run_to_end(self, leased: LeasedJob, snapshot: BrokerSnapshot) -> None:
        beat = asyncio.create_task(self._beat(leased), name=f"heartbeat {leased.job.id}")
        try:
            while (away := await self._run_once(leased, snapshot)) is not None:
                patience_s = self._settings.patience_s
                snapshot = await wait_for_broker(self._broker, leased, away, patience_s)
            await self._announce(leased.job, snapshot)
            await self._write_audit(leased.job)
        except asyncio.CancelledError:
            await self._end(leased, JobState.INTERRUPTED, PROCESS_ENDED)
            raise
        except EndJob as end:
            await self._end(leased, end.state, str(end))
            await self._write_audit(leased.job)
        except HopbackError as failed:
            await self._end(leased, JobState.INTERRUPTED, str(failed))
        except Exception as fault:
            _log.exception("job %s failed with an internal error", leased.job.id)
            await self._end(leased, JobState.FAILED, f"{type(fault).__name__}: {fault}")
        finally:
            beat.cancel()
            leased.changed.set()
            if self._leased.get(leased.job.id) is leased:
                del self._leased[leased.job.id]

    async def _write_audit(self, job: JobRecord) -> None:
        """Write an audit entry for a job that has ended or stopped."""
        good = job.state in {JobState.COMPLETED, JobState.CANCELLED} and not job.counts.failed
        view = job.view
        counts = structs.replace(job.counts, selected=view.matching, remaining=view.left)
        await self._journal.write_entry(
            AuditEntry(
                at=Moment(self._clock.now()),
                by=job.spec.by.name or job.spec.by.id,
                action="job.end",
                queue=job.queue,
                job=job.id,
                reason=job.state_reason,
                result="ok" if good else "failed",
                details={
                    "kind": job.kind,
                    "state": job.state,
                    **{name: count for name, count in structs.asdict(counts).items() if count},
                },
            ),
            job.spec.broker,
        )

    async def _end(self, leased: LeasedJob, state: JobState, reason: str) -> None:
        """Save the end of a job, unless its engine has already done so or another process runs it."""
        if leased.job.is_active:
            job = leased.job.to(state, self._clock.now(), reason)
            try:
                await leased.write(job)
            except LeaseLost:
                leased.show(job)
            except StoreUnavailable as away:
                # When the lease has expired, other processes treat the job as interrupted.
                _log.warning("the end of job %s was not recorded: %s", job.id, away)
                leased.show(job)

    async def _run_once(self, leased: LeasedJob, snapshot: BrokerSnapshot) -> BrokerError | None:
        """Run the engine on one connection. Returns the error if the broker became unavailable."""
        broker, settings = self._broker, self._settings
        connection, handed = leased.handed or (None, None)
        leased.handed = None
        action = action_of(leased.job, snapshot, broker.broker)
        try:
            if connection is None:
                await wait_for_holders(broker, leased)
                connection = await broker.broker.connect(_connection_name(leased.job))
            driver = await open_driver(broker, leased, snapshot, connection, handed)
            engine = Engine(leased, broker, snapshot, connection, driver, action, settings)
            return await engine.run()
        # raised before the engine was started, because the engine returns its errors
        except BrokerError as failed:
            if is_away(failed):
                return failed
            raise
        finally:
            # If the connection was lost, the unsettled messages have already been requeued.
            with suppress(BrokerError):
                await action.close()
            if connection is not None:
                with suppress(BrokerError):
                    await connection.close()

    async def _beat(self, leased: LeasedJob) -> None:
        """Renew the lease regularly, and pass requests of operators to the job."""
        every = min(_BEAT_S, self._journal.lease_s / 3)
        while True:
            await asyncio.sleep(every)
            try:
                request = await self._journal.renew(leased.job.id, leased.owner)
            except LeaseLost as lost:
                if not leased.job.is_active:
                    return  # the job has ended and no longer has a lease
                _log.warning("%s", lost)
                request = ControlRequest(cancelled=True)
            except StoreUnavailable as away:
                # The next iteration tries again. If the lease expires before that, saving the next
                # checkpoint fails.
                _log.warning("job %s: %s", leased.job.id, away)
                continue
            leased.control.set(request)

    async def _announce(self, job: JobRecord, snapshot: BrokerSnapshot) -> None:
        """Publish the completion event if the design of the queue has one."""
        event = completion_event(
            snapshot.design_of(job.queue), job, snapshot.dead_letter_queue(job.queue)
        )
        if event is None or job.state is JobState.INTERRUPTED:
            return
        try:
            async with self._broker.new_connection(_connection_name(job)) as connection:
                await (await connection.open_channel()).publish(event, mandatory=False)
        except BrokerError as failed:
            _log.warning("the end of job %s was not announced: %s", job.id, failed)

    async def current(self, job_id: str) -> JobRecord | None:
        """Return the current state of a job, or None if it is unknown."""
        leased = self._leased.get(job_id)
        return leased.job if leased is not None else await self._journal.job(job_id)

    async def change_control(
        self, job_id: str, change: Callable[[ControlRequest], ControlRequest]
    ) -> None:
        """Change the request to a job. A job in another process receives it when it renews its lease."""
        request = await self._journal.change_control(job_id, change)
        leased = self._leased.get(job_id)
        if leased is not None:
            leased.control.set(request)

    async def count_back(self, job_id: str, found: int) -> None:
        """Save the number of returned messages of a job that has ended. A running job counts them
        itself.
        """
        job = await self.current(job_id)
        if job is not None and not job.is_active:
            counts = structs.replace(job.counts, came_back=found, came_back_at_least=False)
            await self._journal.amend(replace(job, counts=counts))

    async def follow(self, job_id: str) -> AsyncIterator[JobRecord]:
        """Yield the job now and after each change until it is no longer active."""
        told: JobRecord | None = None
        leased: LeasedJob | None = None
        while True:
            # When a run has ended, read it again, because its end may not be in the journal yet.
            ended = leased if leased is not None and not leased.job.is_active else None
            leased = self._leased.get(job_id, ended)
            if leased is not None:
                leased.changed.clear()
            job = leased.job if leased is not None else await self._journal.job(job_id)
            if job is None:
                return
            if told is None or (job.changes, job.state) != (told.changes, told.state):
                told = job
                yield job  # the caller may take long, and the job may have changed since
                if not job.is_active:
                    return
            elif leased is None:
                await asyncio.sleep(_LOOK_AGAIN_S)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await leased.changed.wait()

    async def join(self, job_id: str) -> None:
        """Wait until the job has ended, if it runs in this process."""
        leased = self._leased.get(job_id)
        if leased is not None and leased.task is not None:
            await asyncio.wait({leased.task})

    async def close(self) -> None:
        """Interrupt all jobs of this process. Jobs that have already ended can still write their
        audit entry.
        """
        tasks = {
            leased.task: leased.job for leased in self._leased.values() if leased.task is not None
        }
        ending = [task for task, job in tasks.items() if not job.is_active]
        if ending:
            await asyncio.wait(ending, timeout=_ENDING_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _connection_name(job: JobRecord) -> str:
    return job_connection_name(job.id, job.queue)
