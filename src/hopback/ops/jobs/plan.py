"""Turn a request into a dry run or into the specification of a job.

The planner checks the request, counts its selection, and checks the targets and the cost of browsing before
a job starts. A job that could not move any message, or could lose one, is refused. The dry run reads messages
and counts how many the job would move, and how many it would leave in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from hopback.errors import BadRequest, CountMismatch, NotAllowed, UnsafeOperation
from hopback.headers.names import UNREAD
from hopback.ops.brokers.browse_cost import check_cost
from hopback.ops.brokers.consumers import describe_consumer, jobs_on
from hopback.ops.brokers.targets import known_ways, target_flaw, target_text
from hopback.ops.contract.codec import check
from hopback.ops.contract.requests import (
    NOBODY,
    DiscardRequest,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Selection,
    Settings,
    Submission,
    TargetKind,
    Who,
)
from hopback.ops.contract.values import (
    Cost,
    JobPlan,
    LeftOutCount,
    Moment,
    OnProgress,
    Price,
    ReachedQueue,
    WayCheck,
)
from hopback.ops.jobs.dry_run import DryRun
from hopback.ops.jobs.job_spec import JobSpec
from hopback.ops.jobs.return_watch import stop_rule_text
from hopback.ops.messages.archive import check_writable
from hopback.ops.messages.filters import PAYLOAD_BYTES, parse_filter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hopback.clock import Clock
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.ops.jobs.journal import Journal
    from hopback.topology.routing import RoutingTable

_NAMED = 5
"""Consumers that a warning names. Further ones are left out."""
_REACHED = 50
"""Target queues whose consumers a plan counts. The operator waits for these queries. Others are left out."""
_FAILURES = 10_000
"""Failed messages that one job can retry: their digests are part of its record. Others need another job."""


def check_request(request: JobRequest) -> None:
    """Raise BadRequest or BadFilter for an invalid request."""
    check(JobRequest, request)
    if not request.reason.strip():
        raise BadRequest("reason", "a reason for the audit")
    if isinstance(request, DiscardRequest) and request.confirm != request.queue:
        raise BadRequest("confirm", f"the name of the queue, {request.queue!r}, repeated")
    selection = request.selection
    if selection.ids and not selection.session:
        raise BadRequest("selection.ids", "selection.session beside them")
    if selection.limit == 0:
        raise BadRequest("selection.limit", "1 or more, got 0")
    if selection.queue not in ("", request.queue):
        raise BadRequest("selection.queue", f"{request.queue!r}, got {selection.queue!r}")
    parse_filter(selection.filter)


class Planner:
    """Makes plans and job specifications from requests."""

    def __init__(
        self,
        broker: ManagedBroker,
        sessions: Sessions,
        settings: Settings,
        clock: Clock,
        store_id: Callable[[], Awaitable[str]],
    ) -> None:
        self._broker = broker
        self._store_id = store_id
        self._sessions = sessions
        self._settings = settings
        self._clock = clock

    async def spec(
        self,
        request: JobRequest,
        submission: Submission,
        by: Who,
        snapshot: BrokerSnapshot,
        job: str,
        on_progress: OnProgress | None = None,
    ) -> tuple[JobSpec, ChosenMessages | None]:
        """Return the specification of a job, and its messages if a session holds them.

        UnsafeOperation if messages could be lost or no target leads to a queue. CountMismatch if the number
        of selected messages is not the expected one.
        """
        spec, chosen = await self._select(request, submission, by, snapshot, job)
        _check_returns(spec, chosen, snapshot)
        count: int | None = spec.most
        if chosen is None:
            spec, count = await self._choose_end(spec, snapshot, on_progress)
        expected = request.expected_count
        if expected is not None and count is not None and expected != count:
            raise CountMismatch(expected, count)
        asked = request.selection
        counted = Selection(
            session=asked.session,
            filter=asked.filter,
            limit=None if chosen else spec.span,
            queue=request.queue,
            count=asked.count if count is None else count,
            estimate=asked.estimate if count is None else "",
        )
        spec = structs.replace(spec, request=structs.replace(request, selection=counted))
        await self._check_ways(spec, snapshot)
        return spec, chosen

    async def _select(
        self,
        request: JobRequest,
        submission: Submission,
        by: Who,
        snapshot: BrokerSnapshot,
        job: str,
    ) -> tuple[JobSpec, ChosenMessages | None]:
        """Return the job for the present selection, and its messages if a session holds them."""
        text, stamped = "", submission.stamped
        if isinstance(request, RedriveRequest):
            if request.change and not self._settings.editing:
                raise NotAllowed("changing messages is switched off here")
            text = target_text(request.target, snapshot.one(request.queue))
        if stamped is None:
            design = snapshot.design_of(request.queue)
            stamped = design is not None and design.stamps_redrives
        asked, ready, chosen, digests = request.selection, snapshot.ready, None, None
        span = ready if asked.limit is None else min(asked.limit, ready)
        if asked.session:
            session = self._sessions.one(asked.session, request.queue)
            chosen = await session.choose(asked)
            digests = tuple(dead_letter.digest for dead_letter in chosen.dead_letters)
            span = session.view.skipped + session.view.held
        spec = JobSpec(
            request=request,
            broker=self._broker.journal_name,
            span=span,
            digests=digests,
            behind=ready - span if chosen is None else None,
            target_text=text,
            by=by,
            key=submission.key,
            operation=submission.operation,
            stamped=stamped,
            export_to=self._export_file(request, submission, job),
        )
        return spec, chosen

    def _export_file(self, request: JobRequest, submission: Submission, job: str) -> str:
        """Return the file to which a discard or a change writes the originals first, empty for no file."""
        exports = self._settings.exports
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
        self, spec: JobSpec, snapshot: BrokerSnapshot, on_progress: OnProgress | None
    ) -> tuple[JobSpec, int | None]:
        """Decide where the selection ends. Return the job and its number of messages, None if unknown.

        Messages that arrived after the plan do not belong to the selection. If messages have left the queue,
        messages behind the selection have moved up. The position of the plan's last message shows how many
        have left. CountMismatch if that message is not found.
        """
        request, asked = spec.request, spec.request.selection
        is_free = snapshot.cost(spec.queue).price is Price.FREE
        follows_last = bool(asked.last_digest) and (is_free or bool(asked.filter))
        if not follows_last and (request.expected_count is None or not asked.filter):
            if asked.is_planned and asked.limit is not None and spec.span < asked.limit:
                raise CountMismatch(asked.limit, spec.span)
            return spec, None if asked.filter else spec.span
        counted = DiscardRequest(queue=spec.queue, selection=asked, reason=request.reason)
        source, now = snapshot.one(spec.queue), self._clock.now()
        dry_run = DryRun(counted, source, now, sought=asked.last_digest)
        most = min(asked.place, spec.span) if follows_last else spec.span
        await dry_run.read(self._broker, snapshot, most, on_progress)
        if not follows_last:
            return spec, dry_run.matching
        place = dry_run.sought_place
        span = (asked.limit or asked.place) - (asked.place - place)
        if not place or span > snapshot.ready:
            found = dry_run.matching if asked.filter else spec.span
            raise CountMismatch(asked.count or 0, found)
        ended = structs.replace(spec, span=span, behind=snapshot.ready - span)
        if not asked.filter:
            return ended, span
        return ended, dry_run.sought_matching if span == place else None

    async def snapshot_for(self, spec: JobSpec) -> BrokerSnapshot:
        """Return the broker's present state for a resumed job. UnsafeOperation if no target is usable."""
        snapshot = await self._broker.snapshot(count=spec.queue)
        await self._check_ways(spec, snapshot)
        return snapshot

    async def _check_ways(self, spec: JobSpec, snapshot: BrokerSnapshot) -> None:
        """Raise UnsafeOperation if none of the targets that are known in advance leads to a queue."""
        if not isinstance(spec.request, RedriveRequest):
            return
        ways = known_ways(spec.request.target, snapshot.one(spec.queue))
        live_routes = snapshot.live_routes()
        async with self._broker.query() as connection:
            flaws = [await target_flaw(connection, way, live_routes) for way in ways]
        if flaws and all(flaws):
            raise UnsafeOperation(f"no message was moved: {flaws[0]}")

    async def spec_for_failures(
        self, job: JobRecord, journal: Journal, by: Who, reason: str
    ) -> JobSpec:
        """Return the specification of the same job for the messages that it could not move or left out."""
        failures = await journal.failures(job.id, 0, _FAILURES)
        if job.is_active or not failures:
            state = f"it is {job.state} with {len(failures)} failures"
            raise BadRequest("job", f"one that has ended with failures, {state}")
        depth, _ = await self._broker.depth(job.queue)
        request = structs.replace(
            job.spec.request,
            selection=Selection(queue=job.queue, count=len(failures)),
            reason=reason or f"failures of job {job.id}",
        )
        return structs.replace(
            job.spec,
            request=request,
            span=depth.ready or 0,
            digests=tuple(failed.digest for failed in failures),
            behind=None,
            by=by,
            key=None,
        )

    async def other_consumers(
        self, queue: str, snapshot: BrokerSnapshot, active: JobRecord | None = None
    ) -> list[str]:
        """Describe the consumers of a dead-letter queue that are not jobs of this store.

        The consumer count of the broker decides, because the management API may list consumers late or not
        at all. `active` is the queue's job in this store.
        """
        if not snapshot.consumers:
            return []
        store = await self._store_id()
        named = [describe_consumer(each, store) for each in await self._broker.consumers_of(queue)]
        found = [each for each in named if each]
        if active is None and snapshot.consumers > len(found):
            # A quorum queue counts ended consumers that hold messages. Management does not list them.
            names = await self._broker.connection_names() or ()
            others = [job for job in jobs_on(queue, names) if job not in "".join(found)]
            if others:
                return [*found, *(f"job {job} of another store" for job in others)][:_NAMED]
        # A quorum queue counts the ended consumers of a session that holds messages.
        held_here = bool(self._sessions.active(queue))
        if active is None and (snapshot.is_classic(queue) or not held_here):
            unnamed = snapshot.consumers - len(found)
            why = (
                "that management does not name yet" if self._broker.management else "without a name"
            )
            found += [f"{unnamed} {why}"] if unnamed > 0 else []
        return found[:_NAMED]

    async def plan(
        self,
        request: JobRequest,
        submission: Submission,
        active: JobRecord | None = None,
        on_progress: OnProgress | None = None,
    ) -> JobPlan:
        """Return the plan of a job for this request. Reads at most as many messages as the settings allow.

        `active` is the job that runs on the queue now.
        """
        check_request(request)
        snapshot = await self._broker.snapshot(count=request.queue)
        spec, chosen = await self._select(request, submission, NOBODY, snapshot, "JOB")
        source, now = snapshot.one(spec.queue), self._clock.now()
        dry_run = DryRun(request, source, now, snapshot.known_routes())
        others = await self.other_consumers(spec.queue, snapshot, active)
        unread = await self._run_dry(dry_run, spec, chosen, snapshot, on_progress)
        live_routes = snapshot.live_routes()
        async with self._broker.query() as connection:
            ways = await dry_run.ways(connection, live_routes)
        reaches = await self._find_reached_queues(ways, live_routes)
        cost = snapshot.cost(spec.queue, killed=True)
        flaws = [way.flaw for way in ways if way.flaw]
        barred = []
        try:
            _check_returns(spec, chosen, snapshot)
        except UnsafeOperation as refused:
            barred = [str(refused)]
        if active is not None:
            barred.append(f"{request.queue!r} has an active job: {active.id}")
        watched, is_redrive = dry_run.timer.time, spec.kind is JobKind.REDRIVE
        counted = _count_selection(spec, dry_run)
        return JobPlan(
            kind=spec.kind,
            queue=spec.queue,
            target=spec.target_text,
            selection=counted,
            selected=spec.most,
            seen=dry_run.seen,
            matching=dry_run.matching,
            reasons=dry_run.reasons.groups(),
            errors=dry_run.errors.groups(),
            ways=ways,
            left_out=tuple(LeftOutCount(*one) for one in dry_run.left_out.most_common()),
            cost=cost,
            order=_order_text(request, len(ways)),
            warnings=(
                *_queue_warnings(spec, others, reaches),
                *unread,
                *_message_warnings(spec, dry_run, cost, snapshot),
            ),
            flaws=(*barred, *(dict.fromkeys(flaws) if len(flaws) == len(ways) else ())),
            as_of=Moment(self._clock.now()),
            watch_s=watched.seconds,
            watch_text=watched.text,
            export_to=spec.export_to,
            conflict=None if active is None else active.view,
            changes=tuple(dry_run.changes),
            ramp=spec.pace.ramp,
            reaches=reaches,
            stop_rule=stop_rule_text(spec.pace, watched) if is_redrive else "",
            duplicates=_duplicates_text(spec.pace, counted.count or 0) if is_redrive else "",
        )

    async def _find_reached_queues(
        self, ways: Iterable[WayCheck], live_routes: RoutingTable | None
    ) -> tuple[ReachedQueue, ...]:
        """Return the queues that these targets lead to, as far as routes are known, with their consumers."""
        names: dict[str, None] = {}
        for way in ways:
            if way.flaw is not None:
                continue
            if not way.exchange:
                names[way.routing_key] = None
            elif live_routes is not None:
                names |= dict.fromkeys(live_routes.reachable(way.exchange, way.routing_key) or ())
        found = []
        for name in list(names)[:_REACHED]:
            depth = await self._broker.count_now(name)
            if depth is not None:
                found.append(ReachedQueue(name, depth.consumers, depth.ready))
        return tuple(found)

    async def _run_dry(
        self,
        dry_run: DryRun,
        spec: JobSpec,
        chosen: ChosenMessages | None,
        snapshot: BrokerSnapshot,
        on_progress: OnProgress | None,
    ) -> list[str]:
        """Show the messages to the dry run. Return warnings about messages that were not read."""
        if chosen is not None:
            await dry_run.read_chosen(chosen)
            return _unread_text(chosen.not_looked_into)
        cost = snapshot.cost(spec.queue)
        if cost.price is Price.REFUSED and not spec.forced:
            return [f"no message was read: {cost.text}"]
        count = min(spec.span, self._settings.count_scan if spec.filter else self._settings.scan)
        await dry_run.read(self._broker, snapshot, count, on_progress)
        unread = _unread_text(dry_run.not_looked_into)
        if count < spec.span:
            return [f"only the first {count:,} of {spec.span:,} messages were read", *unread]
        return unread


