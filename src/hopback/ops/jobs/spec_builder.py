"""Convert a request to the specification of a job.

Before a job is started, the request is checked, its selection is counted, and its targets and the
cost of browsing are checked. The request is refused if the job could not move any message or could
lose one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from hopback.errors import BadRequest, CountMismatch, NotAllowed, UnsafeOperation
from hopback.ops.brokers.browse_cost import check_cost
from hopback.ops.brokers.targets import known_ways, target_flaw, target_text
from hopback.ops.contract.codec import check
from hopback.ops.contract.requests import (
    WHOLE_QUEUE,
    DiscardRequest,
    JobKind,
    JobRequest,
    RedriveRequest,
    Selection,
    Settings,
    Submission,
    Who,
)
from hopback.ops.contract.values import OnProgress, Price
from hopback.ops.jobs.dry_run import DryRun
from hopback.ops.jobs.job_record import ChosenDigests, JobSpec
from hopback.ops.messages.archive import check_writable, file_beside
from hopback.ops.messages.filters import parse_filter

if TYPE_CHECKING:
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.ops.jobs.journal import Journal

_FAILURES = 10_000
"""Failed messages that a job can retry. Its record contains their digests. Others need another job."""


def check_request(request: JobRequest) -> None:
    """Raise BadRequest or BadFilter if a request is invalid."""
    check(JobRequest, request)
    if not request.reason.strip():
        raise BadRequest("reason", "a reason for the audit")
    if isinstance(request, DiscardRequest) and request.confirm != request.queue:
        raise BadRequest("confirm", f"the name of the queue, {request.queue!r}, repeated")
    selection = request.selection
    if selection.ids and not selection.session:
        raise BadRequest("selection.ids", "selection.session to be set too")
    if selection.limit == 0:
        raise BadRequest("selection.limit", "1 or more, got 0")
    if selection.is_planned and selection.limit is None and not selection.session:
        raise BadRequest("selection.count", "selection.limit to be set too, as by a plan")
    if selection.queue not in ("", request.queue):
        raise BadRequest("selection.queue", f"{request.queue!r}, got {selection.queue!r}")
    parse_filter(selection.filter)


class SpecBuilder:
    """Create the specifications of jobs."""

    def __init__(self, broker: ManagedBroker, sessions: Sessions, settings: Settings) -> None:
        self.broker = broker
        self.settings = settings
        self._sessions = sessions

    async def build(
        self,
        asked: JobSpec,
        snapshot: BrokerSnapshot,
        job: str,
        on_progress: OnProgress | None,
    ) -> tuple[JobSpec, ChosenMessages | None]:
        """Return the specification of a job, and its messages if a session holds them.

        `asked` contains the request. Raises UnsafeOperation if messages could be lost or if no
        target leads to a queue. Raises CountMismatch if the number of selected messages is not the
        expected one.
        """
        spec, chosen = await self.draft(asked, snapshot, job)
        check_returns(spec, snapshot)
        request, selection = asked.request, asked.request.selection
        limit: int | None = None
        count: int | None = spec.most
        if chosen is None:
            limit, count = await self._choose_end(request, spec.span, snapshot, on_progress)
        expected = request.expected_count
        if expected is not None and count is not None and expected != count:
            raise CountMismatch(expected, count)
        counted = Selection(
            session=selection.session,
            filter=selection.filter,
            limit=limit,
            queue=request.queue,
            count=selection.count if count is None else count,
            estimate=selection.estimate if count is None else "",
        )
        spec = structs.replace(
            spec,
            request=structs.replace(request, selection=counted),
            behind=None if limit is None else snapshot.ready - limit,
        )
        await _check_ways(self.broker, spec, snapshot)
        return spec, chosen

    async def draft(
        self, asked: JobSpec, snapshot: BrokerSnapshot, job: str
    ) -> tuple[JobSpec, ChosenMessages | None]:
        """Return the specification with a selection that is not counted yet, and its messages if a
        session holds them.
        """
        request, submission, selection = asked.request, asked.submission, asked.request.selection
        text, stamped = "", submission.stamped
        if isinstance(request, RedriveRequest):
            if request.change and not self.settings.editing:
                raise NotAllowed("changing messages is disabled")
            text = target_text(request.target, snapshot.dead_letter_queue(request.queue))
        if stamped is None:
            design = snapshot.design_of(request.queue)
            stamped = design is not None and design.stamps_redrives
        file = self._export_file(request, submission, job)
        chosen = digests = None
        if selection.session:
            session = self._sessions.get(selection.session, request.queue)
            chosen = await session.choose(selection)
            digests = ChosenDigests(
                tuple(dead_letter.digest for dead_letter in chosen.dead_letters),
                session.view.skipped + session.view.held,
            )
        else:
            limit = snapshot.ready
            limit = limit if selection.limit is None else min(selection.limit, limit)
            request = structs.replace(request, selection=structs.replace(selection, limit=limit))
        spec = structs.replace(
            asked,
            request=request,
            submission=structs.replace(submission, stamped=stamped, export_to=file),
            chosen=digests,
            target_text=text,
        )
        return spec, chosen

    def _export_file(self, request: JobRequest, submission: Submission, job: str) -> str:
        """Return the file to which a discard or a change writes the originals. It is empty if there
        is none.
        """
        exports = self.settings.exports
        if isinstance(request, RedriveRequest):
            if not request.change:
                return ""
            if exports is None:
                raise BadRequest("change", "a folder of exports, in which the originals are kept")
            return str(exports / f"{job}.originals.ndjson")
        if not request.export:
            return ""
        if submission.export_to:
            check_writable(submission.export_to)
            return submission.export_to
        if exports is None:
            raise BadRequest("export", "a file to write to first, or no export at all")
        return str(exports / f"{job}.ndjson")

    async def _choose_end(
        self,
        request: JobRequest,
        span: int,
        snapshot: BrokerSnapshot,
        on_progress: OnProgress | None,
    ) -> tuple[int, int | None]:
        """Determine where the selection ends. By default, this is after the first `span` messages.

        Returns the number of messages up to this position, and the number of selected messages or
        None if it is unknown.

        Messages that have arrived after the plan was made are not selected. If messages have left
        the queue since, those behind the selection have moved forward. The position of the last
        message of the plan shows how many have left. Raises CountMismatch if this message is not
        found.
        """
        asked, queue = request.selection, request.queue
        is_safe = snapshot.cost(queue).price is not Price.REFUSED
        follows_last = bool(asked.last_digest) and (is_safe or bool(asked.filter))
        if not follows_last and (request.expected_count is None or not asked.filter):
            if asked.is_planned and asked.limit is not None and span < asked.limit:
                raise CountMismatch(asked.limit, span)
            return span, None if asked.filter else span
        source, now = snapshot.dead_letter_queue(queue), self.broker.clock.now()
        dry_run = DryRun(asked, source, now, sought=asked.last_digest)
        most = min(asked.place, span) if follows_last else span
        await dry_run.read(self.broker, snapshot, most, on_progress)
        if not follows_last:
            return span, dry_run.matching
        place = dry_run.sought_place
        end = (asked.limit or asked.place) - (asked.place - place)
        if not place or end > snapshot.ready:
            raise CountMismatch(asked.count or 0, dry_run.matching if asked.filter else span)
        if not asked.filter:
            return end, end
        if end == place or request.expected_count is None:
            return end, dry_run.sought_matching if end == place else None
        dry_run = DryRun(asked, source, now)  # the plan has only read the first messages
        await dry_run.read(self.broker, snapshot, end, on_progress)
        return end, dry_run.matching

    async def build_for_failures(
        self, job: JobRecord, journal: Journal, by: Who, reason: str, new_job: str
    ) -> JobSpec:
        """Return the specification of a job for the messages that another job could not move or has
        skipped.
        """
        request = structs.replace(
            job.spec.request, selection=WHOLE_QUEUE, reason=reason or f"failures of job {job.id}"
        )
        check_request(request)
        failures = await journal.failures(job.id, 0, _FAILURES)
        if job.is_active or not failures:
            state = f"it is {job.state} with {len(failures)} failures"
            raise BadRequest("job", f"one that has ended with failures, {state}")
        depth = await self.broker.depth(job.queue)
        digests = tuple(failed.digest for failed in failures)
        selection = Selection(queue=job.queue, count=len(failures))
        submission = job.spec.submission
        file = submission.export_to and file_beside(submission.export_to, new_job)
        return structs.replace(
            job.spec,
            request=structs.replace(request, selection=selection),
            submission=structs.replace(submission, key=None, export_to=file),
            by=by,
            chosen=ChosenDigests(digests, depth.ready or 0),
            behind=None,
        )


async def snapshot_for(broker: ManagedBroker, spec: JobSpec) -> BrokerSnapshot:
    """Return the current state of the broker for a job that is resumed.

    Raises UnsafeOperation if no target can be used.
    """
    snapshot = await broker.snapshot(count=spec.queue)
    await _check_ways(broker, spec, snapshot)
    return snapshot


async def _check_ways(broker: ManagedBroker, spec: JobSpec, snapshot: BrokerSnapshot) -> None:
    """Raise UnsafeOperation if the targets are known in advance and none of them leads to a queue."""
    if not isinstance(spec.request, RedriveRequest):
        return
    ways = known_ways(spec.request.target, snapshot.dead_letter_queue(spec.queue))
    live_routes = snapshot.live_routes()
    async with broker.query() as connection:
        flaws = [await target_flaw(connection, way, live_routes) for way in ways]
    if flaws and all(flaws):
        raise UnsafeOperation(f"no message was moved: {flaws[0]}")


def check_returns(spec: JobSpec, snapshot: BrokerSnapshot) -> None:
    """Raise UnsafeOperation if requeued messages of the job could reach the delivery limit of the
    queue.

    If the job has a filter or chosen messages, it requeues the other messages. If a re-drive is
    killed, all messages it was holding are requeued. How often they were requeued before is not
    known until they are read. Messages in a session have already been read. A job cannot take
    messages from a stream.
    """
    if snapshot.cost(spec.queue).is_stream:  # `force` does not allow this
        check_cost(snapshot.cost(spec.queue, killed=True), force=False)
    requeues = spec.filter or spec.chosen is not None or spec.kind is JobKind.REDRIVE
    if requeues and not spec.request.selection.session:
        check_cost(snapshot.cost(spec.queue, killed=True), force=spec.force)
