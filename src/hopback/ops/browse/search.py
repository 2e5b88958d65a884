"""Search through whole queues, as people type it: what is asked, what is found, and how far it is.

Nothing is kept of what does not match, so a queue of a million takes no more memory than one of a
hundred. The broker holds what was read until the search is over, and then has it back in order.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from hopback.errors import BadRequest, NoSuch, UnsafeOperation
from hopback.ops.browse.cost import check_cost
from hopback.ops.browse.walk import walk
from hopback.ops.contract.search import (
    MOST_WALKED,
    SearchHit,
    SearchProgress,
    SearchRequest,
    SkippedQueue,
)
from hopback.ops.contract.values import DeadLetter, HeldMessages, Price
from hopback.ops.messages.body import unpacked
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import Judgement, parse_filter
from hopback.ops.messages.grouping import Grouping
from hopback.ops.messages.plain import plain_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.browse.sessions import Sessions
    from hopback.ops.contract.values import Cost
    from hopback.ops.messages.filters import Filter


_EXCERPT = 60  # characters on either side of what was found: a line of a terminal
_TELL_S = 0.5  # as often as an eye follows a number
_HITS_AT_ONCE = 200  # then they are told, so that none waits in memory
_EXCERPT_BYTES = 1024 * 1024  # of a body in which the word is looked for once more, to show it


class Search:
    """A running search. Closing its progress cancels it and requeues its messages in order.

    It also reads the messages that browse sessions of this process hold.
    """

    def __init__(
        self, live: ManagedBroker, request: SearchRequest, clock: Clock, sessions: Sessions
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._request = request
        self._wanted = parse_filter(request.where)
        self._grouping = Grouping(request.by) if request.by else None
        self._now = clock.now()
        self._seen = 0
        self._total = 0
        self._matching = 0
        self._unread = 0
        self._beyond = 0
        self._told = 0
        self._hits: list[SearchHit] = []

    async def progress(self) -> AsyncGenerator[SearchProgress, None]:
        """How far it is, about twice a second, and at the end."""
        if not self._wanted.terms and self._grouping is None:
            raise BadRequest("filter", "a word or a term to look for")
        snapshot = await self._live.snapshot()
        names = self._request.queues or tuple(each.name for each in snapshot.dead_letter_queues)
        sources = [snapshot.one(name) for name in names]
        held_by_others = await self._held_by_others([source.name for source in sources])
        found, skipped = await self._may_look(snapshot, sources)
        own = [
            each
            for each in self._sessions.active()
            if each.source.name in names and each.is_held_here
        ]
        self._total = sum(found.values()) + sum(each.view.held for each in own)
        for session in own:
            self._see_session(session)
        for source in sources:
            count = found.get(source.name, 0)
            if count:
                looking = self._through(source, count, snapshot.cost(source.name))
                async with aclosing(looking):
                    async for told in looking:
                        yield told
        yield SearchProgress(
            seen=self._seen,
            total=self._total,
            matching=self._matching,
            not_looked_into=self._unread,
            hits=self._taken(),
            skipped=skipped,
            groups=() if self._grouping is None else self._grouping.groups(),
            beyond=self._beyond,
            held_by_others=held_by_others,
            is_over=True,
        )

    async def _held_by_others(self, names: list[str]) -> tuple[HeldMessages, ...]:
        """Return the messages that other consumers hold, before the search takes any.

        AMQP shows the consumers at once. The broker counts their messages every few seconds.
        """
        readings, found = await self._live.readings() or {}, []
        depths = await self._live.depths(names, None)
        for name in names:
            own = self._sessions.active(name)
            unacked = (readings[name].counts.unacked or 0) if name in readings else 0
            count = unacked - self._sessions.count_held(name)
            consumers = (depths[name][0].consumers or 0) if name in depths else 0
            if count > 0 or consumers > len(own):
                found.append(HeldMessages(name, max(count, 0) or None, await self._holders(name)))
        return tuple(found)

    async def _holders(self, queue: str) -> tuple[str, ...]:
        consumers = await self._live.consumers_of(queue)
        return tuple(f"{one.tag} of {one.connection}" for one in consumers)

    async def _may_look(
        self, snapshot: BrokerSnapshot, sources: list[DeadLetterQueue]
    ) -> tuple[dict[str, int], tuple[SkippedQueue, ...]]:
        """How many each queue has that can be looked into without harm; one that was named is refused."""
        found, skipped = dict[str, int](), list[SkippedQueue]()
        # By AMQP: what the management API says may be some seconds old, and lack what came since.
        depths = await self._live.depths([each.name for each in sources], None)
        for source in sources:
            name, cost = source.name, snapshot.cost(source.name)
            counted = depths.get(name)
            ready = None if counted is None else counted[0].ready
            if (
                counted is not None and ready is None
            ):  # who may not ask by AMQP may read the statistics
                ready = (await self._live.depth(name))[0].ready
            wanted = min(ready or 0, self._request.first or MOST_WALKED + 1)
            if cost.is_stream:  # of which nothing is held, so that no broker takes anything back
                wanted = min(wanted, MOST_WALKED)
            reason = ""
            if counted is None:
                reason = "it is not on the broker"
            elif ready is None:
                reason = "it is not known how many messages it has"
            elif wanted > MOST_WALKED:
                reason = (
                    f"it has {ready:,} messages: a broker would take them back before all were read;"
                    f" look at the first {MOST_WALKED:,} by their place instead"
                )
            elif cost.price is Price.REFUSED and not self._request.force:
                reason = cost.text
            if not reason:
                found[name] = wanted
                self._beyond += (ready or 0) - wanted
                continue
            if self._request.queues and len(sources) == 1:
                if counted is None:
                    raise NoSuch("queue", name, "it is known, but it is not on the broker")
                check_cost(cost, forced=self._request.force)
                raise UnsafeOperation(f"{name!r} was not searched: {reason}")
            skipped.append(SkippedQueue(name, reason))
        return found, tuple(skipped)

    async def _through(
        self, source: DeadLetterQueue, count: int, cost: Cost
    ) -> AsyncGenerator[SearchProgress, None]:
        loop, place = asyncio.get_running_loop(), 0
        due = loop.time()
        async with aclosing(walk(self._live.broker, source.name, count, cost)) as messages:
            async for delivery in messages:
                place += 1
                self._seen += 1
                self._see(delivery, place, source)
                # Asking the time costs as much as a message: not each time.
                asks = place % 64 == 0 or bool(self._hits)
                if asks and (loop.time() >= due or len(self._hits) >= _HITS_AT_ONCE):
                    due = loop.time() + _TELL_S
                    yield self._so_far(source.name, place)
        yield self._so_far(source.name, 0)

    def _see_session(self, session: BrowseSession) -> None:
        """Judge the messages that a browse session of this process holds."""
        for dead_letter in session.dead_letters:
            self._seen += 1
            delivery = session.content(dead_letter.id)
            if delivery is None and self._wanted.needs_content:
                self._unread += 1
            else:
                self._judge(dead_letter, delivery, session.id)

    def _see(self, delivery: Delivery, place: int, source: DeadLetterQueue) -> None:
        """Judge one message. It is decoded only if it contains the searched words."""
        if self._grouping is not None and not self._wanted.terms and not self._request.limit:
            self._matching += 1
            self._grouping.see(delivery, place, source)
            return
        if self._wanted.words_in(delivery) is Judgement.DIFFERS:
            return
        self._judge(read_dead_letter(delivery, place, source), delivery)

    def _judge(self, dead_letter: DeadLetter, delivery: Delivery | None, session: str = "") -> None:
        judged = self._wanted.judge(dead_letter, delivery, self._now)
        if judged is Judgement.NOT_LOOKED_INTO:
            self._unread += 1
        elif judged is Judgement.MATCHES:
            self._matching += 1
            if self._grouping is not None:
                self._grouping.add(dead_letter, delivery)
            if self._told < self._request.limit:
                self._told += 1
                text = "" if delivery is None else excerpt(delivery, self._wanted)
                self._hits.append(SearchHit(dead_letter, text, session))

    def _so_far(self, queue: str, held: int) -> SearchProgress:
        return SearchProgress(
            queue=queue,
            seen=self._seen,
            total=self._total,
            held=held,
            matching=self._matching,
            not_looked_into=self._unread,
            hits=self._taken(),
        )

    def _taken(self) -> tuple[SearchHit, ...]:
        hits, self._hits = tuple(self._hits), []
        return hits


def excerpt(delivery: Delivery, wanted: Filter) -> str:
    """What the body says around the first of the words; empty if it stands elsewhere."""
    word = next(iter(wanted.words), "")
    if not word:
        return ""
    text = unpacked(delivery, _EXCERPT_BYTES).data.decode("utf-8", "replace")
    start = text.lower().find(word.lower())
    if start < 0:
        return ""
    begin, end = max(start - _EXCERPT, 0), start + len(word) + _EXCERPT
    shown = " ".join(text[begin:end].split())
    before, after = "…" if begin else "", "…" if end < len(text) else ""
    return plain_text(f"{before}{shown}{after}")
