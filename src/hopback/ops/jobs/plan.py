"""Turn a request into a dry run or into the specification of a job.

The planner checks the request, counts its selection, and checks the targets and the cost of browsing before
a job starts. A job that could not move any message, or could lose one, is refused. The dry run reads messages
and counts how many the job would move, and how many it would leave in the queue.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.errors import BadRequest, CountMismatch, NotAllowed, UnsafeOperation
from hopback.headers import unread_headers
from hopback.headers.names import UNREAD
from hopback.ops.brokers.consumers import describe_consumer, jobs_on
from hopback.ops.brokers.targets import Aim, aim_at, known_ways, target_flaw, target_text
from hopback.ops.browse.cost import check_cost
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.browse.walk import walk
from hopback.ops.contract.codec import check
from hopback.ops.contract.requests import (
    NOBODY,
    DiscardRequest,
    GroupBy,
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
    LookProgress,
    Moment,
    OnProgress,
    Price,
    ReachedQueue,
    WayCheck,
)
from hopback.ops.jobs.job_record import JobRecord, JobSpec, SelectionSnapshot
from hopback.ops.jobs.return_watch import stop_rule_text
from hopback.ops.jobs.watch_time import WatchTimer
from hopback.ops.messages.archive import check_writable
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import PAYLOAD_BYTES, Filter, Judgement, parse_filter
from hopback.ops.messages.grouping import Grouping
from hopback.ops.messages.patch import change_sample, patch_problem
from hopback.policy.redrive import redrive_refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from hopback.broker.port import Connection
    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.contract.patch import ChangeSample
    from hopback.ops.jobs.journal import Journal
    from hopback.topology.plan import Redrive
    from hopback.topology.routing import RoutingTable


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


def export_file(request: JobRequest, settings: Settings, job: str, export_to: str = "") -> str:
    """Return the file to which a discard or a change writes the originals first, empty for no file."""
    if isinstance(request, RedriveRequest):
        if not request.change:
            return ""
        if settings.exports is None:
            raise BadRequest("change", "a folder of exports, in which the originals are kept")
        return str(settings.exports / f"{job}.originals.ndjson")
    if not request.export:
        return ""
    if export_to:
        check_writable(export_to)
        return export_to
    if settings.exports is None:
        raise BadRequest("export", "a file to write to first, or no export at all")
    return str(settings.exports / f"{job}.ndjson")


class DryRun:
    """Counts the actions of a job on the messages that are passed to it, without executing them."""

    def __init__(
        self,
        request: JobRequest,
        source: DeadLetterQueue,
        wanted: Filter,
        now: float,
        known_routes: RoutingTable | None = None,
    ) -> None:
        self._request = request
        self._source = source
        self._wanted = wanted
        self._now = now
        self._known_routes = known_routes
        self.reasons: Grouping = Grouping(GroupBy.REASON)
        self.errors: Grouping = Grouping(GroupBy.ERROR)
        self.timer: WatchTimer = WatchTimer(source, request.pace.watch_s)
        self._ways: Counter[Redrive] = Counter()
        self.left_out: Counter[str] = Counter()
        """Number of matching messages that would stay in the queue, by reason."""
        self.changes: list[ChangeSample] = []
        self.seen: int = 0
        self.matching: int = 0
        self.not_looked_into: int = 0
        self.last: str = ""
        """Digest of the last message that was seen."""
        self.unread: int = 0
        """Number of messages that a re-drive would send without their unreadable headers."""

    def see(self, delivery: Delivery) -> None:
        """Count one message."""
        self.seen += 1
        dead_letter = read_dead_letter(delivery, self.seen, self._source)
        self.last = dead_letter.digest
        judged = self._wanted.judge(dead_letter, delivery, self._now)
        self.not_looked_into += judged is Judgement.NOT_LOOKED_INTO
        if judged is not Judgement.MATCHES:
            return
        self.matching += 1
        self.reasons.add(dead_letter)
        self.errors.add(dead_letter)
        request = self._request
        if not isinstance(request, RedriveRequest):
            return
        aim = aim_at(request.target, delivery, dead_letter.origin, self._source, self._known_routes)
        if not isinstance(aim, Aim):
            self.left_out[aim] += 1
            return
        refusal = redrive_refusal(delivery, aim.plan, max_redrives=request.max_redrives or None)
        if refusal is not None:
            self.left_out[refusal] += 1
            return
        if request.change:
            if len(self.changes) < _SAMPLES:
                sample = change_sample(dead_letter.id, delivery.body, request.change)
                self.changes.append(sample)
                problem = sample.problem
            else:
                problem = patch_problem(delivery.body, request.change)
            if problem:
                self.left_out[problem] += 1
                return
        self._ways[aim.redrive] += 1
        self.timer.see(delivery)
        self.unread += bool(unread_headers(delivery.properties))

    async def ways(
        self, connection: Connection, live_routes: RoutingTable | None
    ) -> tuple[WayCheck, ...]:
        """Check that every target exists and leads to a queue: known ones, and those of the messages seen."""
        if not isinstance(self._request, RedriveRequest):
            return ()
        known = dict.fromkeys((*self._ways, *known_ways(self._request.target, self._source)))
        return tuple(
            [
                WayCheck(
                    way.exchange,
                    way.routing_key,
                    self._ways[way],
                    await target_flaw(connection, way, live_routes),
                )
                for way in known
            ]
        )


def order_kept(request: JobRequest, ways: int) -> str:
    """Describe whether the job keeps the order of the messages."""
    if isinstance(request, DiscardRequest):
        return "remaining messages keep their order"
    if ways > 1 or request.target.kind is TargetKind.ORIGIN_EXCHANGE:
        return "kept within each target queue, not between them"
    return "kept, except for messages that are refused and sent again later"


_NAMED = 5
"""Consumers that a warning names. Further ones are left out."""
_REACHED = 50
"""Target queues whose consumers a plan counts. The operator waits for these queries. Others are left out."""
_TELL_EVERY = 256
"""Messages between two reports of progress: some tens of milliseconds."""
_SAMPLES = 5
"""Changed messages that a dry run shows, so that the operator can check the change."""
_FAILURES = 10_000
"""Failed messages that one job can retry: their digests are part of its record. Others need another job."""


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
        selection, chosen = await self._select(request, snapshot.ready)
        _check_returns(request, selection, chosen, snapshot)
        count: int | None = selection.size
        if chosen is None:
            selection, count = await self._choose_end(request, selection, snapshot, on_progress)
        expected = request.expected_count
        if expected is not None and count is not None and expected != count:
            raise CountMismatch(expected, count)
        asked = request.selection
        counted = Selection(
            session=asked.session,
            filter=asked.filter,
            limit=None if chosen else selection.count,
            queue=request.queue,
            count=asked.count if count is None else count,
            estimate=asked.estimate if count is None else "",
        )
        request = structs.replace(request, selection=counted)
        spec = self._spec_of(request, submission, by, selection, snapshot, job)
        await self.check_ways(spec, snapshot)
        return spec, chosen

    async def _choose_end(
        self,
        request: JobRequest,
        selection: SelectionSnapshot,
        snapshot: BrokerSnapshot,
        on_progress: OnProgress | None,
    ) -> tuple[SelectionSnapshot, int | None]:
        """Decide where the selection ends. Return it with the number of matching messages, None if unknown.

        Messages that arrived after the plan do not belong to the selection. If messages have left the queue,
        messages behind the selection have moved up. The position of the plan's last message shows how many
        have left. CountMismatch if that message is not found.
        """
        asked, cost = request.selection, snapshot.cost(request.queue)
        follows_last = bool(asked.last_digest) and (
            cost.price is Price.FREE or bool(selection.filter)
        )
        if not follows_last and (request.expected_count is None or not selection.filter):
            if asked.is_planned and asked.limit is not None and selection.count < asked.limit:
                raise CountMismatch(asked.limit, selection.count)
            return selection, None if selection.filter else selection.count
        source, wanted = snapshot.one(request.queue), parse_filter(selection.filter)
        counted = DiscardRequest(queue=request.queue, reason=request.reason)
        dry_run = DryRun(counted, source, wanted, self._clock.now())
        most = min(asked.place, selection.count) if follows_last else selection.count
        last_place = matching = 0
        async with aclosing(
            self._first_messages(dry_run, request.queue, most, cost, snapshot.ready, on_progress)
        ) as messages:
            async for _ in messages:
                if dry_run.last == asked.last_digest:
                    last_place, matching = dry_run.seen, dry_run.matching
        if not follows_last:
            return selection, dry_run.matching
        left = asked.place - last_place
        count = (asked.limit or asked.place) - left
        if not last_place or count > snapshot.ready:
            found = dry_run.matching if selection.filter else selection.count
            raise CountMismatch(asked.count or 0, found)
        ended = replace(selection, count=count, behind=snapshot.ready - count)
        if not selection.filter:
            return ended, count
        return ended, matching if count == last_place else None

    def _spec_of(
        self,
        request: JobRequest,
        submission: Submission,
        by: Who,
        selection: SelectionSnapshot,
        snapshot: BrokerSnapshot,
        job: str,
    ) -> JobSpec:
        stamped, text = submission.stamped, ""
        if isinstance(request, RedriveRequest):
            if request.change and not self._settings.editing:
                raise NotAllowed("changing messages is switched off here")
            text = target_text(request.target, snapshot.one(request.queue))
        if stamped is None:
            design = snapshot.design_of(request.queue)
            stamped = design is not None and design.stamps_redrives
        return JobSpec(
            request=request,
            broker=self._broker.journal_name,
            selection=selection,
            target_text=text,
            by=by,
            key=submission.key,
            operation=submission.operation,
            stamped=stamped,
            export_to=export_file(request, self._settings, job, submission.export_to),
        )

    async def snapshot_for(self, spec: JobSpec) -> BrokerSnapshot:
        """Return the broker's present state for a resumed job. UnsafeOperation if no target is usable."""
        snapshot = await self._broker.snapshot(count=spec.queue)
        await self.check_ways(spec, snapshot)
        return snapshot

    async def _select(
        self, request: JobRequest, ready: int
    ) -> tuple[SelectionSnapshot, ChosenMessages | None]:
        """Return the present selection of a request, and its messages if a session holds them."""
        selection = request.selection
        if not selection.session:
            count = ready if selection.limit is None else min(selection.limit, ready)
            return SelectionSnapshot(count, selection.filter, behind=ready - count), None
        session = self._sessions.one(selection.session, request.queue)
        chosen = await session.choose(selection)
        digests = tuple(dead_letter.digest for dead_letter in chosen.dead_letters)
        count = session.view.skipped + session.view.held
        return SelectionSnapshot(count, selection.filter, digests), chosen

    async def check_ways(self, spec: JobSpec, snapshot: BrokerSnapshot) -> None:
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
        digests = tuple(failed.digest for failed in failures)
        request = structs.replace(
            job.spec.request,
            selection=Selection(queue=job.queue, count=len(digests)),
            reason=reason or f"failures of job {job.id}",
        )
        selection = SelectionSnapshot(depth.ready or 0, "", digests)
        return structs.replace(job.spec, request=request, selection=selection, by=by, key=None)

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
        source, cost = snapshot.one(request.queue), snapshot.cost(request.queue, killed=True)
        look = snapshot.cost(request.queue)
        selection, chosen = await self._select(request, snapshot.ready)
        spec = self._spec_of(request, submission, NOBODY, selection, snapshot, "JOB")
        wanted = parse_filter(selection.filter)
        dry_run = DryRun(request, source, wanted, self._clock.now(), snapshot.known_routes())
        others = await self.other_consumers(request.queue, snapshot, active)
        warnings = [*await self._run_dry(dry_run, spec, look, chosen, snapshot.ready, on_progress)]
        warnings += _warnings(spec, cost)
        plans = [plan for topology in snapshot.declared for plan in topology.plans]
        if (
            isinstance(request, RedriveRequest)
            and plans
            and not any(plan.parking.queue == request.queue for plan in plans)
        ):
            warnings.append(
                f"no given topology has a failure plan for {request.queue}: its messages start with"
                " attempt 1 again. Name the topology of its consumer (--topology)"
            )
        if dry_run.unread:
            which = _number_of(dry_run.unread, "has", "have")
            warnings.append(
                f"{which} headers that cannot be decoded: they are sent as bytes in {UNREAD}, and the"
                " handler does not see their values"
            )
        async with self._broker.query() as connection:
            ways = await dry_run.ways(connection, snapshot.live_routes())
        reaches = await self._find_reached_queues(ways, snapshot.live_routes())
        warnings[:0] = [
            f"{each.queue} has 0 consumers: messages wait there until one connects"
            for each in reaches
            if each.consumers == 0
        ]
        if others:
            warnings.insert(
                0,
                f"{request.queue} has other consumers, which also remove messages: "
                + "; ".join(others),
            )
        flaws = [way.flaw for way in ways if way.flaw]
        barred = []
        try:
            _check_returns(request, selection, chosen, snapshot)
        except UnsafeOperation as refused:
            barred = [str(refused)]
        if active is not None:
            barred.append(f"{request.queue!r} has an active job: {active.id}")
        watched, is_redrive = dry_run.timer.time, spec.kind is JobKind.REDRIVE
        counted = _count_selection(request, selection, dry_run)
        return JobPlan(
            kind=spec.kind,
            queue=spec.queue,
            target=spec.target_text,
            selection=counted,
            selected=selection.size,
            seen=dry_run.seen,
            matching=dry_run.matching,
            reasons=dry_run.reasons.groups(),
            errors=dry_run.errors.groups(),
            ways=ways,
            left_out=tuple(LeftOutCount(*one) for one in dry_run.left_out.most_common()),
            cost=cost,
            order=order_kept(request, len(ways)),
            warnings=tuple(warnings),
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
        cost: Cost,
        chosen: ChosenMessages | None,
        ready: int,
        on_progress: OnProgress | None,
    ) -> list[str]:
        """Show the messages to the dry run. Return warnings about messages that were not read."""
        if chosen is not None:
            turns = Turns()
            for dead_letter in chosen.dead_letters:
                delivery = chosen.session.delivery(dead_letter.id)
                dry_run.see(delivery)
                await turns.after(measure_memory(delivery))
            return _unread(chosen.not_looked_into)
        if cost.price is Price.REFUSED and not spec.forced:
            return [f"no message was read: {cost.text}"]
        selected = spec.selection.count
        most = self._settings.count_scan if spec.selection.filter else self._settings.scan
        count = min(selected, most)
        async with aclosing(
            self._first_messages(dry_run, spec.queue, count, cost, ready, on_progress)
        ) as messages:
            async for _ in messages:
                pass
        unread = _unread(dry_run.not_looked_into)
        if count < selected:
            return [f"only the first {count:,} of {selected:,} messages were read", *unread]
        return unread

    async def _first_messages(
        self,
        dry_run: DryRun,
        queue: str,
        count: int,
        cost: Cost,
        ready: int,
        on_progress: OnProgress | None,
    ) -> AsyncGenerator[None, None]:
        """Show the first messages to the dry run one by one, then requeue all of them in order.

        Waits at the end until the queue has `ready` ready messages again.
        """
        async with aclosing(walk(self._broker, queue, count, cost)) as messages:
            async for delivery in messages:
                dry_run.see(delivery)
                yield
                if on_progress is not None and dry_run.seen % _TELL_EVERY == 0:
                    on_progress(LookProgress(queue, dry_run.seen, count))
        if not cost.is_stream:
            await self._broker.wait_until_ready(queue, ready)


