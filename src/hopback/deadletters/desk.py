"""Where a request becomes a plan or an order: selection, routes, cost and count are settled first."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.deadletters.ceremonies import ceremony_of
from hopback.deadletters.contract import JobPlan, Moment, Price
from hopback.deadletters.filters import PAYLOAD_BYTES, parse_filter
from hopback.deadletters.freezing import (
    check_request,
    chosen_letters,
    export_file,
    frozen_head,
    frozen_letters,
    spec_of,
)
from hopback.deadletters.head import Turns, held_size, walk
from hopback.deadletters.journal import JobSpec, SelectionSnapshot
from hopback.deadletters.planning import Rehearsal, order_kept, watch_seconds
from hopback.deadletters.requests import FromSession, JobKind, RedriveRequest
from hopback.deadletters.session import check_cost
from hopback.deadletters.targets import known_ways, target_flaw
from hopback.deadletters.workshop import Bench
from hopback.errors import BadRequest, CountMismatch, NoSuch, UnsafeOperation
from hopback.headers.names import UNREAD
from hopback.topology.model import QueueType

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.deadletters.contract import DeadLetter
    from hopback.deadletters.journal import JobRecord, Journal
    from hopback.deadletters.places import Places, Scene
    from hopback.deadletters.requests import Request, Settings, Who
    from hopback.deadletters.session import BrowseSession, Browsing
    from hopback.deadletters.workshop import HandOver

__all__ = ["Desk", "Order"]

_FAILURES = 10_000


@dataclass(frozen=True, slots=True)
class Order:
    """A job that may begin."""

    ident: str
    spec: JobSpec
    bench: Bench
    hand_over: HandOver | None


@dataclass(frozen=True, slots=True)
class _Picked:
    """What a request selects now; the letters if a session holds them."""

    frozen: SelectionSnapshot
    session: BrowseSession | None = None
    letters: tuple[DeadLetter, ...] = ()
    not_looked_into: int = 0

    @property
    def count(self) -> int:
        """How many messages that is."""
        return self.frozen.count if self.session is None else len(self.letters)


class Desk:
    """Settles requests."""

    def __init__(
        self, places: Places, browsing: Browsing, settings: Settings, clock: Clock
    ) -> None:
        self._places = places
        self._browsing = browsing
        self._settings = settings
        self._clock = clock

    # --- orders

    async def order(self, request: Request, broker: str, ident: str) -> Order:
        """A job for this request; refused in time where it could not end well."""
        check_request(request)
        export_to = export_file(request, self._settings, ident)
        scene = await self._places.scene()
        bench = await self._bench(scene, request.queue, forced=request.forced)
        picked = await self._picked(request, bench.ready)
        _check_returns(request, picked, bench)
        await self._check_count(request, picked)
        spec = spec_of(request, picked.frozen, broker, stamped=bench.ceremony.stamped)
        spec = replace(spec, export_to=export_to)
        await self._check_ways(spec, bench)
        session, letters = picked.session, picked.letters
        hand_over = None if session is None else lambda: session.hand_over(letters)
        return Order(ident, spec, bench, hand_over)

    async def bench(self, spec: JobSpec) -> Bench:
        """What a job that goes on needs to know, found out anew."""
        bench = await self._bench(await self._places.scene(), spec.queue, forced=spec.forced)
        await self._check_ways(spec, bench)
        return bench

    async def _bench(self, scene: Scene, queue: str, *, forced: bool) -> Bench:
        source = scene.one(queue)
        depth, _ = await self._places.depth(queue)
        if depth.ready is None:
            raise UnsafeOperation(
                f"nobody tells how many messages {queue!r} has: grant the user `configure` on it, which"
                " RabbitMQ 4.3 wants for that question, or give the management address"
            )
        return Bench(
            source,
            self._places.cost(scene, queue),
            depth.ready,
            ceremony_of(self._places.design_of(queue)),
            scene.table(),
            scene.routes(),
            forced,
            _is_classic(scene, queue),
        )

    async def _picked(self, request: Request, ready: int) -> _Picked:
        selection = request.selection
        if not isinstance(selection, FromSession):
            frozen = frozen_head(ready, selection)
            return _Picked(frozen)
        session = self._browsing.one(selection.session)
        if session.source.name != request.queue:
            # Whose session it is, is nobody's business who asks about another queue.
            raise NoSuch("session", selection.session)
        found = await chosen_letters(session, selection)
        frozen = frozen_letters(session, found.letters, selection.filter)
        return _Picked(frozen, session, found.letters, found.not_looked_into)

    async def _check_count(self, request: Request, picked: _Picked) -> None:
        found = picked.count
        if picked.session is None and request.expected_count is not None and picked.frozen.filter:
            found = await self._matching(request.queue, picked.frozen)
        if request.expected_count is not None and request.expected_count != found:
            raise CountMismatch(request.expected_count, found)

    async def _matching(self, queue: str, frozen: SelectionSnapshot) -> int:
        """How many of the first messages the filter wants; costs one look."""
        spec = _counting_spec(queue, frozen)
        source = (await self._places.scene()).one(queue)
        rehearsal = Rehearsal(spec, source, parse_filter(frozen.filter), self._clock.now())
        async with aclosing(walk(self._places.broker, queue, frozen.count)) as messages:
            async for delivery in messages:
                rehearsal.see(delivery)
        return rehearsal.matching

    async def _check_ways(self, spec: JobSpec, bench: Bench) -> None:
        """Every way that is known beforehand leads to a queue; if one of several does, that will do."""
        if spec.kind is not JobKind.REDRIVE:
            return
        ways = known_ways(spec.target, bench.source)
        async with self._places.line() as connection:
            flaws = [await target_flaw(connection, way, bench.table) for way in ways]
        if flaws and all(flaws):
            raise UnsafeOperation(f"nothing was moved: {flaws[0]}")

    async def spec_for_failures(
        self, job: JobRecord, journal: Journal, by: Who, reason: str
    ) -> JobSpec:
        """The same again, for exactly what the job could not move."""
        failures = await journal.failures(job.id, 0, _FAILURES)
        if job.is_active or not failures:
            state = f"it is {job.state} with {len(failures)} failures"
            raise BadRequest("job", f"one that has ended with failures; {state}")
        depth, _ = await self._places.depth(job.queue)
        digests = tuple(failed.digest for failed in failures)
        return replace(
            job.spec,
            selection=SelectionSnapshot(depth.ready or 0, "", digests),
            by=by,
            why=reason or f"what job {job.id} could not move",
            key=None,
        )

    # --- plans

    async def plan(self, request: Request, broker: str) -> JobPlan:
        """What a job for this request would do; looks at no more messages than the settings allow."""
        check_request(request)
        scene = await self._places.scene()
        bench = await self._bench(scene, request.queue, forced=request.forced)
        picked = await self._picked(request, bench.ready)
        spec = spec_of(request, picked.frozen, broker, stamped=bench.ceremony.stamped)
        spec = replace(spec, export_to=export_file(request, self._settings, "JOB"))
        wanted = parse_filter(picked.frozen.filter)
        rehearsal = Rehearsal(spec, bench.source, wanted, self._clock.now(), bench.routes)
        warnings = [*await self._rehearse(rehearsal, picked, bench), *_warnings(spec, bench)]
        if rehearsal.unread:
            warnings.append(_unread_headers(rehearsal.unread))
        async with self._places.line() as connection:
            ways = await rehearsal.ways(connection, bench.table)
        flaws = [way.flaw for way in ways if way.flaw]
        barred = []
        try:
            _check_returns(request, picked, bench)
        except UnsafeOperation as refused:
            barred = [str(refused)]
        watched = spec.pace.watch_s
        return JobPlan(
            kind=spec.kind,
            queue=spec.queue,
            target=str(spec.target) if spec.kind is JobKind.REDRIVE else "",
            selected=picked.count,
            seen=rehearsal.seen,
            matching=rehearsal.matching,
            reasons=rehearsal.reasons,
            errors=rehearsal.errors,
            ways=ways,
            left_out=rehearsal.left_out,
            cost=bench.cost,
            order=order_kept(spec, len(ways)),
            warnings=tuple(warnings),
            flaws=(*barred, *(dict.fromkeys(flaws) if len(flaws) == len(ways) else ())),
            as_of=Moment(self._clock.now()),
            watch_s=watch_seconds(bench.source.plans) if watched is None else watched,
            export_to=spec.export_to,
        )

    async def _rehearse(self, rehearsal: Rehearsal, picked: _Picked, bench: Bench) -> list[str]:
        """See the messages; what could not be seen is said."""
        if picked.session is not None:
            turns = Turns()
            for letter in picked.letters:
                delivery = picked.session.delivery(letter.id)
                rehearsal.see(delivery)
                await turns.after(held_size(delivery))
            return _unread(picked.not_looked_into)
        if bench.cost.price is Price.REFUSED and not bench.forced:
            return [f"no message was looked at: {bench.cost.text}"]
        count = min(picked.frozen.count, self._settings.scan)
        async with aclosing(walk(self._places.broker, bench.source.name, count)) as messages:
            async for delivery in messages:
                rehearsal.see(delivery)
        unread = _unread(rehearsal.not_looked_into)
        if count < picked.frozen.count:
            seen = f"only the first {count} of {picked.frozen.count} messages were looked at"
            return [seen, *unread]
        return unread


def _unread(count: int) -> list[str]:
    if not count:
        return []
    which = f"{count} messages have bodies" if count > 1 else "1 message has a body"
    return [
        f"{which} too large or too deeply nested for `payload.` terms to look into (the limit is"
        f" {PAYLOAD_BYTES // 1024} KiB): left out, whatever they hold"
    ]


def _unread_headers(count: int) -> str:
    which = f"{count} messages have" if count > 1 else "1 message has"
    return (
        f"{which} headers that nobody could read: they go back as bytes of {UNREAD}, and the handler"
        " does not see what they say"
    )


def _is_classic(scene: Scene, name: str) -> bool:
    queue = scene.effective(name)
    return queue is not None and queue.type is QueueType.CLASSIC


def _check_returns(request: Request, picked: _Picked, bench: Bench) -> None:
    """What a job holds and gives back must not have used up its deliveries by that.

    A filter gives back what it leaves out. A re-drive gives back what it holds when it is killed, and
    nobody sees beforehand how often that came back already. What a session holds is in hand.
    """
    by_filter = picked.frozen.filter and picked.frozen.digests is None
    if by_filter or (isinstance(request, RedriveRequest) and picked.session is None):
        check_cost(bench.cost, forced=bench.forced)


def _warnings(spec: JobSpec, bench: Bench) -> list[str]:
    found = [spec.target.warning] if spec.kind is JobKind.REDRIVE else []
    if bench.cost.price is Price.REFUSED:
        found.append(
            "each time the job stops early, what it held has come back once more:"
            f" {bench.cost.text}"
        )
    if spec.kind is JobKind.DISCARD and not spec.export_to:
        found.append("what is discarded is written down nowhere, unless an export is named")
    return [text for text in found if text]


def _counting_spec(queue: str, frozen: SelectionSnapshot) -> JobSpec:
    return JobSpec(JobKind.DISCARD, queue, "", frozen)
