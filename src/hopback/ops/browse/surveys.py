"""Errors across all queues, and how their depths went: what is known without looking each time.

A survey goes through every queue that looking does not harm and that nobody works on, and keeps its groups
in the journal. Of a stream, and of the files that discards wrote, it reads what is new since the last time:
that takes nothing from anybody. Depths are kept every few minutes, whether or not surveys are wanted. All
of it survives a restart, and two services with one journal do the work of one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, defaultdict
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hopback.errors import BadLine, BadRequest, HopbackError
from hopback.message import Received
from hopback.ops.browse.stream_head import offset_of
from hopback.ops.browse.walk import walk
from hopback.ops.contract.codec import encode, from_json
from hopback.ops.contract.requests import GroupBy, JobKind
from hopback.ops.contract.surveys import (
    ErrorGroup,
    ErrorInQueue,
    ErrorOverview,
    QueueTrend,
    SurveyedArchive,
    SurveyedQueue,
    SurveyProgress,
    TrendSample,
)
from hopback.ops.contract.values import LookProgress, Moment, Price
from hopback.ops.messages.archive import discarded_files, job_and_run, lines_from, read_line
from hopback.ops.messages.grouping import Grouping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from hopback.clock import Clock
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.contract.values import Cost, Group, OnProgress, QueueSummary
    from hopback.ops.jobs.journal import Journal


_log = logging.getLogger("hopback.ops")
_SURVEY, _TREND, _ARCHIVE = "survey", "trend", "archive-survey"
_MOST_HELD_S = 300.0
"""A sixth of the time after which a broker takes back what is held: then a survey ends where it is."""
_MOST_READ = 100_000
"""Messages of one stream, or lines of files, in one survey: some ten seconds; the next goes on there."""
_MOST_READ_BYTES = 256 * 1024 * 1024  # the same for large ones
_MOST_GROUPS = 200  # of one queue: the rest of a long tail says nothing on a first page
_NEW_S = 86_400.0  # since yesterday
_SAMPLE_S = 300.0  # between two depths that are kept
_FINE = 288  # of them for a day
_DRAWN = 48  # points of a day in a line that is as wide as a word or two
_COARSE_S = 3600.0  # an hour between older ones
_COARSE = 720  # of those for a month
_T = TypeVar("_T")


class _QueueSurvey(Struct, frozen=True, rename="camel", kw_only=True):
    """The last survey of one queue, as it is kept."""

    at: Moment
    began: Moment
    seen: int
    ready: int
    took_s: float
    groups: tuple[ErrorGroup, ...]
    offset: int | None = None
    """Of the last message that was read of a stream."""


class _ArchiveSurvey(Struct, frozen=True, rename="camel", kw_only=True):
    """What is known of one file that a discard wrote, up to a position in it.

    It is kept by job and run: each run writes one file, on one host. `place` is where it was read
    last, host and folder: only who looks there can tell that it is gone.
    """

    place: str = ""
    file: str = ""
    job: str = ""
    at: Moment = Moment(0)
    queue: str = ""
    seen: int = 0
    position: int = 0
    groups: tuple[ErrorGroup, ...] = ()


class Surveys:
    """Surveys queues, keeps what was found, and tells it."""

    def __init__(
        self,
        live: ManagedBroker,
        journal: Journal,
        broker: str,
        clock: Clock,
        queues: Callable[[], Awaitable[tuple[QueueSummary, ...]]],
        held: Callable[[str], int],
        exports: Path | None = None,
    ) -> None:
        """`exports` is the folder in which discards write what they remove."""
        self._live = live
        self._journal = journal
        self._broker = broker
        self._clock = clock
        self._queues = queues
        self._held = held
        self._exports = exports
        self.every_s: float | None = None
        """How often queues are surveyed by themselves; None: only when somebody asks."""
        self.running: SurveyProgress | None = None
        """How far the survey is that runs now."""
        self._on_progress: OnProgress | None = None
        self._turn = asyncio.Lock()
        self.recent: dict[str, QueueTrend] = {}
        """The last day of each queue, as drawn in a list; read from the store with each sample."""

    async def errors(self) -> ErrorOverview:
        """The errors of all queues that have messages, by the last survey of each."""
        kept, archives = await self._kept(), await self._read(_ARCHIVE, _ArchiveSurvey)
        queues, snapshot = await self._queues(), await self._live.recent_snapshot()
        why_not = {one.queue: self._why_not(one, snapshot) for one in queues}
        full = {one.queue for one in queues if one.depth.total != 0}
        now = self._clock.now()
        return ErrorOverview(
            items=_with_discarded(
                _together({name: kept[name] for name in kept if name in full}, now), archives
            ),
            queues=tuple(
                SurveyedQueue(
                    queue=name,
                    at=None if name not in kept else kept[name].at,
                    seen=0 if name not in kept else kept[name].seen,
                    ready=0 if name not in kept else kept[name].ready,
                    took_s=0.0 if name not in kept else kept[name].took_s,
                    why_not=reason,
                    is_stream=name in kept and kept[name].offset is not None,
                )
                for name, reason in sorted(why_not.items())
            ),
            archives=tuple(
                SurveyedArchive(file=one.file, queue=one.queue, at=one.at, seen=one.seen)
                for _, one in sorted(archives.items())
            ),
            messages=sum(kept[name].seen for name in kept if name in why_not),
            survey_s=self.every_s,
            running=self.running,
        )

    async def by_queue(self) -> dict[str, tuple[Moment, tuple[ErrorGroup, ...]]]:
        """When each queue was last surveyed, and its errors; new are those that its first survey had not."""
        return {
            name: (
                one.at,
                tuple(
                    replace(group, is_new=(group.first_seen or 0.0) > one.began + _MOST_HELD_S)
                    for group in one.groups
                ),
            )
            for name, one in (await self._kept()).items()
        }

    async def run(
        self,
        *,
        not_after: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ErrorOverview:
        """Survey every queue that may be; those that were surveyed after `not_after` are left out."""
        async with self._turn:  # two at once would hold each other's messages
            self._on_progress = on_progress
            try:
                await self._run(not_after)
            finally:
                self.running = self._on_progress = None
        return await self.errors()

    async def _run(self, not_after: float | None) -> None:
        kept = await self._kept()
        snapshot = await self._live.snapshot()
        wanted = []
        for one in await self._queues():
            last = kept.get(one.queue)
            fresh = last is not None and not_after is not None and last.at > not_after
            # What the broker counts of a stream is late: whether there is something new, reading tells.
            has_some = one.messages_ready or snapshot.cost(one.queue).is_stream
            if not fresh and has_some and not self._why_not(one, snapshot):
                wanted.append(one)
        ahead = sum(_ahead(one, kept.get(one.queue)) for one in wanted)
        self.running = SurveyProgress("", 0, ahead)
        for one in wanted:
            last = kept.get(one.queue)
            if await self._is_busy(one.queue):
                continue  # a job or a look has begun there meanwhile
            source, cost = snapshot.one(one.queue), snapshot.cost(one.queue)
            survey = self._survey_stream if cost.is_stream else self._survey
            found = await survey(source, cost, one.messages_ready or 0, last)
            documents = {one.queue: encode(found).decode()}
            await self._journal.remember(self._broker, _SURVEY, documents, self._clock.now())
        await self._survey_archives()

    async def _survey(
        self, source: DeadLetterQueue, cost: Cost, ready: int, last: _QueueSurvey | None
    ) -> _QueueSurvey:
        began, grouping, seen = self._clock.now(), _grouping(), 0
        async with aclosing(walk(self._live.broker, source.name, ready, cost)) as messages:
            async for delivery in messages:
                seen += 1
                grouping.see(delivery, seen, source)
                # Asking the time for each message would cost as much as grouping it.
                if seen % 256 == 0:
                    self._tell(source.name, 256)
                    if self._clock.now() - began > _MOST_HELD_S:
                        break
        self._tell(source.name, seen % 256)
        now = self._clock.now()
        met = () if last is None else last.groups
        before = {one.fingerprint: one.first_seen or Moment(now) for one in met}
        groups = tuple(
            _error_of(group, before.get(group.key, Moment(now)))
            for group in grouping.groups()[:_MOST_GROUPS]
        )
        return _QueueSurvey(
            at=Moment(now),
            began=Moment(began) if last is None else last.began,
            seen=seen,
            ready=ready,
            took_s=round(now - began, 3),
            groups=groups,
        )

    async def _survey_stream(
        self, source: DeadLetterQueue, cost: Cost, ready: int, last: _QueueSurvey | None
    ) -> _QueueSurvey:
        """What is new since the last time, added to what was known then."""
        began, grouping, seen, size = self._clock.now(), _grouping(), 0, 0
        offset = None if last is None else last.offset
        newest, is_same = offset, offset is None
        reading = walk(self._live.broker, source.name, _MOST_READ, cost, offset=offset)
        async with aclosing(reading) as messages:
            async for delivery in messages:
                is_same = True  # the last one that was read comes once more, or what was left of it
                if offset_of(delivery) == offset:
                    continue
                newest = offset_of(delivery)
                seen += 1
                size += len(delivery.body)
                grouping.see(delivery, seen, source)
                if seen % 256 == 0:
                    self._tell(source.name, 256)
                    if self._clock.now() - began > _MOST_HELD_S or size > _MOST_READ_BYTES:
                        break
        if not is_same:  # it was deleted and declared anew: what was known is of another stream
            return await self._survey_stream(source, cost, ready, None)
        self._tell(source.name, seen % 256)
        now = self._clock.now()
        return _QueueSurvey(
            at=Moment(now),
            began=Moment(began) if last is None else last.began,
            seen=seen if last is None else last.seen + seen,
            ready=ready,
            took_s=round(now - began, 3),
            groups=_added(() if last is None else last.groups, grouping.groups(), now),
            offset=newest,
        )

    async def _survey_archives(self) -> None:
        """What discards of this broker wrote since the last time; files that are gone are forgotten."""
        folder = self._exports
        if folder is None:
            return
        kept = await self._read(_ARCHIVE, _ArchiveSurvey)
        found = await asyncio.to_thread(discarded_files, folder)
        paths = {"{}/{}".format(*job_and_run(path)): path for path in found}
        place = f"{socket.gethostname()}:{folder}"
        for key, one in kept.items():
            if key not in paths and await self._is_gone(one, place):
                await self._journal.unlearn(self._broker, _ARCHIVE, key)
        sources = {one.name: one for one in (await self._live.snapshot()).dead_letter_queues}
        room = _MOST_READ
        for key, path in paths.items():
            job, _ = job_and_run(path)
            if key not in kept and not await self._is_discard(job):
                continue  # of another broker, with the same folder
            known = kept.get(key, _ArchiveSurvey())
            last = replace(known, place=place, file=path.name, job=job)
            now = Moment(self._clock.now())
            more = await asyncio.to_thread(_more_of, path, last, room, sources, now)
            room -= more.seen - last.seen
            if more.position != known.position or known.place != place:
                documents = {key: encode(more).decode()}
                await self._journal.remember(self._broker, _ARCHIVE, documents, now)
            if room <= 0:
                break

    async def _is_discard(self, job: str) -> bool:
        """Whether this is a discard of this broker."""
        known = await self._journal.job(job)
        return (
            known is not None
            and known.kind is JobKind.DISCARD
            and known.spec.broker == self._broker
        )

    async def _is_gone(self, one: _ArchiveSurvey, place: str) -> bool:
        """Whether a file that is not here is nowhere: while there is its job, another place may have it."""
        return one.place == place or not await self._is_discard(one.job)

    def _tell(self, queue: str, more: int) -> None:
        if self.running is not None:
            now = replace(self.running, queue=queue, seen=self.running.seen + more)
            self.running = now
            if self._on_progress is not None:
                self._on_progress(LookProgress(now.queue, now.seen, now.total))

    def _why_not(self, one: QueueSummary, snapshot: BrokerSnapshot) -> str:
        """Return the reason why a queue is not surveyed, empty if it is."""
        if not one.exists:
            return "it is not on the broker"
        if one.active_job is not None:
            return f"job {one.active_job.id} works on it"
        cost = snapshot.cost(one.queue)
        if cost.is_stream:
            return ""
        if one.foreign_consumers:
            return "it has consumers, which would miss what a survey holds"
        if self._held(one.queue):
            return "somebody looks into it"
        return cost.text if cost.price is not Price.FREE else ""

    async def _is_busy(self, queue: str) -> bool:
        """Return whether a job works on the queue now, or a browse session holds its messages."""
        jobs = await self._journal.jobs(broker=self._broker, queue=queue, active=True)
        return bool(jobs or self._held(queue))

    async def _kept(self) -> dict[str, _QueueSurvey]:
        return await self._read(_SURVEY, _QueueSurvey)

    async def _read(self, kind: str, shape: type[_T]) -> dict[str, _T]:
        """What is kept of a kind; a document of another version is as if it were not there."""
        found: dict[str, _T] = {}
        for key, text in (await self._journal.remembered(self._broker, kind)).items():
            try:
                found[key] = from_json(shape, text)
            except BadRequest:
                _log.warning("what was kept as %s of %r cannot be read", kind, key)
        return found

    async def trend(self, queue: str) -> QueueTrend:
        """How the depth of one queue went."""
        kept = (await self._read(_TREND, QueueTrend)).get(queue, QueueTrend(queue))
        day = _last_day(kept, self._clock.now())
        return QueueTrend(queue, kept.samples, day.arrived)

    async def sample(self) -> None:
        """Keep how deep each queue is now, unless that was done a moment ago."""
        now, kept = self._clock.now(), await self._read(_TREND, QueueTrend)
        changed: dict[str, str] = {}
        for one in await self._queues():
            past = kept.setdefault(one.queue, QueueTrend(one.queue)).samples
            if one.messages is None or (past and now - past[-1].at < _SAMPLE_S * 0.9):
                continue
            samples = _thinned((*past, TrendSample(Moment(now), one.messages)))
            kept[one.queue] = QueueTrend(one.queue, samples)
            changed[one.queue] = encode(kept[one.queue]).decode()
        self.recent = {queue: _last_day(trend, now) for queue, trend in kept.items()}
        await self._journal.remember(self._broker, _TREND, changed, now)

    async def keep(self, every_s: float | None) -> None:
        """Keep depths, and survey every so many seconds if that is wanted, until cancelled."""
        self.every_s = every_s
        while True:
            try:
                await self.sample()
                if every_s is not None:
                    await self.run(not_after=self._clock.now() - every_s)
            except HopbackError as failed:  # the broker, or the database, is away: later again
                _log.warning("queues were not surveyed: %s", failed)
            await asyncio.sleep(_SAMPLE_S if every_s is None else min(_SAMPLE_S, every_s))


def _grouping() -> Grouping:
    return Grouping(GroupBy.FINGERPRINT, _MOST_GROUPS * 10)


def _ahead(one: QueueSummary, last: _QueueSurvey | None) -> int:
    """How many messages of a queue there are to see."""
    known = 0 if last is None or last.offset is None else last.seen
    return max((one.messages_ready or 0) - known, 0)


def _more_of(
    path: Path,
    last: _ArchiveSurvey,
    most: int,
    sources: Mapping[str, DeadLetterQueue],
    now: Moment,
) -> _ArchiveSurvey:
    """What a file has behind what was read of it before; in a thread, because files may be large."""
    grouping, queue, seen = _grouping(), last.queue, 0
    lines, position = lines_from(path, last.position, most, _MOST_READ_BYTES)
    for line in lines:
        try:
            archived = read_line(line)
        except BadLine:  # what a crash cut off; an import would say so
            continue
        seen += 1
        queue = archived.queue
        message = Received(
            queue=queue,
            exchange=archived.exchange,
            routing_key=archived.routing_key,
            body=archived.body,
            properties=archived.properties,
            tag=seen,
        )
        grouping.see(message, seen, sources.get(queue))
    return replace(
        last,
        at=now,
        queue=queue,
        seen=last.seen + seen,
        position=position,
        groups=_added(last.groups, grouping.groups(), now),
    )


def _added(
    known: tuple[ErrorGroup, ...], groups: tuple[Group, ...], now: float
) -> tuple[ErrorGroup, ...]:
    """What was known, with what was counted since."""
    sums = {one.fingerprint: one for one in known}
    for group in groups:
        fresh = _error_of(group, Moment(now))
        before = sums.get(group.key, fresh)
        times = [
            at for at in (before.first, before.last, fresh.first, fresh.last) if at is not None
        ]
        sums[group.key] = replace(
            before,
            count=fresh.count if before is fresh else before.count + fresh.count,
            first=min(times, default=None),
            last=max(times, default=None),
        )
    ordered = sorted(sums.values(), key=lambda one: (-one.count, one.fingerprint))
    return tuple(ordered[:_MOST_GROUPS])


def _with_discarded(
    errors: tuple[ErrorGroup, ...], archives: Mapping[str, _ArchiveSurvey]
) -> tuple[ErrorGroup, ...]:
    """The errors, with how often each was discarded."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for archive in archives.values():
        for group in archive.groups:
            counts[group.fingerprint][archive.queue] += group.count
    return tuple(
        replace(
            one,
            discarded=tuple(
                ErrorInQueue(queue, count)
                for queue, count in sorted(counts[one.fingerprint].items())
            ),
        )
        if one.fingerprint in counts
        else one
        for one in errors
    )


