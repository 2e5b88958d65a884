"""Browse sessions: messages held for looking at, on a channel of their own, for a limited time.

Nothing is settled here. Messages are taken by a consumer and given back all at once by closing the
channel, which keeps their order on every version; never by nack, which on some moves them to the tail. A
process that dies releases everything, because its connection dies with it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

from hopback.errors import BadFilter, BadRequest, BrokerError, NoSuch, SessionOver, UnsafeOperation
from hopback.headers import clipped
from hopback.ops.browse.head import (
    ROOM_BYTES,
    Head,
    StreamHead,
    Turns,
    check_spent,
    held_size,
    rough_size,
)
from hopback.ops.contract.requests import NOBODY, GroupBy, Window
from hopback.ops.contract.values import (
    Group,
    Groups,
    LookProgress,
    Moment,
    Page,
    Price,
    SessionView,
)
from hopback.ops.messages.dead_letter import (
    last_failure,
    plain_text,
    read_dead_letter,
)
from hopback.ops.messages.filters import EVERYTHING, Judgement, value_in
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.requests import Settings, Who
    from hopback.ops.contract.values import Cost, DeadLetter, OnProgress
    from hopback.ops.messages.filters import Filter


_PASSING_BYTES = 16 * 1024 * 1024  # of messages that wait to be passed over
_PREFETCH = 1000  # enough that the broker never waits for us between two deliveries
_TELL_EVERY = 1000  # messages between two words on how far it is: some tens of milliseconds


@dataclass(frozen=True, slots=True)
class ChosenMessages:
    """Dead letters of a session, in the order of the queue, and how many more nobody could judge."""

    session: BrowseSession
    dead_letters: tuple[DeadLetter, ...]
    not_looked_into: int = 0

    def hand_over(self) -> Holding:
        """Give them to a job, which ends the session; SessionOver if it has ended meanwhile."""
        return self.session.hand_over(self.dead_letters)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a job takes over from a session: the connection, and the deliveries that it may settle on it.

    `held` is how many the session had in all.
    """

    connection: Connection
    channel: Channel
    deliveries: tuple[Delivery, ...]
    held: int