def _count_selection(
    request: JobRequest, selection: SelectionSnapshot, dry_run: DryRun
) -> Selection:
    """Return the selection with the count of the dry run, or with an estimate if it read only a part."""
    asked = request.selection
    counted = Selection(
        session=asked.session, ids=asked.ids, filter=asked.filter, queue=request.queue
    )
    if asked.session:
        return structs.replace(counted, count=selection.size)
    is_whole = dry_run.seen >= selection.count
    counted = structs.replace(
        counted,
        limit=selection.count,
        count=dry_run.matching if is_whole else selection.count,
        last_digest=dry_run.last,
        place=dry_run.seen,
    )
    if is_whole or not asked.filter:
        return counted
    if not dry_run.seen:
        return structs.replace(counted, estimate="no message was read")
    return structs.replace(
        counted,
        count=round(selection.count * dry_run.matching / dry_run.seen),
        estimate=f"the first {dry_run.seen:,} of {selection.count:,} messages were read",
    )


def _duplicates_text(pace: Pace, count: int) -> str:
    """Describe how many messages may be sent twice: those that were sent and not yet acked."""
    most = min(pace.in_flight, count)
    which = f"up to {most:,} messages" if most > 1 else "1 message"
    return f"{which}, if the job is killed or its broker stops"


def _unread(count: int) -> list[str]:
    if not count:
        return []
    which = _number_of(count, "has a body", "have bodies")
    return [
        f"{which} too large or too deeply nested for `payload.` terms (the limit is"
        f" {PAYLOAD_BYTES // 1024} KiB) and counted as not matching"
    ]


