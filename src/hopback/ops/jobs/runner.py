"""The jobs that run in this process: begun, watched over, ended; and those of other processes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from msgspec import structs

from hopback.broker.supervise import Backoff
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
from hopback.ops.brokers.consumers import job_connection_name, job_tag
from hopback.ops.browse.head import Head
from hopback.ops.browse.source import SessionSource
from hopback.ops.contract.requests import DiscardRequest
from hopback.ops.contract.values import AuditEntry, Counts, JobState, Moment, Price
from hopback.ops.jobs.actions import ChangingAction, DiscardAction, RedriveAction
from hopback.ops.jobs.chosen_cursor import ChosenCursor
from hopback.ops.jobs.classic_cursor import ClassicCursor, find_head, head_limits
from hopback.ops.jobs.completion_event import completion_event
from hopback.ops.jobs.cursor_driver import Taking, read_head
from hopback.ops.jobs.engine import Engine
from hopback.ops.jobs.job_run import JobRun
from hopback.ops.jobs.journal import PROCESS_ENDED, ControlRequest, JobRecord
from hopback.ops.jobs.publish_failure import may_pass
from hopback.ops.jobs.quorum_cursor import QuorumCursor, first_checkpoint
from hopback.ops.jobs.read_ahead import choose_prefetch
from hopback.ops.jobs.return_watch import Watch, WatchTimer
from hopback.ops.messages.archive import FileSink, run_file
from hopback.policy.redrive import RedriveOccasion
from hopback.topology.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from hopback.broker.port import Broker, Channel
    from hopback.clock import Clock
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages, Holding
    from hopback.ops.browse.source import Source
    from hopback.ops.contract.requests import Settings
    from hopback.ops.contract.values import Job
    from hopback.ops.jobs.actions import Action
    from hopback.ops.jobs.cursor_driver import Cursor
    from hopback.ops.jobs.journal import JobSpec, Journal
    from hopback.ops.jobs.plan import Planner


_log = logging.getLogger("hopback.ops")
_BEAT_S = 1.0
"""How often a job renews its lease and hears what people want of it: they wait no longer than that."""
_RECONNECT = Backoff(first=0.5, most=15.0)
"""How long a job waits before it asks again for a broker that is away (seconds)."""
_MOST_RUNS = (
    20  # a broker that flaps makes some; a job that kills every process must not go on forever
)
_GONE_S = 300.0
"""So long a job waits for those who hold its messages: a broker ends what is silent within 180 s."""
_REMEMBERED_WINDOWS = 6
"""The marks of the last acks, which a broker may not have read: far more than it lets pile up."""
_ENDING_S = 10.0
"""So long a job that has ended is waited for: it writes to the audit, and a broker answers within seconds."""
_LOOK_AGAIN_S = 0.5
"""How often a job that another process runs is read from the journal while somebody waits for news."""

_DOUBT = (
    "when the job went on, {queue!r} had more messages than expected: new ones, or done ones that a killed"
    " broker handed out again. Nobody can tell whether some of the selection are left, as the queue's type is"
    " not known without a management address: look at what is there, then start a new job"
)


class _Cancelled(Exception):
    """Somebody wants a job that waits to end."""


def new_job_id() -> str:
    """A name for a job, short enough to be typed."""
    return f"j-{token_hex(6)}"


class JobRunner:
    """Runs jobs, and knows of those that run elsewhere by the journal."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        settings: Settings,
        clock: Clock,
        planner: Planner,
    ) -> None:
        self._broker = broker
        self._planner = planner
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._runs: dict[str, JobRun] = {}
        self._beginning: set[asyncio.Task[Job]] = set()

    async def to_the_end(self, beginning: Coroutine[Any, Any, Job]) -> Job:
        """Begin a job; what is written down goes on, whoever has stopped waiting for the answer."""
        task = asyncio.create_task(beginning)
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return await asyncio.shield(task)

    async def begin(
        self,
        job_id: str,
        spec: JobSpec,
        snapshot: BrokerSnapshot,
        held: ChosenMessages | None = None,
    ) -> JobRecord:
        """Write a new job down and start it; the job of the same key if there is one already.

        `held` is what a session holds of it and hands over.
        """
        now = self._clock.now()
        job = JobRecord(
            job_id,
            spec,
            counts=Counts(spec.selection.size),
            rate=spec.pace.rate,
            created=now,
            updated=now,
            checkpoint=first_checkpoint(spec.selection.count),
        )
        return await self._start(job, snapshot, held)

    async def begin_again(self, job: JobRecord, snapshot: BrokerSnapshot) -> JobRecord:
        """Start a job that was interrupted or failed; JobConflict if that is no longer possible."""
        if job.spec.selection.digests is None:
            # The first messages are not the same any more once another job has taken some.
            for other in await self._journal.jobs(broker=job.spec.broker, queue=job.queue):
                if other.id != job.id and other.updated > job.updated and other.counts.done:
                    raise JobConflict(
                        f"job {other.id} has worked on {job.queue!r} since; start a new one", other
                    )
        again = _next_run(job.to(JobState.RUNNING, self._clock.now()))
        return await self._start(again, snapshot, None)

    async def take_over(
        self, jobs: Iterable[JobRecord]
    ) -> AsyncIterator[tuple[JobRecord, JobRecord]]:
        """Go on with those whose processes are gone: each as it was, and as it is now.

        Not with one that somebody paused, nor with one that has lost many processes already.
        """
        for job in jobs:
            if not job.is_orphaned or job.run >= _MOST_RUNS:
                continue
            if (await self._journal.control(job.id)).paused:
                continue
            # Another process was quicker, has worked on the queue since, or the queue is gone.
            with suppress(JobConflict, NoSuch):
                yield job, await self.begin_again(job, await self._planner.snapshot_for(job.spec))

    async def _start(
        self, job: JobRecord, snapshot: BrokerSnapshot, held: ChosenMessages | None
    ) -> JobRecord:
        owner = token_hex(8)
        begun = await self._journal.begin(job, owner)
        if begun.id != job.id:
            return begun
        holding = None
        if held is not None:
            # A session that ended just now gave everything back: then it is taken from the queue.
            with suppress(SessionOver):
                holding = held.hand_over()
        run = JobRun(job, owner, self._journal)
        self._runs[job.id] = run
        run.task = asyncio.create_task(self._run(run, snapshot, holding), name=f"job {job.id}")
        return job

    async def _run(self, run: JobRun, snapshot: BrokerSnapshot, holding: Holding | None) -> None:
        beat = asyncio.create_task(self._beat(run), name=f"heartbeat {run.job.id}")
        try:
            while (away := await self._work_through(run, snapshot, holding)) is not None:
                snapshot, holding = await self._wait_for_broker(run, away), None
            await self._announce(run.job, snapshot)
            await self._tell_end(run.job)
        except asyncio.CancelledError:
            await self._end(run, JobState.INTERRUPTED, PROCESS_ENDED)
            raise
        except _Cancelled:
            await self._end(run, JobState.CANCELLED, "cancelled")
            await self._tell_end(run.job)
        except HopbackError as failed:
            await self._end(run, JobState.INTERRUPTED, str(failed))
        except Exception as fault:
            _log.exception("job %s met a fault of ours", run.job.id)
            await self._end(run, JobState.FAILED, f"{type(fault).__name__}: {fault}")
        finally:
            beat.cancel()
            run.changed.set()
            if self._runs.get(run.job.id) is run:
                del self._runs[run.job.id]

    async def _tell_end(self, job: JobRecord) -> None:
        """An entry of the audit for a job that has ended, or stopped."""
        good = job.state in {JobState.COMPLETED, JobState.CANCELLED} and not job.counts.failed
        await self._journal.write(
            AuditEntry(
                at=Moment(self._clock.now()),
                by=job.spec.by.name or job.spec.by.id,
                action="job.end",
                queue=job.queue,
                job=job.id,
                reason=job.reason,
                result="ok" if good else "failed",
                details={
                    "kind": job.kind,
                    "state": job.state,
                    # What is 0 or not known says nothing in an audit.
                    **{name: count for name, count in structs.asdict(job.counts).items() if count},
                },
            ),
            job.spec.broker,
        )

    async def _end(self, run: JobRun, state: JobState, reason: str) -> None:
        """Write down that a run could not go on, unless it is somebody else's already."""
        if run.job.is_active:
            job = run.job.to(state, self._clock.now(), reason)
            try:
                await run.write(job)
            except LeaseLost:
                run.tell(job)
            except StoreUnavailable as away:
                # Its lease lapses, and the next process that looks finds it interrupted.
                _log.warning("the end of job %s was not written down: %s", job.id, away)
                run.tell(job)

    async def _work_through(
        self, run: JobRun, snapshot: BrokerSnapshot, holding: Holding | None
    ) -> BrokerError | None:
        """One run of the engine; how the broker went away, if that is what ended it."""
        job = run.job
        try:
            if holding is None:
                await self._wait_for_holders(run)
                connection = await self._broker.connect(_connection_name(job))
            else:
                connection = holding.connection
        except BrokerError as failed:
            if may_pass(failed):
                return failed
            raise
        action = self._action(run.job, snapshot)
        try:
            channel = await connection.open_channel() if holding is None else holding.channel
            store = await self._journal.store_id()
            cursor = await self._cursor(run, snapshot, is_held=holding is not None)
            source = self._source(run.job, snapshot, channel, holding, cursor, store)
            is_known = snapshot.effective(run.job.queue) is not None
            engine = Engine(
                run,
                snapshot,
                source,
                Taking(source, cursor, rate=run.job.rate, is_known=is_known),
                action,
                self._watch(run.job, snapshot),
                let_go=connection.close,
                clock=self._clock,
                per_turn=self._settings.per_turn,
            )
            await engine.run()
            return engine.away
        except BrokerError as failed:  # not the engine's, which keeps its own
            if may_pass(failed):
                return failed
            raise
        finally:
            # A connection that is gone already has given everything back.
            with suppress(BrokerError):
                await action.close()
            with suppress(BrokerError):
                await connection.close()

    async def _wait_for_holders(self, run: JobRun) -> None:
        """Wait until nobody holds what a job that goes on would miss, and take for done.

        The host of its last run may have died: its connection is there until the broker misses heartbeats.
        UnsafeOperation if that takes too long.
        """
        if run.job.run == 1:
            return
        until = asyncio.get_running_loop().time() + _GONE_S
        reason = ""
        while holder := await self._holder(run.job):
            reason = f"waiting until {holder} has ended: what it holds could be taken for done"
            if asyncio.get_running_loop().time() >= until:
                raise UnsafeOperation(
                    f"{holder} may hold messages of {run.job.queue!r}, which could be taken for done:"
                    " end it, then resume the job"
                )
            if run.job.reason != reason:
                await self._write_reason(run, reason)
            await run.control.sleep(_BEAT_S)
            if run.control.is_cancelled:
                raise _Cancelled
        if reason:
            await self._write_reason(run, "")

    async def _holder(self, job: JobRecord) -> str:
        """Who may hold messages of a job that goes on, in words; empty if nobody seems to."""
        names = await self._planner.connection_names()
        if names is None:
            count = (await self._planner.snapshot_for(job.spec)).consumers
            return f"the consumer of {job.queue!r}" if count else ""
        ours = (_connection_name(job), f"hopback browse {job.queue}", f"hopback look {job.queue}")
        return next((f"the connection {name!r}" for name in ours if name in names), "")

    async def _cursor(self, run: JobRun, snapshot: BrokerSnapshot, *, is_held: bool) -> Cursor:
        """Return the cursor that finds the rest of the selection.

        The messages of a classic queue are counted while the job is connected: as long as the connection
        is open, the broker was not killed again.
        """
        job, began, selection = run.job, run.job.checkpoint, run.job.spec.selection
        is_classic, is_resumed = snapshot.is_classic(job.queue), job.run > 1
        remembered = _REMEMBERED_WINDOWS * job.spec.pace.in_flight
        if selection.digests is not None:
            is_sought = not is_classic and not is_held
            return ChosenCursor(
                began, selection.digests, is_resumed=is_resumed, is_sought=is_sought
            )
        if is_classic:
            head = await self._head(run, snapshot) if is_resumed else 0
            return ClassicCursor(began, remembered, head=head)
        by_count = None
        if is_resumed:
            run.doubt = ""
            if snapshot.effective(job.queue) is None:
                await self._count_unknown(run)
            if selection.behind is not None:
                ready = (await self._planner.snapshot_for(job.spec)).ready
                by_count = ready - began.rest - selection.behind
        return QuorumCursor(
            began,
            remembered,
            is_resumed=is_resumed,
            is_whole=selection.behind == 0,
            by_count=by_count,
            prefetch=choose_prefetch(job.spec, is_classic=False, is_paced=bool(job.rate)),
        )

    async def _head(self, run: JobRun, snapshot: BrokerSnapshot) -> int | None:
        """Return the number of messages before the rest of the job in a classic queue, None if it is unknown.

        The job takes these messages again.
        """
        job, began = run.job, run.job.checkpoint
        run.doubt = ""
        limits = head_limits(job, (await self._planner.snapshot_for(job.spec)).ready)
        if limits.most <= began.kept:
            head = find_head(began, limits)
        else:
            if began.has_twins:
                await run.write(replace(job, checkpoint=replace(began, rest_is_untouched=False)))
            head = await read_head(self._broker, job, limits, snapshot.cost(job.queue))
        if head is not None:
            run.sent_again += max(head - began.kept - len(began.window), 0)
            if (again := run.sent_again) > 0:
                run.remark = (
                    f"{again:,} went again: the broker was killed and had forgotten their acks"
                )
            counts = job.certain or job.counts
            done = max(counts.selected - head - began.rest, 0)
            certain = structs.replace(counts, done=done, skipped=0, failed=0)
            run.tell(replace(run.job, certain=certain))
        return head

    async def _count_unknown(self, run: JobRun) -> None:
        """A queue whose type nobody tells may have forgotten acks, and looking at it may cost."""
        mark, selection = run.job.checkpoint, run.job.spec.selection
        expected = mark.kept + len(mark.window) + mark.rest + (selection.behind or 0)
        if (await self._planner.snapshot_for(run.job.spec)).ready > expected:
            run.doubt = _DOUBT.format(queue=run.job.queue)

    async def _wait_for_broker(self, run: JobRun, away: BrokerError) -> BrokerSnapshot:
        """Wait until the broker answers, say so meanwhile, and begin the job's next run.

        Its lease is kept: no other job begins on the queue. HopbackError if the broker does not come
        back in time, or refuses us when it does.
        """
        patience = self._settings.patience_s
        reason = f"waiting for the broker, up to {format_duration(round(patience * 1000))}: {away}"
        await self._write_reason(run, reason)
        until = asyncio.get_running_loop().time() + patience
        for failures in itertools.count(1):
            await run.control.sleep(_RECONNECT.delay(failures, random.random()))
            if run.control.is_paused and not run.control.is_cancelled:
                await self._write_reason(run, reason, JobState.PAUSED)
                await run.control.wait()
                await self._write_reason(run, reason, JobState.RUNNING)
            if run.control.is_cancelled:
                raise _Cancelled
            try:
                snapshot = await self._planner.snapshot_for(run.job.spec)
            except HopbackError as failed:
                if not may_pass(failed) or asyncio.get_running_loop().time() >= until:
                    raise
            else:
                break
        run.tell(_next_run(run.job))
        await self._write_reason(run, "")
        return snapshot

    async def _write_reason(self, run: JobRun, reason: str, state: JobState | None = None) -> None:
        """Write down what an active job is waiting for; empty when it goes on."""
        now = self._clock.now()
        job = run.job if state is None else run.job.to(state, now)
        await run.write(replace(job, reason=reason, updated=now, changes=job.changes + 1))

    def _watch(self, job: JobRecord, snapshot: BrokerSnapshot) -> Watch:
        spec, cost = job.spec, snapshot.cost(job.queue)
        may_look = spec.forced or cost.price is not Price.REFUSED
        return Watch(
            self._broker,
            job.queue,
            job.id,
            ready=snapshot.ready,
            timer=WatchTimer(snapshot.one(job.queue), spec.pace.watch_s),
            cost=cost if may_look else None,
            in_order=snapshot.is_classic(job.queue),
        )

    def _source(
        self,
        job: JobRecord,
        snapshot: BrokerSnapshot,
        channel: Channel,
        holding: Holding | None,
        cursor: Cursor,
        store: str,
    ) -> Source:
        spec = job.spec
        if holding is not None:
            return SessionSource(channel, holding.deliveries, holding.held)
        tag = job_tag(store, job.id)
        is_classic = snapshot.is_classic(job.queue)
        is_quorum = None if snapshot.effective(job.queue) is None else not is_classic
        count, began = spec.selection.count, job.checkpoint
        prefetch = choose_prefetch(spec, is_classic=is_classic, is_paced=bool(job.rate))
        if isinstance(cursor, ClassicCursor):
            count = cursor.head + began.rest
        elif isinstance(cursor, QuorumCursor):
            count = began.rest + cursor.longest_head
            return Head(
                channel,
                spec.queue,
                count,
                prefetch,
                is_quorum=is_quorum,
                tag=tag,
                first=cursor.most_found,
            )
        return Head(channel, spec.queue, count, prefetch, is_quorum=is_quorum, tag=tag)

    def _action(self, job: JobRecord, snapshot: BrokerSnapshot) -> Action:
        spec, request, queue = job.spec, job.spec.request, snapshot.one(job.queue)
        if isinstance(request, DiscardRequest):
            sink = FileSink(run_file(spec.export_to, job.run)) if spec.export_to else None
            return DiscardAction(sink, queue)
        occasion = RedriveOccasion(
            now=job.created,
            job=job.id,
            user_id=spec.by.id,
            user_name=spec.by.name,
            operation=spec.operation or job.id,
            stamped=bool(spec.stamped),
        )
        sending = RedriveAction(
            self._broker,
            queue,
            request.target,
            occasion,
            max_redrives=request.max_redrives,
            table=snapshot.table(),
            routes=snapshot.routes(),
        )
        if not request.change:
            return sending
        originals = FileSink(run_file(spec.export_to, job.run))
        return ChangingAction(sending, request.change, originals, queue)

    async def _beat(self, run: JobRun) -> None:
        """Keep the lease, and hear what people want of the job."""
        every = min(_BEAT_S, self._settings.lease_s / 3)
        while True:
            await asyncio.sleep(every)
            try:
                request = await self._journal.renew(run.job.id, run.owner)
            except LeaseLost as lost:
                _log.warning("%s", lost)
                request = ControlRequest(cancelled=True)
            except StoreUnavailable as away:
                # The next beat asks again. If the lease lapses meanwhile, the next checkpoint says so.
                _log.warning("job %s: %s", run.job.id, away)
                continue
            run.control.set(paused=request.paused, cancelled=request.cancelled, rate=request.rate)

    async def _announce(self, job: JobRecord, snapshot: BrokerSnapshot) -> None:
        """Tell that messages were re-driven, where the design asks for that."""
        event = completion_event(snapshot.design_of(job.queue), job, snapshot.one(job.queue))
        if event is None or job.state is JobState.INTERRUPTED:
            return
        try:
            connection = await self._broker.connect(_connection_name(job))
            try:
                await (await connection.open_channel()).publish(event, mandatory=False)
            finally:
                await connection.close()
        except BrokerError as failed:
            _log.warning("the end of job %s was not announced: %s", job.id, failed)

    async def current(self, job_id: str) -> JobRecord | None:
        """A job as it is now, by what is known here first."""
        run = self._runs.get(job_id)
        return run.job if run is not None else await self._journal.job(job_id)

    async def change_control(
        self, job_id: str, change: Callable[[ControlRequest], ControlRequest]
    ) -> None:
        """Want something else of a job, wherever it runs; here it hears at once."""
        request = change(await self._journal.control(job_id))
        await self._journal.set_control(job_id, request)
        run = self._runs.get(job_id)
        if run is not None:
            run.control.set(paused=request.paused, cancelled=request.cancelled, rate=request.rate)

    async def count_back(self, job_id: str, found: int) -> None:
        """Keep how many messages came back of a job that has ended; one that runs counts by itself."""
        job = await self.current(job_id)
        if job is not None and not job.is_active:
            counts = structs.replace(job.counts, came_back=found, came_back_at_least=False)
            await self._journal.amend(replace(job, counts=counts))

    async def news(self, job_id: str) -> AsyncIterator[JobRecord]:
        """The job now and after each change, until it runs no more."""
        told: JobRecord | None = None
        run: JobRun | None = None
        while True:
            # A run that has ended is asked once more: its end may not have reached the journal.
            ended = run if run is not None and not run.job.is_active else None
            run = self._runs.get(job_id, ended)
            if run is not None:
                run.changed.clear()
            job = run.job if run is not None else await self._journal.job(job_id)
            if job is None:
                return
            if told is None or (job.changes, job.state) != (told.changes, told.state):
                told = job
                yield job
            if not job.is_active:
                return
            if run is None:
                await asyncio.sleep(_LOOK_AGAIN_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await run.changed.wait()

    async def join(self, job_id: str) -> None:
        """Return when the run of this job here has ended, if there is one."""
        run = self._runs.get(job_id)
        if run is not None and run.task is not None:
            await asyncio.wait({run.task})

    async def close(self) -> None:
        """Interrupt every job that runs here; one that has ended may say so, and hang up."""
        tasks = {run.task: run.job for run in self._runs.values() if run.task is not None}
        ending = [task for task, job in tasks.items() if not job.is_active]
        if ending:
            await asyncio.wait(ending, timeout=_ENDING_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _next_run(job: JobRecord) -> JobRecord:
    """The job as its next run begins: what is certainly done stays counted, the rest is seen again."""
    mark, counts = job.checkpoint, job.counts
    if job.spec.selection.digests is not None:
        counts = structs.replace(counts, done=0, skipped=0, failed=0, returned=0)
    elif mark.kept or mark.rest:
        certain = counts.selected - mark.kept - len(mark.window) - mark.rest - mark.unsure
        counts = structs.replace(counts, done=max(certain, 0), skipped=0, failed=0, returned=0)
    else:
        certain = counts.selected - counts.skipped - counts.failed - len(mark.window) - mark.unsure
        counts = structs.replace(counts, done=max(certain, 0), returned=0)
    return replace(job, run=job.run + 1, certain=counts)


def _connection_name(job: JobRecord) -> str:
    return job_connection_name(job.id, job.queue)
