"""All operations on dead letters in one class, which is used by commands, the HTTP API and pages.

It can be used with any broker. The management API provides information that is not available over
AMQP, for example discovery, queue types, limits and ages. Declared topologies provide plans. Jobs
and the audit are stored in a journal. A journal in a database is still available after a restart,
unlike one in memory.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, nullcontext, suppress
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from msgspec import structs

from hopback.errors import BadRequest, JobConflict, NoSuch, NotAllowed
from hopback.ops.alerts.book import AlertBook
from hopback.ops.brokers.candidates import Recognition
from hopback.ops.brokers.consumers import find_other_consumers
from hopback.ops.brokers.queue_views import describe_queue, summarize_queues
from hopback.ops.brokers.targets import queues_reached
from hopback.ops.browse.export import export_queue, export_session
from hopback.ops.browse.message_view import view_message
from hopback.ops.browse.search import Search
from hopback.ops.browse.sessions import Sessions
from hopback.ops.browse.surveys import Surveys
from hopback.ops.contract.candidates import QueueAnswer
from hopback.ops.contract.codec import check
from hopback.ops.contract.requests import (
    BY_CALLER,
    NEWEST,
    NOBODY,
    UNHURRIED,
    USUAL_SESSION,
    WHOLE_QUEUE,
    AuditQuery,
    EditRequest,
    GroupBy,
    JobRequest,
    NewRate,
    Pace,
    Selection,
    SessionRequest,
    Settings,
    Submission,
    Target,
    Who,
)
from hopback.ops.contract.search import SearchProgress, SearchRequest
from hopback.ops.contract.values import (
    AuditEntry,
    FailedMessage,
    Groups,
    Imported,
    Job,
    JobPlan,
    JobState,
    MessageView,
    Moment,
    OnProgress,
    Page,
    Price,
    QueueDetail,
    QueueSummary,
    SessionView,
)
from hopback.ops.documents import Documents
from hopback.ops.jobs.archive_import import Import
from hopback.ops.jobs.edited_copy import send_copy
from hopback.ops.jobs.job_record import JobRecord, JobSpec
from hopback.ops.jobs.journal import Journal, JournalShare, MemoryJournal
from hopback.ops.jobs.plan import make_plan
from hopback.ops.jobs.runner import JobRunner, new_job_id
from hopback.ops.jobs.spec_builder import (
    SpecBuilder,
    check_request,
    check_returns,
    snapshot_for,
)
from hopback.ops.messages.filters import parse_filter
from hopback.ops.notes.values import JournalNotes
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.alerts.values import AlertList, AlertTestResult
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.contract.candidates import CandidateList
    from hopback.ops.contract.surveys import ErrorOverview, QueueTrend
    from hopback.ops.contract.values import Depth


_CONSUMED = "consumed"
"""The kind of the documents that list queues which have had a consumer."""


class Operations:
    """Implements `DeadLetters` in this process. Use it as an async context manager. The interface
    describes the methods.

    Several brokers can share a journal. `beside` contains the `journal_name` of the other brokers,
    whose jobs and audit entries are neither listed nor controlled. If `is_first` is True, entries
    that do not belong to any of the brokers are also listed. On exit, browse sessions are released,
    jobs of this process are interrupted, and the query connection is closed. Any process can resume
    interrupted jobs.
    """

    runs_jobs_here = True

    def __init__(
        self,
        broker: ManagedBroker,
        *,
        journal: Journal | None = None,
        settings: Settings | None = None,
        beside: Iterable[str] = (),
        is_first: bool = True,
    ) -> None:
        self.broker = broker
        self.clock: Clock = broker.clock
        self.settings: Settings = settings or Settings()
        self.journal: Journal = journal or MemoryJournal()
        self.alert_book: AlertBook = AlertBook(self.journal.database)
        self._name = broker.journal_name
        self._documents = Documents(self.journal.database, self._name, self.clock)
        self._recognition = Recognition(self._documents)
        broker.recorded_overrides = self._recognition.overrides
        self._sessions = Sessions(broker)
        self._specs = SpecBuilder(broker, self._sessions, self.settings)
        self._runner = JobRunner(broker, self.journal, self.settings)
        self.surveys: Surveys = Surveys(
            broker, self.journal, self.queues, self._sessions, self.settings.exports
        )
        self._share = JournalShare(self._name, frozenset(beside) - {self._name}, is_first)
        self._who = NOBODY
        self._everywhere = False

    @property
    def keeps_jobs(self) -> bool:
        return not isinstance(self.journal, MemoryJournal)

    def on_behalf_of(self, who: Who, *, everywhere: bool = False) -> Self:
        """If `everywhere` is True, `jobs` lists the jobs of all brokers in the journal."""
        bound = copy(self)
        bound._who, bound._everywhere = who, everywhere  # noqa: SLF001  a copy of itself
        return bound

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._runner.close()
        await self._sessions.close()
        await self.broker.close()

    async def queues(self) -> tuple[QueueSummary, ...]:
        snapshot = await self.broker.snapshot()
        names = [each.name for each in snapshot.dead_letter_queues]
        depths = await self.broker.depths(names, snapshot.readings)
        active = await self._active_records()
        return self._summarize(snapshot, snapshot.dead_letter_queues, depths, active)

    async def queue(self, name: str) -> QueueDetail:
        snapshot = await self.broker.recent_snapshot()
        found = snapshot.dead_letter_queue(name)
        active = await self._active_records(name)
        depths = {name: await self.broker.depth(name)}
        (summary,) = self._summarize(snapshot, (found,), depths, active)
        return await describe_queue(self.broker, snapshot, found, summary)

    def _summarize(
        self,
        snapshot: BrokerSnapshot,
        queues: Iterable[DeadLetterQueue],
        depths: Mapping[str, Depth],
        active: Iterable[JobRecord],
    ) -> tuple[QueueSummary, ...]:
        """Return the rows of the list, including the messages that sessions of this process hold."""
        held = {
            name: structs.replace(depth, held_here=self._sessions.count_held(name))
            for name, depth in depths.items()
        }
        jobs = {job.queue: job.view for job in active}
        return summarize_queues(snapshot, queues, held, jobs, self.clock.now())

    async def dead_letter_queue(self, name: str) -> DeadLetterQueue:
        """Return a dead-letter queue with its plans. Raises NoSuch if it is not a dead-letter queue."""
        return (await self.broker.recent_snapshot()).dead_letter_queue(name)

    async def candidates(self) -> CandidateList:
        return await self._recognition.candidates(self.broker)

    async def answer_candidate(self, answer: QueueAnswer) -> None:
        check(QueueAnswer, answer)
        person = self._who
        kept = structs.replace(answer, by=person.name or person.id)
        await self._recognition.answer(kept, self.broker)
        details = {"mainQueue": answer.main_queue} if answer.main_queue else {}
        action = f"queue.{answer.answer.value}"
        await self.note(action, queue=answer.queue, reason=answer.reason, details=details)

    async def lift_limit(self, queue: str, *, reason: str = "") -> str:
        snapshot = await self.broker.snapshot()
        snapshot.dead_letter_queue(queue)
        policy = await self.broker.lift(snapshot, queue)
        await self.note("limit.lift", queue=queue, reason=reason, details={"policy": policy})
        return policy

    async def restore_limit(self, queue: str, *, reason: str = "") -> None:
        snapshot = await self.broker.snapshot()
        if not self.broker.is_lifted(snapshot, queue):  # the policy may exist without its queue
            snapshot.dead_letter_queue(queue)
        await self.broker.restore(queue)
        await self.note("limit.restore", queue=queue, reason=reason)

    async def open_session(
        self,
        queue: str,
        request: SessionRequest = USUAL_SESSION,
        *,
        on_progress: OnProgress | None = None,
    ) -> SessionView:
        snapshot = await self.broker.snapshot()
        found = snapshot.dead_letter_queue(queue)
        if request.lift and snapshot.cost(queue).price is Price.REFUSED:
            await self.lift_limit(queue, reason="to browse it")
            snapshot = await self.broker.snapshot()
        cost = snapshot.cost(queue)
        async with self.broker.read_alone(queue):
            session = await self._sessions.open(found, request, cost, self._who, on_progress)
        details = {"session": session.id, "held": session.view.held}
        details |= {"forced": True} if request.force else {}
        try:
            await self.note("session.open", queue=queue, details=details)
        except BaseException:  # the caller does not get the id, so it could not release the session
            await session.release("it was not opened")
            raise
        return session.view

    def sessions(self) -> tuple[SessionView, ...]:
        """Return the open sessions."""
        return tuple(session.view for session in self._sessions.active())

    def session(self, session_id: str) -> SessionView:
        """Return an open session. Raises SessionOver, which is a NoSuch, if it has ended."""
        return self._sessions.get(session_id).view

    async def renew(self, session_id: str, seconds: float | None = None) -> SessionView:
        view = self._sessions.renew(session_id, seconds).view
        await self.note("session.renew", queue=view.queue, details={"session": view.id})
        return view

    async def release(self, session_id: str) -> None:
        released = await self._sessions.release(session_id)
        if released is not None:
            details = {"session": released.id}
            await self.note("session.release", queue=released.source.name, details=details)

    async def return_messages(self, session_id: str) -> None:
        """Release a session and wait until its messages are ready again. Raises NoSuch if it has ended."""
        held = self._sessions.get(session_id)
        queue, taken = held.source.name, held.taken
        before = (await self.broker.depth(queue)).ready or 0
        await self.release(session_id)
        await self.broker.wait_until_ready(queue, before + taken)

    async def messages(
        self, session: str, where: str = "", *, cursor: int | str = 0, limit: int = 20
    ) -> Page:
        held = self._sessions.get(session)
        return await held.page(parse_filter(where), cursor=int(cursor), limit=limit)

    async def message(self, session: str, message: str) -> MessageView:
        held = self._sessions.get(session)
        view = await view_message(self.broker, held, message)
        await self._audit_shown(held, message)
        return view

    def delivery(self, session: str, message: str) -> Delivery:
        """Return the delivery of a message for callers in this process. This is not recorded in the
        audit.
        """
        return self._sessions.get(session).delivery(message)

    async def body(self, session: str, message: str) -> bytes:
        held = self._sessions.get(session)
        content = held.delivery(message).body
        await self._audit_shown(held, message)
        return content

    async def _audit_shown(self, session: BrowseSession, message: str) -> None:
        details = {"session": session.id, "message": message}
        await self.note("message.show", queue=session.source.name, details=details)

    async def groups(self, session: str, by: str = GroupBy.FINGERPRINT, where: str = "") -> Groups:
        return await self._sessions.get(session).groups(by, parse_filter(where))

    async def errors(
        self, *, survey: bool = False, on_progress: OnProgress | None = None
    ) -> ErrorOverview:
        if not survey:
            return await self.surveys.errors()
        found = await self.surveys.run(on_progress=on_progress)
        await self.note("queues.survey", details={"seen": found.messages})
        return found

    async def trend(self, queue: str) -> QueueTrend:
        (await self.broker.recent_snapshot()).dead_letter_queue(queue)
        return await self.surveys.trends.of(queue)

    async def search(self, request: SearchRequest) -> AsyncGenerator[SearchProgress, None]:
        job = await self._record(request.job) if request.job else None
        if job is not None:
            self._check_broker(job)
        asked = request if job is None else request.of_job(job.queue)
        progress = Search(self.broker, asked, self._sessions).progress()
        last = SearchProgress()
        try:
            async with aclosing(progress):
                async for last in progress:
                    if last.is_over and job is not None and not (request.where or last.beyond):
                        await self._runner.count_back(job.id, last.matching)
                    yield last
        finally:
            action = "messages.search" if job is None else "job.came-back"
            details = {"filter": request.where, "seen": last.seen, "found": last.matching}
            queue = asked.queues[0] if len(asked.queues) == 1 else ""
            await self.note(action, queue=queue, job=request.job, details=details)

    async def plan(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> JobPlan:
        asked, queue = self._new_spec(request, submission), request.queue
        active = next(iter(await self._active_records(queue)), None)
        async with self._read_alone(request):
            snapshot = await self.broker.snapshot(count=queue)
            others = await self._find_other_consumers(snapshot, queue, has_job=active is not None)
            plan = await make_plan(self._specs, asked, snapshot, others, active, on_progress)
        held = 0 if request.selection.session else self._sessions.count_held(queue)
        if not held:
            return plan
        warning = f"browse sessions hold {count_of(held)} of {queue}, which are not selected"
        return structs.replace(plan, warnings=(*plan.warnings, warning))

    def _read_alone(self, request: JobRequest) -> AbstractAsyncContextManager[None]:
        """Wait for other requests that read the queue, unless a browse session holds the messages."""
        if request.selection.session:
            return nullcontext()
        return self.broker.read_alone(request.queue)

    def _new_spec(self, request: JobRequest, submission: Submission) -> JobSpec:
        """Return a job specification that only contains what the caller has requested."""
        check_request(request)
        return JobSpec(request=request, submission=submission, by=self._who, broker=self._name)

    async def start(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> Job:
        if submission.key is not None:
            known = await self.journal.keyed(self._name, submission.key)
            if known is not None:
                if (known.queue, known.kind) != (request.queue, request.kind):
                    raise JobConflict(
                        f"the key {submission.key!r} belongs to job {known.id}", known
                    )
                return await self.job(known.id)
        for active in await self._active_records(request.queue):
            raise JobConflict(f"{request.queue!r} has an active job: {active.id}", active)
        asked = self._new_spec(request, submission)
        job_id = new_job_id()
        async with self._read_alone(request):
            snapshot = await self.broker.snapshot(count=request.queue)
            others = await self._find_other_consumers(snapshot, request.queue, has_job=False)
            spec, chosen = await self._specs.build(asked, snapshot, job_id, on_progress)

        async def start_and_audit() -> Job:
            job = await self._runner.start(job_id, spec, snapshot, chosen)
            if job.id == job_id:
                beside = {"otherConsumers": others} if others else {}
                await self._audit_job("job.start", job, request.reason, more=beside)
            return job.view

        return await self._runner.shield(start_and_audit())

    async def _find_other_consumers(
        self, snapshot: BrokerSnapshot, queue: str, *, has_job: bool
    ) -> list[str]:
        if not snapshot.consumers:
            return []
        store, sessions = await self.journal.store_id(), self._sessions.active(queue)
        return await find_other_consumers(
            self.broker, snapshot, queue, store, has_job=has_job, has_session=bool(sessions)
        )

    async def _audit_job(
        self,
        action: str,
        job: JobRecord,
        reason: str = "",
        *,
        by: Who | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        details: dict[str, object] = {"kind": job.kind, "selected": job.counts.selected}
        details |= more or {}
        if job.spec.target_text:
            details["target"] = job.spec.target_text
        if job.spec.filter:
            details["filter"] = job.spec.filter
            if job.spec.request.selection.count is not None:
                details["matching"] = job.spec.request.selection.count
        await self.note(action, by=by, queue=job.queue, job=job.id, reason=reason, details=details)

    async def job(self, job_id: str) -> Job:
        return (await self._record(job_id)).view

    async def _record(self, job_id: str) -> JobRecord:
        found = await self._runner.current(job_id)
        if found is None or not (self._everywhere or self._share.holds(found.spec.broker)):
            raise NoSuch("job", job_id)
        return found

    async def _active_records(self, queue: str = "") -> tuple[JobRecord, ...]:
        return await self.journal.jobs(broker=self._name, queue=queue, active=True)

    async def jobs(
        self, *, queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        broker = "" if self._everywhere else self._name
        found = await self.journal.jobs(broker=broker, queue=queue, active=active, limit=limit)
        return tuple(record.view for record in found)

    async def resumable_jobs(self) -> tuple[Job, ...]:
        """Return all jobs of this broker that have stopped and can be resumed, newest first."""
        found = await self.journal.jobs(broker=self._name, resumable=True)
        return tuple(record.view for record in found)

    async def failures(
        self, job_id: str, *, cursor: int = 0, limit: int = 100
    ) -> tuple[FailedMessage, ...]:
        await self.job(job_id)
        return await self.journal.failures(job_id, cursor, limit)

    async def events(self, job_id: str) -> AsyncGenerator[Job, None]:
        async for record in self._runner.follow(job_id):
            yield record.view

    async def wait(self, job_id: str) -> Job:
        newest: JobRecord | None = None
        async for record in self._runner.follow(job_id):
            newest = record
        await self._runner.join(job_id)
        return await self.job(job_id) if newest is None else newest.view

    async def pause(self, job_id: str) -> Job:
        job = await self._record(job_id)
        if job.state is not JobState.PAUSED:
            job.to(JobState.PAUSED, self.clock.now())
            await self._runner.change_control(job_id, lambda asked: replace(asked, paused=True))
            await self._audit_job("job.pause", job)
        return await self.job(job_id)

    async def resume(self, job_id: str) -> Job:
        job = await self._record(job_id)
        if job.state is JobState.PAUSED:
            await self._runner.change_control(job_id, lambda asked: replace(asked, paused=False))
        else:
            job.to(JobState.RUNNING, self.clock.now())
            self._check_broker(job)
            job = await self._runner.resume(job)
        await self._audit_job("job.resume", job)
        return job.view

    async def take_over(self) -> tuple[Job, ...]:
        """Resume jobs of this broker whose processes have died, and return these jobs.

        A paused job stays paused. A job that has already lost many processes is not resumed,
        because it may be the reason why they died.
        """
        taken = []
        interrupted = await self.journal.jobs(broker=self._name, interrupted=True)
        async for job, again in self._runner.take_over(interrupted):
            await self._audit_job(
                "job.take-over", again, job.state_reason, by=Who("hopback", "hopback")
            )
            taken.append(again.view)
        return tuple(taken)

    def _check_broker(self, job: JobRecord) -> None:
        """Raise BadRequest if a job in the same store belongs to another broker."""
        if job.spec.broker != self._name:
            raise BadRequest("job", f"a job of {self._name}, got {job.id} of {job.spec.broker}")

    async def cancel(self, job_id: str) -> Job:
        job = await self._record(job_id)
        ended = job.to(JobState.CANCELLED, self.clock.now(), "cancelled")
        if job.is_active:
            await self._runner.change_control(job_id, lambda asked: replace(asked, cancelled=True))
        else:
            await self.journal.amend(ended)
        await self._audit_job("job.cancel", job)
        return await self.job(job_id)

    async def interrupt(self, job_id: str) -> Job:
        with suppress(JobConflict):  # the job has just ended
            await self.pause(job_id)
            async for job in self.events(job_id):
                if job.state is not JobState.RUNNING:
                    break
        await self.close()
        return await self.job(job_id)

    async def set_rate(self, job_id: str, rate: float | None) -> Job:
        check(NewRate, NewRate(rate))
        job = await self._record(job_id)
        if not job.is_active:
            raise JobConflict(f"job {job_id} is {job.state}: only a running job has a rate", job)
        await self._runner.change_control(job_id, lambda asked: replace(asked, rate=rate))
        await self._audit_job("job.rate", job, more={"rate": "no limit" if rate is None else rate})
        return structs.replace(await self.job(job_id), rate=rate)

    async def retry_failures(self, job_id: str, *, reason: str = "") -> Job:
        job = await self._record(job_id)
        self._check_broker(job)
        new_id = new_job_id()
        spec = await self._specs.build_for_failures(job, self.journal, self._who, reason, new_id)
        snapshot = await snapshot_for(self.broker, spec)
        check_returns(spec, snapshot)
        again = await self._runner.start(new_id, spec, snapshot)
        await self._audit_job("job.retry-failures", again, spec.request.reason)
        return again.view

    def export(
        self, queue: str, selection: Selection = WHOLE_QUEUE, *, force: bool = False
    ) -> AsyncGenerator[bytes, None]:
        details: dict[str, object] = {"session": selection.session, "filter": selection.filter}
        if selection.session:
            lines = export_session(self._sessions, queue, selection)
        else:
            lines = export_queue(self.broker, queue, selection, force=force)
        return self._export_lines(lines, queue, details)

    async def _export_lines(
        self, lines: AsyncGenerator[bytes, None], queue: str, details: dict[str, object]
    ) -> AsyncGenerator[bytes, None]:
        count = 0
        try:
            async with aclosing(lines):
                async for line in lines:
                    count += 1
                    yield line
        finally:
            details["lines"] = count
            await self.note("messages.export", queue=queue, details=details)

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        reason: str = "",
    ) -> Imported:
        async def write(result: str, published: int = 0, problem: str = "") -> None:
            await self.note(
                "messages.import",
                queue=queue or "",
                reason=reason,
                result=result,
                details={"published": published, "problem": problem},
            )

        await write("started")
        work = Import(queue, pace)
        try:
            imported = await work.run(self.broker.broker, lines)
        except BaseException as error:
            ending = asyncio.ensure_future(write("failed", work.published, repr(error)))
            await asyncio.shield(ending)
            raise
        await write("failed" if imported.problem else "ok", imported.published, imported.problem)
        return imported

    async def edit_and_redrive(self, session: str, message: str, request: EditRequest) -> str:
        if not self.settings.editing:
            raise NotAllowed("editing messages is disabled")
        held = self._sessions.get(session)
        sent = await send_copy(self.broker, held, message, request, self._who)
        details = {"message": message, "copy": sent, "session": session}
        queue, reason = held.source.name, request.reason
        await self.note("message.edit", queue=queue, reason=reason, details=details)
        return sent

    async def queues_reached(self, queue: str, target: Target) -> frozenset[str] | None:
        """Return the queues that a re-drive of a dead-letter queue to a target can reach.

        Returns None if the routes are unknown, because they were not read from the broker.
        """
        snapshot = await self.broker.snapshot()
        return queues_reached(target, snapshot.dead_letter_queue(queue), snapshot.live_routes())

    @property
    def notes(self) -> JournalNotes:
        return JournalNotes(self._documents, self._who, self.note, self.audit)

    async def remember_consumed(self, queues: Iterable[str]) -> frozenset[str]:
        """Record queues that have consumers, and return all queues that have ever had one."""
        known = await self._documents.keys(_CONSUMED)
        new = frozenset(queues) - known
        await self._documents.write(_CONSUMED, dict.fromkeys(new, ""))
        return known | new

    async def alerts(self) -> AlertList:
        return await self.alert_book.list_alerts()

    async def test_alert(self, target: str) -> AlertTestResult:
        """Raise BadRequest, because only a service has the targets in its settings."""
        raise BadRequest("target", f"a service that knows {target!r} by its settings (--server)")

    async def audit(self, query: AuditQuery = NEWEST) -> tuple[AuditEntry, ...]:
        return await self.journal.read_entries(query, None if self._everywhere else self._share)

    async def note(
        self,
        action: str,
        *,
        by: Who | None = None,
        queue: str = "",
        job: str = "",
        reason: str = "",
        result: str = "ok",
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Record an action in the audit, for example a login or a denied request."""
        person = by or self._who
        entry = AuditEntry(
            at=Moment(self.clock.now()),
            by=person.name or person.id,
            action=action,
            queue=queue,
            job=job,
            reason=reason,
            result=result,
            details=dict(details or {}),
        )
        await self.journal.write_entry(entry, self._name)
