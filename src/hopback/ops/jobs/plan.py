"""Create the plan of a job, which is the result of a dry run.

The dry run reads messages. It counts how many of them the job would move, and how many it would
leave in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from hopback.errors import UnsafeOperation
from hopback.headers.names import UNREAD
from hopback.ops.contract.requests import (
    DiscardRequest,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Selection,
    TargetKind,
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
from hopback.ops.jobs.return_watch import stop_rule_text
from hopback.ops.jobs.spec_builder import SpecBuilder, check_returns
from hopback.ops.messages.filters import PAYLOAD_BYTES
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import ChosenMessages
    from hopback.ops.jobs.job_record import JobRecord, JobSpec
    from hopback.topology.routing import RoutingTable

_REACHED = 50
"""Target queues whose consumers are counted. The number is limited, because the operator waits for it."""


async def make_plan(
    specs: SpecBuilder,
    asked: JobSpec,
    snapshot: BrokerSnapshot,
    others: Sequence[str],
    active: JobRecord | None,
    on_progress: OnProgress | None,
) -> JobPlan:
    """Create the plan of a job. The settings limit how many messages are read for it.

    `others` are other consumers of the queue, and `active` is the job that currently runs for it.
    """
    broker, request = specs.broker, asked.request
    spec, chosen = await specs.draft(asked, snapshot, "JOB")
    source, now = snapshot.dead_letter_queue(spec.queue), broker.clock.now()
    redrive = request if isinstance(request, RedriveRequest) else None
    dry_run = DryRun(request.selection, source, now, redrive, snapshot.known_routes())
    unread = await _run_dry(specs, dry_run, spec, chosen, snapshot, on_progress)
    live_routes = snapshot.live_routes()
    async with broker.query() as connection:
        ways = await dry_run.ways(connection, live_routes)
    reaches = await _find_reached_queues(broker, ways, live_routes)
    cost = snapshot.cost(spec.queue, killed=True)
    flaws = [way.flaw for way in ways if way.flaw]
    barred = []
    try:
        check_returns(spec, snapshot)
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
            *_overflow_warnings(snapshot, reaches, counted.count or 0, dry_run.body_bytes),
            *unread,
            *_message_warnings(spec, dry_run, cost, snapshot),
        ),
        flaws=(*barred, *(dict.fromkeys(flaws) if len(flaws) == len(ways) else ())),
        as_of=Moment(broker.clock.now()),
        watch_s=watched.seconds,
        watch_text=watched.text,
        export_to=spec.submission.export_to,
        conflict=None if active is None else active.view,
        changes=tuple(dry_run.changes),
        ramp=spec.pace.ramp,
        reaches=reaches,
        stop_rule=stop_rule_text(spec.pace, watched) if is_redrive else "",
        duplicates=_duplicates_text(spec.pace, counted.count or 0) if is_redrive else "",
    )


async def _find_reached_queues(
    broker: ManagedBroker, ways: Iterable[WayCheck], live_routes: RoutingTable | None
) -> tuple[ReachedQueue, ...]:
    """Return the queues that the targets lead to, with their consumers. They are limited to known
    routes.
    """
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
        depth = await broker.count_now(name)
        if depth is not None:
            found.append(ReachedQueue(name, depth.consumers, depth.ready))
    return tuple(found)


async def _run_dry(
    specs: SpecBuilder,
    dry_run: DryRun,
    spec: JobSpec,
    chosen: ChosenMessages | None,
    snapshot: BrokerSnapshot,
    on_progress: OnProgress | None,
) -> list[str]:
    """Pass messages to the dry run. Returns warnings about messages that were not read."""
    if chosen is not None:
        await dry_run.read_chosen(chosen)
        return _unread_text(chosen.not_looked_into)
    cost = snapshot.cost(spec.queue)
    if cost.price is Price.REFUSED and not spec.force:
        return [f"no message was read: {cost.text}"]
    most = specs.settings.count_scan if spec.filter else specs.settings.scan
    count = min(spec.span, most)
    await dry_run.read(specs.broker, snapshot, count, on_progress)
    unread = _unread_text(dry_run.not_looked_into)
    if dry_run.seen < count:
        missing = f"{count - dry_run.seen:,} of {count_of(count)}"
        return [
            f"{missing} could not be read: other clients hold them, or they have left the queue",
            *unread,
        ]
    if count < spec.span:
        return [f"only the first {count:,} of {spec.span:,} messages were read", *unread]
    return unread


def _count_selection(spec: JobSpec, dry_run: DryRun) -> Selection:
    """Return the selection with the counted or estimated number of messages."""
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
    """Describe how many messages can be sent twice, which are those that are sent but not acked."""
    most = min(pace.in_flight, count)
    which = f"up to {most:,} messages" if most > 1 else "1 message"
    return f"{which}, if the job is killed or its broker stops"


def _order_text(request: JobRequest, ways: int) -> str:
    """Describe whether messages keep their order."""
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


def _overflow_warnings(
    snapshot: BrokerSnapshot, reaches: Iterable[ReachedQueue], count: int, body_bytes: int
) -> list[str]:
    """Warn of queues that do not have room for `count` more messages and drop others instead."""
    found = []
    for each in reaches:
        queue = snapshot.effective(each.queue)
        if queue is None or queue.arguments.get("x-overflow") == "reject-publish":
            continue
        most = queue.arguments.get("x-max-length")
        most_bytes = queue.arguments.get("x-max-length-bytes")
        limit = ""
        if isinstance(most, int) and (each.messages or 0) + count > most:
            limit = count_of(most)
        elif isinstance(most_bytes, int) and body_bytes > most_bytes:
            limit = f"{most_bytes:,} bytes"
        if limit:
            found.append(
                f"{each.queue} keeps at most {limit}: when it is full, the broker removes or"
                " dead-letters messages"
            )
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
    if spec.kind is JobKind.DISCARD and not spec.submission.export_to:
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