def _count_selection(spec: JobSpec, dry_run: DryRun) -> Selection:
    """Return the selection with the count of the dry run, or with an estimate if it read only a part."""
    asked, span = spec.request.selection, spec.span
    counted = Selection(session=asked.session, ids=asked.ids, filter=asked.filter, queue=spec.queue)
    if asked.session:
        return structs.replace(counted, count=spec.most)
    count, estimate = span, ""
    if dry_run.seen >= span:
        count = dry_run.matching
    elif asked.filter and not dry_run.seen:
        estimate = "no message was read"
    elif asked.filter:
        count = round(span * dry_run.matching / dry_run.seen)
        estimate = f"the first {dry_run.seen:,} of {span:,} messages were read"
    return structs.replace(
        counted,
        limit=span,
        count=count,
        estimate=estimate,
        last_digest=dry_run.last,
        place=dry_run.seen,
    )


def _duplicates_text(pace: Pace, count: int) -> str:
    """Describe how many messages may be sent twice: those that were sent and not yet acked."""
    most = min(pace.in_flight, count)
    which = f"up to {most:,} messages" if most > 1 else "1 message"
    return f"{which}, if the job is killed or its broker stops"


def _order_text(request: JobRequest, ways: int) -> str:
    """Describe whether the job keeps the order of the messages."""
    if isinstance(request, DiscardRequest):
        return "remaining messages keep their order"
    if ways > 1 or request.target.kind is TargetKind.ORIGIN_EXCHANGE:
        return "kept within each target queue, not between them"
    return "kept, except for messages that are refused and sent again later"


