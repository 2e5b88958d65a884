"""What is shown of queues and messages, without changing either."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from hopback.errors import NoSuch
from hopback.ops.brokers.snapshot import held_back_for
from hopback.ops.brokers.targets import Aim, aim_at, known_ways, target_flaw, target_text
from hopback.ops.browse.cost import check_cost
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import BY_DESIGN, Target, TargetKind
from hopback.ops.contract.values import (
    Depth,
    FailureRecord,
    HeaderView,
    HeldBack,
    MessageView,
    Moment,
    QueueDetail,
    QueueSummary,
    TargetChoice,
    WayCheck,
)
from hopback.ops.jobs.plan import chosen_messages
from hopback.ops.messages.archive import write_line
from hopback.ops.messages.dead_letter import read_dead_letter, recorded_failure
from hopback.ops.messages.filters import parse_filter
from hopback.ops.messages.plain import (
    amqp_type,
    plain_headers,
    plain_payload,
    plain_properties,
    plain_text,
    plain_value,
)
from hopback.ops.messages.story import timeline, what_happened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.clock import Clock
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.contract.requests import Selection
    from hopback.ops.jobs.journal import JobRecord


_CHOICES = (
    TargetKind.DESIGN,
    TargetKind.FAILED_QUEUE,
    TargetKind.RETRY_EXCHANGE,
    TargetKind.ORIGIN_EXCHANGE,
)


def summary_of(
    found: DeadLetterQueue,
    counted: tuple[Depth, QueueReading | None] | None,
    active: JobRecord | None,
    now: float,
    readings: Mapping[str, QueueReading] | None,
    holding: Iterable[QueueReading],
) -> QueueSummary:
    """A row of the list; not counted means that the queue is not on the broker."""
    depth, reading = counted or (Depth(None, None, None, "nobody", Moment(now)), None)
    return QueueSummary(
        queue=found.name,
        main_queue=found.main_queue,
        origins=found.origins,
        retry_exchange=found.retry_exchange,
        label=found.label,
        known_by=found.known_by,
        depth=depth.shown_at(now),
        exists=counted is not None,
        active_job=None if active is None else active.view,
        state=None if reading is None else reading.state,
        idle_since=None if reading is None else reading.idle_since,
        held_back=tuple(HeldBack(queue, count) for queue, count in held_back_for(found, holding)),
        consumed=_origins(found, readings, consumed=True),
        unconsumed=_origins(found, readings, consumed=False),
    )


def _origins(
    found: DeadLetterQueue, readings: Mapping[str, QueueReading] | None, *, consumed: bool
) -> tuple[str, ...] | None:
    """The queues of origin with or without a consumer; None where that is not known."""
    if readings is None:
        return None
    counts = {name: readings[name].counts.consumers for name in found.origins if name in readings}
    return tuple(
        name for name, count in counts.items() if count is not None and bool(count) == consumed
    )


class Views:
    """Looks, and tells what it saw."""

    def __init__(self, live: ManagedBroker, sessions: Sessions, clock: Clock) -> None:
        self._live = live
        self._sessions = sessions
        self._clock = clock

    async def detail(
        self, snapshot: BrokerSnapshot, found: DeadLetterQueue, summary: QueueSummary
    ) -> QueueDetail:
        """Everything about a queue that can be known without looking into it."""
        cost = snapshot.cost(found.name)
        queue = snapshot.effective(found.name)
        table = snapshot.table()
        targets: list[TargetChoice] = []
        async with self._live.connected() as connection:
            for kind in _CHOICES:
                target = Target(kind)
                ways = known_ways(target, found)
                if kind is TargetKind.FAILED_QUEUE and not found.has_plan:
                    continue  # the default is the same, in the same words
                if not ways and kind is not TargetKind.ORIGIN_EXCHANGE:
                    continue
                flaws = [await target_flaw(connection, way, table) for way in ways]
                one = ways[0] if len(ways) == 1 else None
                targets.append(
                    TargetChoice(
                        kind=kind,
                        text=target_text(target, found),
                        exchange=None if one is None else one.exchange,
                        routing_key=None if one is None else one.routing_key,
                        warning=target.warning,
                        flaw=flaws[0] if flaws and all(flaws) else None,
                        is_default=kind is TargetKind.DESIGN,
                    )
                )
        return QueueDetail(
            **{name: getattr(summary, name) for name in summary.__struct_fields__},
            type=None if queue is None else queue.type,
            limit=cost.limit,
            cost=cost,
            job_cost=snapshot.cost(found.name, killed=True),
            targets=tuple(targets),
            broker_version=str(snapshot.version),
            limit_lifted=self._live.is_lifted(snapshot, found.name),
            can_lift=not isinstance(snapshot.lifting_policy(found.name), str),
        )

    async def message(self, session: BrowseSession, message: str) -> MessageView:
        """One message, and where it would go."""
        dead_letter, delivery = session.dead_letter(message), session.delivery(message)
        aim = aim_at(BY_DESIGN, delivery, dead_letter.origin, session.source)
        way, no_way = None, ""
        if isinstance(aim, Aim):
            snapshot = await self._live.snapshot()
            async with self._live.connected() as connection:
                flaw = await target_flaw(connection, aim.redrive, snapshot.table())
            way = WayCheck(aim.redrive.exchange, aim.redrive.routing_key, 1, flaw)
        else:
            no_way = aim
        failure, failed = None, recorded_failure(delivery)
        if failed is not None and (failed.type or failed.message or failed.stack):
            said = (failed.type, failed.message, failed.frame, failed.stack, failed.host)
            failure = FailureRecord(*map(plain_text, said))
        payload, encoding = plain_payload(delivery)
        headers, more_headers = plain_headers(delivery.properties.headers)
        return MessageView(
            dead_letter=dead_letter,
            sentence=what_happened(dead_letter, delivery),
            timeline=timeline(delivery, dead_letter),
            failure=failure,
            way=way,
            no_way=no_way,
            properties=plain_properties(delivery.properties),
            headers=tuple(
                HeaderView(plain_text(name), amqp_type(value), plain_value(value))
                for name, value in headers
            ),
            more_headers=more_headers,
            payload=payload,
            payload_encoding=encoding,
            payload_bytes=len(delivery.body),
            body_url=f"/admin/dlq/sessions/{session.id}/messages/{dead_letter.id}/body",
        )

    async def lines_of_queue(
        self, queue: str, selection: Selection, *, forced: bool
    ) -> AsyncGenerator[bytes, None]:
        """The messages that match, as lines; given back when the last was read."""
        wanted, limit = parse_filter(selection.filter), selection.limit
        snapshot = await self._live.snapshot()
        source, cost = snapshot.one(queue), snapshot.cost(queue)
        check_cost(cost, forced=forced)
        depth, _ = await self._live.depth(queue)
        ready = depth.ready or 0
        count = ready if limit is None else min(limit, ready)
        place, now = 0, self._clock.now()
        async with aclosing(walk(self._live.broker, queue, count, cost)) as messages:
            async for delivery in messages:
                place += 1
                dead_letter = read_dead_letter(delivery, place, source)
                if wanted.matches(dead_letter, delivery, now):
                    yield write_line(delivery, dead_letter)

    async def lines_of_session(
        self, queue: str, selection: Selection
    ) -> AsyncGenerator[bytes, None]:
        """The selected messages of a session, as lines; NoSuch if it belongs to another queue."""
        session, turns = self._sessions.one(selection.session), Turns()
        if session.source.name != queue:
            raise NoSuch("session", selection.session)
        for dead_letter in (await chosen_messages(session, selection)).dead_letters:
            delivery = session.delivery(dead_letter.id)
            yield write_line(delivery, dead_letter)
            await turns.after(measure_memory(delivery))
