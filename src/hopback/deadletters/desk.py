"""From a request to a plan or a job: selection, routes, cost and count are settled first."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

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
from hopback.errors import BadRequest, CountMismatch, NoSuch, UnsafeOperation
from hopback.headers.names import UNREAD
from hopback.renamed import old_names

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.deadletters.contract import Cost
    from hopback.deadletters.journal import JobRecord, Journal
    from hopback.deadletters.places import Places, Scene
    from hopback.deadletters.requests import Request, Settings, Who
    from hopback.deadletters.session import Browsing, Sifted

__all__ = ["Desk"]

_FAILURES = 10_000


class Desk:
    """Settles requests."""

    def __init__(
        self, places: Places, browsing: Browsing, settings: Settings, clock: Clock
    ) -> None:
        self._places = places
        self._browsing = browsing
        self._settings = settings
        self._clock = clock

    # --- jobs

    async def spec(
        self, request: Request, scene: Scene, broker: str, job: str
    ) -> tuple[JobSpec, Sifted | None]:
        """A job for this request, and what a session holds of it; refused where it could not end well."""
        selection, held = await self._selected(request, scene.ready)
        _check_returns(request, selection, held, scene)
        await self._check_count(request, selection, held)
        spec = self._spec_of(request, selection, scene, broker, job)
        await self.check_ways(spec, scene)
        return spec, held

    def _spec_of(
        self, request: Request, selection: SelectionSnapshot, scene: Scene, broker: str, job: str
    ) -> JobSpec:
        design = scene.design_of(request.queue)
        stamped = design is not None and design.stamps_redrives
        spec = spec_of(request, selection, broker, stamped=stamped)
        return replace(spec, export_to=export_file(request, self._settings, job))

    async def scene_for(self, spec: JobSpec) -> Scene:
        """The broker as a job finds it that goes on; UnsafeOperation if nothing can be moved any more."""
        scene = await self._places.scene(count=spec.queue)
        await self.check_ways(spec, scene)
        return scene

    async def _selected(
        self, request: Request, ready: int
    ) -> tuple[SelectionSnapshot, Sifted | None]:
        """What a request selects now, and the letters if a session holds them."""
        selection = request.selection
        if not isinstance(selection, FromSession):
            return frozen_head(ready, selection), None
        session = self._browsing.one(selection.session)
        if session.source.name != request.queue:
            # Whose session it is, is nobody's business who asks about another queue.
            raise NoSuch("session", selection.session)
        held = await chosen_letters(session, selection)
        return frozen_letters(session, held.letters, selection.filter), held

    async def _check_count(
        self, request: Request, selection: SelectionSnapshot, held: Sifted | None
    ) -> None:
        found = selection.size
        if held is None and request.expected_count is not None and selection.filter:
            found = await self._matching(request.queue, selection)
        if request.expected_count is not None and request.expected_count != found:
            raise CountMismatch(request.expected_count, found)

    async def _matching(self, queue: str, selection: SelectionSnapshot) -> int:
        """How many of the first messages the filter wants; costs one look."""
        spec = JobSpec(JobKind.DISCARD, queue, "", selection)
        source = (await self._places.scene()).one(queue)
        rehearsal = Rehearsal(spec, source, parse_filter(selection.filter), self._clock.now())
        async with aclosing(walk(self._places.broker, queue, selection.count)) as messages:
            async for delivery in messages:
                rehearsal.see(delivery)
        return rehearsal.matching

    async def check_ways(self, spec: JobSpec, scene: Scene) -> None:
        """Every way that is known beforehand leads to a queue; if one of several does, that will do."""
        if spec.kind is not JobKind.REDRIVE:
            return
        ways = known_ways(spec.target, scene.one(spec.queue))
        table = scene.table()
        async with self._places.line() as connection:
            flaws = [await target_flaw(connection, way, table) for way in ways]
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
        scene = await self._places.scene(count=request.queue)
        source, cost = scene.one(request.queue), scene.cost(request.queue)
        selection, held = await self._selected(request, scene.ready)
        spec = self._spec_of(request, selection, scene, broker, "JOB")
        wanted = parse_filter(selection.filter)
        rehearsal = Rehearsal(spec, source, wanted, self._clock.now(), scene.routes())
        warnings = [*await self._rehearse(rehearsal, spec, cost, held), *_warnings(spec, cost)]
        if rehearsal.unread:
            warnings.append(_unread_headers(rehearsal.unread))
        async with self._places.line() as connection:
            ways = await rehearsal.ways(connection, scene.table())
        flaws = [way.flaw for way in ways if way.flaw]
        barred = []
        try:
            _check_returns(request, selection, held, scene)
        except UnsafeOperation as refused:
            barred = [str(refused)]
        watched = spec.pace.watch_s
        return JobPlan(
            kind=spec.kind,
            queue=spec.queue,
            target=str(spec.target) if spec.kind is JobKind.REDRIVE else "",
            selected=selection.size,
            seen=rehearsal.seen,
            matching=rehearsal.matching,
            reasons=rehearsal.reasons,
            errors=rehearsal.errors,
            ways=ways,
            left_out=rehearsal.left_out,
            cost=cost,
            order=order_kept(spec, len(ways)),
            warnings=tuple(warnings),
            flaws=(*barred, *(dict.fromkeys(flaws) if len(flaws) == len(ways) else ())),
            as_of=Moment(self._clock.now()),
            watch_s=watch_seconds(source.plans) if watched is None else watched,
            export_to=spec.export_to,
        )

    async def _rehearse(
        self, rehearsal: Rehearsal, spec: JobSpec, cost: Cost, held: Sifted | None
    ) -> list[str]:
        """See the messages; what could not be seen is said."""
        if held is not None:
            turns = Turns()
            for letter in held.letters:
                delivery = held.session.delivery(letter.id)
                rehearsal.see(delivery)
                await turns.after(held_size(delivery))
            return _unread(held.not_looked_into)
        if cost.price is Price.REFUSED and not spec.forced:
            return [f"no message was looked at: {cost.text}"]
        selected = spec.selection.count
        count = min(selected, self._settings.scan)
        async with aclosing(walk(self._places.broker, spec.queue, count)) as messages:
            async for delivery in messages:
                rehearsal.see(delivery)
        unread = _unread(rehearsal.not_looked_into)
        if count < selected:
            return [f"only the first {count} of {selected} messages were looked at", *unread]
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


def _check_returns(
    request: Request, selection: SelectionSnapshot, held: Sifted | None, scene: Scene
) -> None:
    """What a job holds and gives back must not have used up its deliveries by that.

    A filter gives back what it leaves out. A re-drive gives back what it holds when it is killed, and
    nobody sees beforehand how often that came back already. What a session holds is in hand.
    """
    by_filter = selection.filter and selection.digests is None
    if by_filter or (isinstance(request, RedriveRequest) and held is None):
        check_cost(scene.cost(request.queue), forced=request.forced)


def _warnings(spec: JobSpec, cost: Cost) -> list[str]:
    found = [spec.target.warning] if spec.kind is JobKind.REDRIVE else []
    if cost.price is Price.REFUSED:
        found.append(
            f"each time the job stops early, what it held has come back once more: {cost.text}"
        )
    if spec.kind is JobKind.DISCARD and not spec.export_to:
        found.append("what is discarded is written down nowhere, unless an export is named")
    return [text for text in found if text]


__getattr__ = old_names(__name__, {"Order": "hopback.deadletters.journal.JobSpec"})
