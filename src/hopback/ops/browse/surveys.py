"""Count the errors in all queues.

A survey reads all queues for which this is safe and that are not used by a job or a browse session.
The results are stored in the journal. They are available after a restart, and services that share a
journal do not repeat each other's surveys. From a stream, only messages that were added since the
last survey are read. Discarded messages are counted in their files.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from hopback.errors import HopbackError, QueueBusy, UnsafeOperation
from hopback.ops.browse.archive_survey import ArchiveSurvey, ArchiveSurveys
from hopback.ops.browse.held import describe_session, held_by_others, unread_part
from hopback.ops.browse.stream_messages import offset_of
from hopback.ops.browse.trend import SAMPLE_S, Trends
from hopback.ops.browse.walk import walk
from hopback.ops.contract.surveys import (
    ErrorGroup,
    ErrorOverview,
    HourCount,
    SurveyedArchive,
    SurveyedQueue,
)
from hopback.ops.contract.values import (
    Cost,
    HeldMessages,
    LookProgress,
    Moment,
    OnProgress,
    Price,
    QueueSummary,
)
from hopback.ops.documents import Documents
from hopback.ops.messages.error_groups import (
    MOST_GROUPS,
    add_discards,
    add_errors,
    add_hours,
    continue_hours,
    error_of,
    group_errors,
    merge_errors,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.jobs.journal import Journal
    from hopback.ops.messages.grouping import Grouping

_log = logging.getLogger("hopback.ops")
_SURVEY = "survey"
_MOST_HELD_S = 300.0
"""Seconds after which a survey ends early, because it holds messages. This is a sixth of the
broker's timeout.
"""
_MOST_READ = 100_000
"""Messages that a survey reads from a stream, which takes about ten seconds. The next survey
continues there.
"""
_MOST_READ_BYTES = 256 * 1024 * 1024
"""Bytes that a survey reads from a stream. The next survey continues there."""
_NEW_S = 86_400.0
"""Seconds (one day) for which an error is marked as new."""
_REPORT_EVERY = 256
"""Messages between progress reports. Checking the clock for each message would take as long as
grouping it.
"""


class _QueueSurvey(Struct, frozen=True, rename="camel", kw_only=True):
    """The last survey of a queue. `began` is the time of its first survey.

    `hours` contains the number of failures in each hour by fingerprint. `offset` is the offset of
    the last message that was read, if the queue is a stream.
    """

    at: Moment
    began: Moment
    seen: int
    ready: int
    took_s: float
    groups: tuple[ErrorGroup, ...]
    hours: dict[str, tuple[HourCount, ...]] = field(default_factory=dict)
    held: tuple[HeldMessages, ...] = ()
    offset: int | None = None

    @property
    def new_after(self) -> float:
        """Errors are new if they were first seen after this time. This excludes those found by the
        first survey.
        """
        return self.began + _MOST_HELD_S


@dataclass(frozen=True, slots=True)
class SurveyResults:
    """The errors in all queues, and the surveys that have found them."""

    overview: ErrorOverview
    _surveys: Mapping[str, _QueueSurvey]
    _archives: Iterable[ArchiveSurvey]
    _yesterday: float

    def errors_in(self, includes: Callable[[str], bool]) -> tuple[ErrorGroup, ...]:
        """Return the errors in some queues. Their texts and times are also from these queues."""
        surveys = {name: one for name, one in self._surveys.items() if includes(name)}
        archives = [one for one in self._archives if includes(one.queue)]
        return _merge(surveys, archives, self._yesterday)


class Surveys:
    """The errors in all queues of a broker, and the trends of their depths.

    `queues` is a function that returns the queues, and `sessions` are the browse sessions of this
    process. `exports` is the folder for files of discarded messages. `every_s` is the time between
    automatic surveys, or None if there are none. `running` is the progress of the current survey.
    """

    def __init__(
        self,
        broker: ManagedBroker,
        journal: Journal,
        queues: Callable[[], Awaitable[tuple[QueueSummary, ...]]],
        sessions: Sessions,
        exports: Path | None = None,
    ) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._queues = queues
        self._sessions = sessions
        self._journal = journal
        self._documents = Documents(journal.database, broker.journal_name, broker.clock)
        self._archives = ArchiveSurveys(self._documents, journal, exports)
        self.trends: Trends = Trends(self._documents, queues)
        self.every_s: float | None = None
        self.running: LookProgress | None = None
        self._on_progress: OnProgress | None = None
        self._turn = asyncio.Lock()

    async def errors(self) -> ErrorOverview:
        """Return the errors found by the last survey of each queue that has messages."""
        return (await self.results()).overview

    async def results(self) -> SurveyResults:
        """Return the results of the last survey of each queue that has messages."""
        kept, archives = await self._read(), await self._archives.known()
        queues, snapshot = await self._queues(), await self._broker.recent_snapshot()
        filled = {one.queue for one in queues if one.depth.total != 0}
        counted = {name: one for name, one in kept.items() if name in filled}
        yesterday = self._clock.now() - _NEW_S
        names = {one.queue for one in queues}
        overview = ErrorOverview(
            items=_merge(counted, archives, yesterday),
            queues=tuple(
                _describe_survey(one.queue, kept.get(one.queue), self._why_not(one, snapshot))
                for one in sorted(queues, key=lambda one: one.queue)
            ),
            archives=tuple(
                SurveyedArchive(file=one.file, queue=one.queue, at=one.at, seen=one.seen)
                for one in archives
            ),
            messages=sum(one.seen for name, one in kept.items() if name in names),
            survey_s=self.every_s,
            running=self.running,
        )
        return SurveyResults(overview, counted, archives, yesterday)

    async def by_queue(self) -> dict[str, tuple[Moment, tuple[ErrorGroup, ...]]]:
        """Return the time and the errors of the last survey of each queue.

        Errors are new unless the first survey of the queue found them.
        """
        return {
            name: (
                one.at,
                tuple(
                    replace(group, is_new=(group.first_seen or 0.0) > one.new_after)
                    for group in one.groups
                ),
            )
            for name, one in (await self._read()).items()
        }

    async def run(
        self,
        *,
        not_after: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> ErrorOverview:
        """Survey all queues for which this is possible, except those that were surveyed after
        `not_after`.
        """
        async with self._turn:  # concurrent surveys would hold each other's messages
            self._on_progress = on_progress
            try:
                await self._run(not_after)
            finally:
                self.running = self._on_progress = None
        return await self.errors()

    async def _run(self, not_after: float | None) -> None:
        kept = await self._read()
        snapshot = await self._broker.snapshot()
        wanted = []
        for one in await self._queues():
            last = kept.get(one.queue)
            is_recent = last is not None and not_after is not None and last.at > not_after
            # The broker's count of a stream is outdated, so it has to be read to find new messages.
            has_some = (
                one.messages_ready or one.depth.held_here or snapshot.cost(one.queue).is_stream
            )
            if not is_recent and has_some and not self._why_not(one, snapshot):
                wanted.append(one)
        names = [one.queue for one in wanted if not snapshot.cost(one.queue).is_stream]
        depths = await self._broker.depths(names, None)
        held = {
            one.queue: one for one in await held_by_others(self._broker, self._sessions, depths)
        }
        ahead = sum(_count_ahead(one, kept.get(one.queue)) for one in wanted)
        self.running = LookProgress("", 0, ahead)
        for one in wanted:
            if self._held_by_session(one.queue, snapshot) or await self._journal.jobs(
                broker=self._documents.broker, queue=one.queue, active=True
            ):
                continue  # a session or a job has started since the queues were read
            try:
                found = await self._survey(
                    snapshot.dead_letter_queue(one.queue),
                    snapshot.cost(one.queue),
                    one.messages_ready or 0,
                    kept.get(one.queue),
                )
            except (QueueBusy, UnsafeOperation) as refused:
                _log.info("queue %s was not surveyed: %s", one.queue, refused)
                continue
            if one.queue in held:
                found = replace(found, held=(held[one.queue],))
            await self._documents.write(_SURVEY, {one.queue: found})
        await self._archives.run({one.name: one for one in snapshot.dead_letter_queues})

    async def _survey(
        self, source: DeadLetterQueue, cost: Cost, ready: int, last: _QueueSurvey | None
    ) -> _QueueSurvey:
        """Survey a queue. Of a stream, only read the messages since the last survey."""
        began, offset = self._clock.now(), None if last is None else last.offset
        count = _MOST_READ if cost.is_stream else ready
        grouping, seen, newest = await self._group(source, cost, count, offset)
        if offset is not None and newest is None:
            # The last message is gone and there are no others, so the stream was deleted and
            # declared again.
            return await self._survey(source, cost, ready, None)
        now = Moment(self._clock.now())
        known = () if last is None else last.groups
        groups = grouping.groups()
        if cost.is_stream:
            errors = add_errors(known, groups, now)
        else:
            first_seen = {one.fingerprint: one.first_seen or now for one in known}
            errors = tuple(
                error_of(group, first_seen.get(group.key, now)) for group in groups[:MOST_GROUPS]
            )
        hours = {one.fingerprint: grouping.by_hour(one.fingerprint) for one in errors}
        if cost.is_stream and last is not None:
            hours = continue_hours(last.hours, hours, now)
        return _QueueSurvey(
            at=now,
            began=Moment(began) if last is None else last.began,
            seen=seen + (last.seen if cost.is_stream and last is not None else 0),
            ready=ready,
            took_s=round(now - began, 3),
            groups=errors,
            hours={key: some for key, some in hours.items() if some},
            offset=newest,
        )

    async def _group(
        self, source: DeadLetterQueue, cost: Cost, count: int, offset: int | None
    ) -> tuple[Grouping, int, int | None]:
        """Read and group messages within the limits of a survey.

        Returns the grouping, the number of messages, and the offset of the last one. The offset is
        None if the queue is not a stream.
        """
        began, seen, place, size = self._clock.now(), 0, 0, 0
        grouping = group_errors(began)
        newest: int | None = None
        for session in self._sessions.active(source.name) if not cost.is_stream else ():
            for dead_letter in session.dead_letters:
                seen += 1
                grouping.add(dead_letter, session.content(dead_letter.id))
        async with AsyncExitStack() as stack:
            if not cost.is_stream:
                await stack.enter_async_context(self._broker.read_alone(source.name))
            connect = self._broker.new_connection
            messages = await stack.enter_async_context(
                walk(connect, source.name, count, cost, offset=offset)
            )
            async for delivery in messages:
                if cost.is_stream:
                    newest = offset_of(delivery)
                    if newest == offset:
                        continue  # this is the last message of the previous survey
                    size += len(delivery.body)
                seen += 1
                place += 1
                grouping.see(delivery, place, source)
                if place % _REPORT_EVERY == 0:
                    self._report(source.name, _REPORT_EVERY)
                    if self._clock.now() - began > _MOST_HELD_S or size > _MOST_READ_BYTES:
                        break
        self._report(source.name, place % _REPORT_EVERY)
        return grouping, seen, newest

    def _report(self, queue: str, more: int) -> None:
        if self.running is not None:
            now = replace(self.running, queue=queue, seen=self.running.seen + more)
            self.running = now
            if self._on_progress is not None:
                self._on_progress(now)

    def _why_not(self, one: QueueSummary, snapshot: BrokerSnapshot) -> str:
        """Return why a queue cannot be surveyed, or an empty string if it can."""
        if not one.exists:
            return "it is not on the broker"
        if one.active_job is not None:
            return f"job {one.active_job.id} works on it"
        cost = snapshot.cost(one.queue)
        if cost.is_stream:
            return ""
        if held := self._held_by_session(one.queue, snapshot):
            return f"{held} holds its messages"
        if one.foreign_consumers:
            return "other consumers would miss the messages that a survey holds"
        return cost.text if cost.price is not Price.FREE else ""

    def _held_by_session(self, queue: str, snapshot: BrokerSnapshot) -> str:
        """Describe a session of this process that prevents a survey. Returns an empty string if
        there is none.

        If a session has the content of all its messages, they are included in the survey. However,
        only a classic queue keeps its order if others read its messages at the same time.
        """
        for session in self._sessions.active(queue):
            if not snapshot.is_classic(queue) or unread_part(session) is not None:
                return describe_session(session)
        return ""

    async def _read(self) -> dict[str, _QueueSurvey]:
        return await self._documents.read(_SURVEY, _QueueSurvey)

    async def keep(self, every_s: float | None) -> None:
        """Sample depths regularly until the task is cancelled. If `every_s` is set, also survey queues."""
        self.every_s = every_s
        while True:
            try:
                await self.trends.sample()
                if every_s is not None:
                    await self.run(not_after=self._clock.now() - every_s)
            except HopbackError as failed:  # the broker or the database is unavailable
                _log.warning("queues were not surveyed: %s", failed)
            await asyncio.sleep(SAMPLE_S if every_s is None else min(SAMPLE_S, every_s))


def _merge(
    surveys: Mapping[str, _QueueSurvey], archives: Iterable[ArchiveSurvey], yesterday: float
) -> tuple[ErrorGroup, ...]:
    """Combine the errors of these queues and files. Errors are new if found since yesterday."""
    errors = merge_errors(
        {name: one.groups for name, one in surveys.items()},
        {name: max(one.new_after, yesterday) for name, one in surveys.items()},
    )
    errors = add_hours(errors, {name: one.hours for name, one in surveys.items()})
    return add_discards(errors, ((one.queue, one.groups) for one in archives))


def _count_ahead(one: QueueSummary, last: _QueueSurvey | None) -> int:
    """Return how many messages the next survey of a queue will read."""
    known = 0 if last is None or last.offset is None else last.seen
    return max((one.messages_ready or 0) - known, 0)


def _describe_survey(queue: str, last: _QueueSurvey | None, why_not: str) -> SurveyedQueue:
    if last is None:
        return SurveyedQueue(queue=queue, why_not=why_not)
    return SurveyedQueue(
        queue=queue,
        at=last.at,
        seen=last.seen,
        ready=last.ready,
        took_s=last.took_s,
        why_not=why_not,
        held=last.held,
        is_stream=last.offset is not None,
    )