def _error_of(group: Group, first_seen: Moment) -> ErrorGroup:
    sample = group.sample
    return ErrorGroup(
        fingerprint=group.key,
        error=sample.error,
        message=sample.error_message,
        reason=sample.reason,
        count=group.count,
        first=group.first,
        last=group.last,
        first_seen=first_seen,
    )


def _together(kept: dict[str, _QueueSurvey], now: float) -> tuple[ErrorGroup, ...]:
    """The groups of all queues by their fingerprints, the most frequent first."""
    found: defaultdict[str, list[tuple[str, ErrorGroup]]] = defaultdict(list)
    for queue, survey in sorted(kept.items()):
        for group in survey.groups:
            found[group.fingerprint].append((queue, group))
    made = []
    for fingerprint, places in found.items():
        groups = [group for _, group in places]
        firsts = [group.first for group in groups if group.first is not None]
        lasts = [group.last for group in groups if group.last is not None]
        seen_first = min(group.first_seen or Moment(0) for group in groups)
        # In the first survey of a queue everything is new, which says nothing.
        known_before = all(
            (group.first_seen or 0.0) > kept[queue].began + _MOST_HELD_S for queue, group in places
        )
        made.append(
            ErrorGroup(
                fingerprint=fingerprint,
                error=groups[0].error,
                message=groups[0].message,
                reason=groups[0].reason,
                count=sum(group.count for group in groups),
                queues=tuple(ErrorInQueue(queue, group.count) for queue, group in places),
                first=min(firsts, default=None),
                last=max(lasts, default=None),
                first_seen=seen_first,
                is_new=known_before and now - seen_first < _NEW_S,
            )
        )
    return tuple(sorted(made, key=lambda one: (-one.count, one.fingerprint)))


def _last_day(trend: QueueTrend, now: float) -> QueueTrend:
    """The samples of the last day, a few of them, and how much arrived between all of them."""
    recent = [one for one in trend.samples if one.at >= now - _NEW_S]
    arrived = sum(max(b.messages - a.messages, 0) for a, b in pairwise(recent))
    step = max(-(-len(recent) // _DRAWN), 1)
    # From the end: the newest is drawn in any case.
    return QueueTrend(trend.queue, tuple(recent[::-step][::-1]), arrived)


def _thinned(samples: tuple[TrendSample, ...]) -> tuple[TrendSample, ...]:
    """Every sample of the last day, and one of each hour before."""
    fine, older = samples[-_FINE:], samples[:-_FINE]
    hours: dict[int, TrendSample] = {}
    for one in older:
        hours.setdefault(int(one.at // _COARSE_S), one)
    return (*tuple(hours.values())[-_COARSE:], *fine)