def _unread_text(count: int) -> list[str]:
    if not count:
        return []
    which = _number_of(count, "has a body", "have bodies")
    return [
        f"{which} too large or too deeply nested for `payload.` terms (the limit is"
        f" {PAYLOAD_BYTES // 1024} KiB) and counted as not matching"
    ]


def _number_of(count: int, one: str, many: str) -> str:
    return f"{count} messages {many}" if count > 1 else f"1 message {one}"


def _check_returns(spec: JobSpec, chosen: ChosenMessages | None, snapshot: BrokerSnapshot) -> None:
    """Raise UnsafeOperation if messages that the job requeues could reach the queue's delivery limit.

    A job with a filter requeues the messages that do not match. A killed re-drive requeues all messages
    that it holds. How often they were requeued before is unknown until they are read. Messages that a
    session holds were read already. A job cannot take messages from a stream.
    """
    if snapshot.cost(spec.queue).is_stream:  # `forced` does not apply
        check_cost(snapshot.cost(spec.queue, killed=True), forced=False)
    if chosen is None and (spec.filter or spec.kind is JobKind.REDRIVE):
        check_cost(snapshot.cost(spec.queue, killed=True), forced=spec.forced)


def _queue_warnings(
    spec: JobSpec, others: Sequence[str], reaches: Iterable[ReachedQueue]
) -> list[str]:
    found = []
    if others:
        named = "; ".join(others)
        found.append(f"{spec.queue} has other consumers, which also remove messages: {named}")
    found += [
        f"{each.queue} has 0 consumers: messages wait there until one connects"
        for each in reaches
        if each.consumers == 0
    ]
    return found


def _message_warnings(
    spec: JobSpec, dry_run: DryRun, cost: Cost, snapshot: BrokerSnapshot
) -> list[str]:
    request, found = spec.request, []
    if isinstance(request, RedriveRequest) and request.target.warning:
        found.append(request.target.warning)
    if cost.price is Price.REFUSED:
        found.append(
            f"each time the job stops early, its held messages are requeued once more: {cost.text}"
        )
    if spec.kind is JobKind.DISCARD and not spec.export_to:
        found.append("without an export, discarded messages cannot be restored")
    plans = [plan for topology in snapshot.declared for plan in topology.plans]
    is_planned = any(plan.parking.queue == spec.queue for plan in plans)
    if spec.kind is JobKind.REDRIVE and plans and not is_planned:
        found.append(
            f"no given topology has a failure plan for {spec.queue}: its messages start with"
            " attempt 1 again. Name the topology of its consumer (--topology)"
        )
    if dry_run.unread:
        which = _number_of(dry_run.unread, "has", "have")
        found.append(
            f"{which} headers that cannot be decoded: they are sent as bytes in {UNREAD}, and the"
            " handler does not see their values"
        )
    return found