def _number_of(count: int, one: str, many: str) -> str:
    return f"{count} messages {many}" if count > 1 else f"1 message {one}"


def _check_returns(
    request: JobRequest,
    selection: SelectionSnapshot,
    chosen: ChosenMessages | None,
    snapshot: BrokerSnapshot,
) -> None:
    """Raise UnsafeOperation if messages that the job requeues could reach the queue's delivery limit.

    A job with a filter requeues the messages that do not match. A killed re-drive requeues all messages
    that it holds. How often they were requeued before is unknown until they are read. Messages that a
    session holds were read already. A job cannot take messages from a stream.
    """
    if snapshot.cost(request.queue).is_stream:  # `forced` does not apply
        check_cost(snapshot.cost(request.queue, killed=True), forced=False)
    by_filter = selection.filter and selection.digests is None
    if by_filter or (isinstance(request, RedriveRequest) and chosen is None):
        check_cost(snapshot.cost(request.queue, killed=True), forced=request.forced)


def _warnings(spec: JobSpec, cost: Cost) -> list[str]:
    request = spec.request
    found = [request.target.warning] if isinstance(request, RedriveRequest) else []
    if cost.price is Price.REFUSED:
        found.append(
            f"each time the job stops early, its held messages are requeued once more: {cost.text}"
        )
    if spec.kind is JobKind.DISCARD and not spec.export_to:
        found.append("without an export, discarded messages cannot be restored")
    return [text for text in found if text]