class BrowseSession:
    """Messages of one queue, held for looking at."""

    def __init__(
        self,
        session_id: str,
        source: DeadLetterQueue,
        connection: Connection,
        channel: Channel,
        window: Window,
        clock: Clock,
        cost: Cost,
        *,
        by: Who = NOBODY,
        forced: bool = False,
    ) -> None:
        self.id = session_id
        self.source = source
        self.window = window
        self.cost = cost
        self.by = by
        self.forced = forced
        self.opened_at: float = clock.now()
        self.expires_at: float = self.opened_at + window.seconds
        self.held_bytes: int = 0
        self.complete: bool = False
        """Whether the queue had nothing more ready."""
        self.order_kept: bool = True
        """False if too many messages had come back before: then these go behind the others."""
        self.why_closed: str = ""
        self.skipped: int = 0
        """How many were passed over; the broker holds them as well."""
        self.ready: int = 0
        """How many the queue had ready when it was opened."""
        self.held_by_others: int = 0
        """Messages of the queue that other sessions held when it was opened."""
        self._connection = connection
        self._channel = channel
        self._clock = clock
        self._dead_letters: list[DeadLetter] = []
        self._deliveries: dict[str, Delivery] = {}
        self._head: Head | StreamHead | None = None
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def fill(self, longest_s: float, on_progress: OnProgress | None = None) -> None:
        """Take messages until the window is full or the queue is empty; then let time run.

        It ends `longest_s` after it was opened at the latest: a broker counts from the first message on.
        """
        queue = Queue(self.source.name)
        ready = (await self._channel.declare_queue(queue, passive=True)).messages
        count = self.window.skip + self.window.limit
        # What is passed over is read in small portions: nothing of it is kept.
        most = ROOM_BYTES if not self.window.skip else _PASSING_BYTES
        room = min(most, self.window.max_bytes)
        head: Head | StreamHead
        if self.cost.is_stream:  # of which the broker counts late, and reading tells the end
            head = StreamHead(self._channel, self.source.name, count)
        else:
            count = min(count, ready)
            head = Head(self._channel, self.source.name, count, _PREFETCH, room_bytes=room)
        self._head, turns = head, Turns()
        while self.held_bytes < self.window.max_bytes:
            delivery = await head.next()
            if delivery is None:
                break
            if self.skipped < self.window.skip:
                head.keep(delivery.tag)
                self.skipped += 1
            else:
                head.keep_for_now(delivery.tag)  # a job may take it over
                place = self.skipped + len(self._dead_letters) + 1
                dead_letter = read_dead_letter(delivery, place, self.source)
                self._dead_letters.append(dead_letter)
                if self.window.bodies:
                    self._deliveries[dead_letter.id] = delivery
                    self.held_bytes += held_size(delivery)
            if not self.forced:
                check_spent(self.source.name, delivery, self.cost)
            seen = self.skipped + len(self._dead_letters)
            if on_progress is not None and seen % _TELL_EVERY == 0:
                on_progress(LookProgress(self.source.name, seen, count))
            await turns.after(rough_size(delivery))
        shown = self.skipped + len(self._dead_letters)
        is_read_out = self.cost.is_stream and head.taken < count and shown == head.taken
        self.ready = shown if is_read_out else max(ready, shown)
        self.complete = shown >= self.ready
        await head.finish()
        if self.source.queue is None or self.source.queue.type is not QueueType.CLASSIC:
            self.order_kept = await head.round_out(ready)
        until = self._clock.now() + self.window.seconds
        self.expires_at = min(until, self.opened_at + longest_s)
        self._set_timer()
        self._watching = asyncio.create_task(self._watch(), name=f"watch {self.id}")

    async def _watch(self) -> None:
        """When the broker ends the connection, it has everything back already."""
        error = await self._channel.wait_closed()
        if not self._over:
            self._end(f"the broker took everything back: {error}")
            await self._connection.close()

    @property
    def is_open(self) -> bool:
        """Whether it still holds its messages."""
        return not self._over

    @property
    def held(self) -> int:
        """How many messages it holds."""
        return len(self._dead_letters)

    @property
    def taken(self) -> int:
        """How many nobody else gets meanwhile: with those passed over, and those held for their order."""
        if self._over or self._head is None or self.cost.is_stream:
            return 0
        return self._head.taken

    @property
    def is_held_here(self) -> bool:
        """Whether its messages are missing from the queue: it is open, and it does not read a stream."""
        return not self._over and not self.cost.is_stream

    def content(self, message: str) -> Delivery | None:
        """Return the whole message, or None if the session keeps no contents."""
        return self._deliveries.get(message)

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Everything it holds, in the order of the queue."""
        self._check()
        return tuple(self._dead_letters)

    async def sift(self, wanted: Filter = EVERYTHING) -> ChosenMessages:
        """The dead letters for which all terms hold; others run meanwhile. SessionOver if it ends."""
        self._check()
        if wanted.needs_content and not self.window.bodies:
            raise BadFilter(
                wanted.text, "no header or payload terms: this session keeps no contents"
            )
        now, turns = self._clock.now(), Turns()
        found: list[DeadLetter] = []
        unread = 0
        for dead_letter in tuple(self._dead_letters):
            delivery = self._deliveries.get(dead_letter.id)
            judged = wanted.judge(dead_letter, delivery, now)
            if judged is Judgement.MATCHES:
                found.append(dead_letter)
            unread += judged is Judgement.NOT_LOOKED_INTO
            if delivery is not None and wanted.needs_content:
                await turns.after(held_size(delivery))
                self._check()
        return ChosenMessages(self, tuple(found), unread)

    async def page(self, wanted: Filter = EVERYTHING, *, cursor: int = 0, size: int = 20) -> Page:
        """Dead letters after the place `cursor`, at most `size` of them."""
        found = await self.sift(wanted)
        after = [dead_letter for dead_letter in found.dead_letters if dead_letter.place > cursor]
        shown = tuple(after[: max(size, 1)])
        following = str(shown[-1].place) if len(after) > len(shown) else None
        return Page(shown, len(found.dead_letters), following, found.not_looked_into)

    async def groups(self, by: GroupBy | str, wanted: Filter = EVERYTHING) -> Groups:
        """The dead letters by what they have in common, the largest group first."""
        grouping = Grouping(by)
        found, turns = await self.sift(wanted), Turns()
        for dead_letter in found.dead_letters:
            delivery = self._deliveries.get(dead_letter.id)
            grouping.add(dead_letter, delivery)
            if delivery is not None and grouping.needs_content:
                await turns.after(held_size(delivery))
                self._check()
        count = len(found.dead_letters)
        return Groups(str(by), grouping.groups(), 0, count, found.not_looked_into)

    def delivery(self, message: str) -> Delivery:
        """The whole message of that id; NoSuch if the session has none, or kept no contents."""
        self._check()
        if message not in self._deliveries:
            raise NoSuch("message", message, "" if self.window.bodies else "contents were not kept")
        return self._deliveries[message]

    def dead_letter(self, message: str) -> DeadLetter:
        """The dead letter of that id; NoSuch if the session has none."""
        self._check()
        found = next(
            (dead_letter for dead_letter in self._dead_letters if dead_letter.id == message), None
        )
        if found is None:
            raise NoSuch("message", message)
        return found

    def renew(self, seconds: float | None = None) -> float:
        """Hold on for as long again from now; the new end."""
        self._check()
        self.expires_at = self._clock.now() + (self.window.seconds if seconds is None else seconds)
        self._set_timer()
        return self.expires_at

    async def release(self, why: str = "released") -> None:
        """Give everything back, in order. Safe to repeat."""
        if self._closing is None and not self._over:
            self._end(why)
            self._closing = asyncio.create_task(self._close(), name=f"release {self.id}")
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def hand_over(self, dead_letters: Iterable[DeadLetter]) -> Holding:
        """Give these messages, with the channel that holds them, to a job; the session ends.

        What the job does not settle goes back when it closes the channel.
        """
        self._check()
        if not self.window.bodies:
            raise UnsafeOperation(
                f"session {self.id} kept no contents; nothing can be sent from it"
            )
        chosen = tuple(dead_letters)
        held = tuple(self.delivery(dead_letter.id) for dead_letter in chosen)
        count = self.skipped + len(self._dead_letters)
        self._end("handed over to a job")
        return Holding(self._connection, self._channel, held, count)

    def _end(self, why: str) -> None:
        self._over = True
        self.why_closed = why
        self._dead_letters.clear()
        self._deliveries.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()

    async def _close(self) -> None:
        """Close in order; a connection that is gone has given everything back already."""
        with suppress(BrokerError):
            if self._head is not None and self.cost.is_by_nack:
                await self._head.give_back()
            await self._channel.close()
        with suppress(BrokerError):
            await self._connection.close()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.expires_at - self._clock.now(), self._expire)

    def _expire(self) -> None:
        if not self._over:
            self._end("expired")
            self._closing = asyncio.create_task(self._close(), name=f"expire {self.id}")

    def _check(self) -> None:
        if self._over:
            raise SessionOver(self.id, self.why_closed)


def groups_of(dead_letters: Iterable[DeadLetter], by: GroupBy | str) -> tuple[Group, ...]:
    """Group dead letters in one pass, keeping one sample of each group."""
    grouping = Grouping(by)
    for dead_letter in dead_letters:
        grouping.add(dead_letter)
    return grouping.groups()


_KEY_BYTES = 255  # of a value to group by: longer ones are told apart by their beginning


class Grouping:
    """Groups dead letters as they come; keeps one sample of each group, and at most so many groups.

    `by` is one of `GroupBy`, or a `header.NAME` or `payload.PATH` of the messages; BadRequest for
    anything else. What comes when there are as many is one group with an empty sample key, `…`.
    """

    def __init__(self, by: GroupBy | str, most: int = 10_000) -> None:
        self._by = str(by)
        kind, _, path = self._by.partition(".")
        self.needs_content: bool = kind in ("header", "payload") and bool(path)
        if not self.needs_content and self._by not in set(GroupBy):
            raise BadRequest(
                "by", f"{', '.join(GroupBy)}, header.NAME or payload.PATH, got {self._by!r}"
            )
        self._most = most
        self._samples: dict[str, DeadLetter] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._times: dict[str, tuple[Moment | None, Moment | None]] = {}

    def add(self, dead_letter: DeadLetter, delivery: Delivery | None = None) -> None:
        """Count one dead letter; `delivery` is needed to group by what a message holds."""
        if not self.needs_content:
            key = str(getattr(dead_letter, self._by))
        else:
            said = None if delivery is None else value_in(delivery, self._by)
            key = "" if said is None else clipped(plain_text(said), _KEY_BYTES)
        if key not in self._samples and len(self._samples) >= self._most:
            key = "…"
        self._samples.setdefault(key, dead_letter)
        self._count(key, dead_letter.last_failed)

    def see(self, delivery: Delivery, place: int, source: DeadLetterQueue | None) -> None:
        """The same for a message that nobody has read yet: by fingerprint only samples are read in full."""
        if self._by == GroupBy.FINGERPRINT:
            key, failed = last_failure(delivery, source)
            if key in self._samples:
                self._count(key, failed)
                return
        self.add(read_dead_letter(delivery, place, source), delivery)

    def _count(self, key: str, failed: Moment | None) -> None:
        self._counts[key] += 1
        first, last = self._times.get(key, (None, None))
        if failed is not None:
            first = failed if first is None else min(first, failed)
            last = failed if last is None else max(last, failed)
        self._times[key] = first, last

    def groups(self) -> tuple[Group, ...]:
        """The groups, the largest first."""
        made = (
            Group(key, self._counts[key], *self._times[key], sample)
            for key, sample in self._samples.items()
        )
        return tuple(sorted(made, key=lambda group: (-group.count, group.key)))


_REMEMBERED = 1000  # sessions of which it can still be told why they ended


class Sessions:
    """Opens, keeps and closes browse sessions."""

    def __init__(self, broker: Broker, settings: Settings, clock: Clock) -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._sessions: dict[str, BrowseSession] = {}

    async def open(
        self,
        source: DeadLetterQueue,
        window: Window,
        cost: Cost,
        *,
        by: Who,
        forced: bool,
        on_progress: OnProgress | None = None,
    ) -> BrowseSession:
        """Hold messages of a queue; what was held is given back if anything goes wrong."""
        check_cost(cost, forced=forced)
        self._check(window)
        connection = await self._broker.connect(f"hopback browse {source.name}")
        session: BrowseSession | None = None
        try:
            session = BrowseSession(
                f"s-{token_hex(8)}",
                source,
                connection,
                await connection.open_channel(),
                window,
                self._clock,
                cost,
                by=by,
                forced=forced,
            )
            others = [each for each in self.opened() if each.source.name == source.name]
            session.held_by_others = sum(each.taken for each in others)
            await session.fill(self._settings.session_s, on_progress)
        except BaseException:
            await (connection.close() if session is None else session.release("it was not filled"))
            raise
        self._sessions[session.id] = session
        # The oldest of those that are over go; why the others ended can still be told.
        over = [known for known, each in self._sessions.items() if not each.is_open]
        for known in over[: max(len(self._sessions) - _REMEMBERED, 0)]:
            del self._sessions[known]
        return session

    def _check(self, window: Window) -> None:
        limits = self._settings
        if not 1 <= window.limit <= limits.session_messages:
            raise BadRequest("limit", f"1 to {limits.session_messages}, got {window.limit}")
        if not 1 <= window.max_bytes <= limits.session_bytes:
            raise BadRequest("maxBytes", f"1 to {limits.session_bytes}, got {window.max_bytes}")
        if not 0 < window.seconds <= limits.session_s:
            raise BadRequest("ttlSeconds", f"up to {limits.session_s:g}, got {window.seconds:g}")
        if len(self.opened()) >= limits.sessions:
            raise BadRequest("session", f"at most {limits.sessions} at once; release one first")

    def opened(self) -> tuple[BrowseSession, ...]:
        """Every session that holds something now."""
        return tuple(session for session in self._sessions.values() if session.is_open)

    def one(self, session_id: str) -> BrowseSession:
        """The session of that id; NoSuch, or SessionOver if it was there."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuch("session", session_id)
        if not session.is_open:
            raise SessionOver(session_id, session.why_closed)
        return session

    def renewed(self, session_id: str, seconds: float | None) -> BrowseSession:
        """The session, held on for longer."""
        session = self.one(session_id)
        wanted = session.window.seconds if seconds is None else seconds
        if not 0 < wanted <= self._settings.session_s:
            raise BadRequest("seconds", f"up to {self._settings.session_s:g}, got {wanted:g}")
        if self._clock.now() + wanted - session.opened_at > self._settings.session_s:
            raise BadRequest(
                "seconds", f"at most {self._settings.session_s:g} since it was opened; open another"
            )
        session.renew(wanted)
        return session

    async def release(self, session_id: str) -> None:
        """Give everything back; a session that has ended already is no error."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSuch("session", session_id)
        await session.release()

    async def close(self) -> None:
        """Give everything of every session back."""
        for session in self.opened():
            await session.release("the operations were closed")


def check_cost(cost: Cost, *, forced: bool) -> None:
    """UnsafeOperation if looking could lose something and nobody has accepted that."""
    if cost.price is Price.REFUSED and not forced:
        raise UnsafeOperation(f"{cost.text}. {cost.remedy}")


def view_of(session: BrowseSession) -> SessionView:
    """A session as it is now."""
    return SessionView(
        id=session.id,
        queue=session.source.name,
        held=session.held,
        held_bytes=session.held_bytes,
        opened_at=Moment(session.opened_at),
        expires_at=Moment(session.expires_at),
        complete=session.complete,
        cost=session.cost,
        by=session.by.name,
        by_id=session.by.id,
        order_kept=session.order_kept,
        skipped=session.skipped,
        ready=session.ready,
        held_by_others=session.held_by_others,
    )
