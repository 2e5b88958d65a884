"""Search whole queues for messages that match a filter.

Only matching messages are kept in memory, so the size of the queue does not matter. The broker
holds all messages that were read and requeues them in order when the search of the queue ends.
Messages held by browse sessions of this process are also searched.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hopback.errors import BadRequest, NoSuch, QueueBusy, UnsafeOperation
from hopback.ops.brokers.browse_cost import check_cost
from hopback.ops.browse.held import held_by_others, unread_part
from hopback.ops.browse.walk import walk
from hopback.ops.contract.search import (
    MOST_WALKED,
    SearchHit,
    SearchProgress,
    SearchRequest,
    SkippedQueue,
)
from hopback.ops.contract.values import Cost, DeadLetter, Depth, Price
from hopback.ops.messages.body import unpack_body
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import Filter, Judgement, parse_filter
from hopback.ops.messages.grouping import Grouping
from hopback.ops.messages.plain import plain_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.browse.sessions import Sessions

_EXCERPT = 60
"""Characters on each side of the matching word. An excerpt fills about one line of a terminal."""
_REPORT_S = 0.5
"""Seconds between progress reports."""
_MOST_HITS = 200
"""Number of hits after which they are reported immediately, so that only a few are in memory."""
_EXCERPT_BYTES = 1024 * 1024
"""Bytes of a body in which an excerpt is searched. There is no excerpt for a word after them."""


class Search:
    """A running search. If its progress is closed, it is cancelled and its messages are requeued in
    order.
    """

    def __init__(self, broker: ManagedBroker, request: SearchRequest, sessions: Sessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._request = request
        self._found = _Findings(request, broker.clock.now())
        self._total = 0
        self._beyond = 0

    async def progress(self) -> AsyncGenerator[SearchProgress, None]:
        """Yield the progress about twice per second and at the end."""
        found = self._found
        if not found.wanted.terms and found.grouping is None:
            raise BadRequest("filter", "a word or a term to look for")
        snapshot = await self._broker.snapshot()
        names = self._request.queues or tuple(each.name for each in snapshot.dead_letter_queues)
        sources = [snapshot.dead_letter_queue(name) for name in names]
        if len(names) == 1:
            async with self._broker.read_alone(names[0]):
                pass  # count the messages after another request has requeued them
        # Count over AMQP, because the counts of the management API are some seconds old.
        depths = await self._broker.depths([source.name for source in sources], None)
        held = await held_by_others(self._broker, self._sessions, depths)
        counts, skipped = await self._count_messages(snapshot, sources, depths)
        own = [
            each
            for each in self._sessions.active()
            if each.source.name in names and each.is_held_here
        ]
        self._total = sum(counts.values()) + sum(each.view.held for each in own)
        for session in own:
            name = session.source.name
            if counts.get(name) and not snapshot.is_classic(name):
                session.note_lost_order()
            found.see_session(session)
        held += tuple(each for each in map(unread_part, own) if each is not None)
        for source in sources:
            count = counts.get(source.name, 0)
            if count:
                reports = self._search_queue(source, count, snapshot.cost(source.name))
                try:
                    async with aclosing(reports):
                        async for report in reports:
                            yield report
                except (QueueBusy, UnsafeOperation) as refused:
                    if len(sources) == 1:
                        raise
                    skipped += (SkippedQueue(source.name, str(refused)),)
        if found.seen < self._total:  # other clients have taken messages since they were counted
            depths = await self._broker.depths([source.name for source in sources], None)
            held = await held_by_others(self._broker, self._sessions, depths)
            held += tuple(each for each in map(unread_part, own) if each is not None)
        yield replace(
            self._report("", 0),
            skipped=skipped,
            groups=() if found.grouping is None else found.grouping.groups(),
            beyond=self._beyond,
            held_by_others=held,
            is_over=True,
        )

    async def _count_messages(
        self,
        snapshot: BrokerSnapshot,
        sources: list[DeadLetterQueue],
        depths: Mapping[str, Depth],
    ) -> tuple[dict[str, int], tuple[SkippedQueue, ...]]:
        """Return how many messages to read from each queue, and the queues that cannot be read.

        Raises NoSuch or UnsafeOperation if only one queue was requested and it cannot be read.
        """
        counts, skipped = dict[str, int](), list[SkippedQueue]()
        for source in sources:
            name, cost, counted = source.name, snapshot.cost(source.name), depths.get(source.name)
            ready = None if counted is None else counted.ready
            if counted is not None and ready is None:  # the user may not count the queue over AMQP
                ready = (await self._broker.depth(name)).ready
            count = min(ready or 0, self._request.first or MOST_WALKED + 1)
            if cost.is_stream:  # no messages are held, so the broker's timeout does not apply
                count = min(count, MOST_WALKED)
            reason = self._why_not(cost, ready, count, exists=counted is not None)
            if not reason:
                counts[name] = count
                self._beyond += (ready or 0) - count
                continue
            if self._request.queues and len(sources) == 1:
                if counted is None:
                    raise NoSuch("queue", name, "it is known, but it is not on the broker")
                check_cost(cost, force=self._request.force)
                raise UnsafeOperation(f"{name!r} was not searched: {reason}")
            skipped.append(SkippedQueue(name, reason))
        return counts, tuple(skipped)

    def _why_not(self, cost: Cost, ready: int | None, count: int, *, exists: bool) -> str:
        """Return why a queue cannot be searched, or an empty string if it can."""
        if not exists:
            return "it is not on the broker"
        if ready is None:
            return "its number of messages is unknown"
        if count > MOST_WALKED:
            return (
                f"it has {ready:,} messages: a broker would requeue them before all were read."
                f" Search the first {MOST_WALKED:,} messages instead"
            )
        return cost.text if cost.price is Price.REFUSED and not self._request.force else ""

    async def _search_queue(
        self, source: DeadLetterQueue, count: int, cost: Cost
    ) -> AsyncGenerator[SearchProgress, None]:
        loop, place, found = asyncio.get_running_loop(), 0, self._found
        due = loop.time()
        async with AsyncExitStack() as stack:
            if not cost.is_stream:
                await stack.enter_async_context(self._broker.read_alone(source.name))
            messages = await stack.enter_async_context(
                walk(self._broker.new_connection, source.name, count, cost)
            )
            async for delivery in messages:
                place += 1
                found.see(delivery, place, source)
                # Do not check the clock for each message, because this takes as long as searching
                # the message.
                is_checked = place % 64 == 0 or bool(found.hits)
                if is_checked and (loop.time() >= due or len(found.hits) >= _MOST_HITS):
                    due = loop.time() + _REPORT_S
                    yield self._report(source.name, place)
        yield self._report(source.name, 0)

    def _report(self, queue: str, held: int) -> SearchProgress:
        return SearchProgress(
            queue=queue,
            seen=self._found.seen,
            total=self._total,
            held=held,
            matching=self._found.matching,
            not_looked_into=self._found.unread,
            hits=self._found.take_hits(),
        )


class _Findings:
    """The results of a search, which are counts, groups and hits."""

    def __init__(self, request: SearchRequest, now: float) -> None:
        self.wanted = parse_filter(request.where)
        self.grouping = Grouping(request.by) if request.by else None
        self.seen = 0
        self.matching = 0
        self.unread = 0
        self.hits: list[SearchHit] = []
        self._left = request.limit
        self._groups_only = bool(request.by) and not self.wanted.terms and not request.limit
        self._now = now

    def see(self, delivery: Delivery, place: int, source: DeadLetterQueue) -> None:
        """Check a message of a queue. It is only decoded if it contains the words."""
        self.seen += 1
        if self.grouping is not None and self._groups_only:
            self.matching += 1
            self.grouping.see(delivery, place, source)
        elif self.wanted.words_in(delivery) is not Judgement.DIFFERS:
            self._judge(read_dead_letter(delivery, place, source), delivery)

    def see_session(self, session: BrowseSession) -> None:
        """Check the messages held by a browse session of this process."""
        for dead_letter in session.dead_letters:
            self.seen += 1
            self._judge(dead_letter, session.content(dead_letter.id), session.id)

    def take_hits(self) -> tuple[SearchHit, ...]:
        """Return the hits since the last call."""
        hits, self.hits = tuple(self.hits), []
        return hits

    def _judge(self, dead_letter: DeadLetter, delivery: Delivery | None, session: str = "") -> None:
        judged = self.wanted.judge(dead_letter, delivery, self._now)
        if judged is Judgement.NOT_LOOKED_INTO:
            self.unread += 1
        elif judged is Judgement.MATCHES:
            self.matching += 1
            if self.grouping is not None:
                self.grouping.add(dead_letter, delivery)
            if self._left:
                self._left -= 1
                text = "" if delivery is None else excerpt(delivery, self.wanted)
                self.hits.append(SearchHit(dead_letter, text, session))


def excerpt(delivery: Delivery, wanted: Filter) -> str:
    """Return the text around the first matching word in the body, or an empty string if there is none."""
    word = next(iter(wanted.words), "")
    if not word:
        return ""
    text = unpack_body(delivery, _EXCERPT_BYTES).data.decode("utf-8", "replace")
    start = text.lower().find(word.lower())
    if start < 0:
        return ""
    begin, end = max(start - _EXCERPT, 0), start + len(word) + _EXCERPT
    shown = " ".join(text[begin:end].split())
    before, after = "…" if begin else "", "…" if end < len(text) else ""
    return plain_text(f"{before}{shown}{after}")
