"""Browse sessions: messages held for looking at, on a channel of their own, for a limited time.

Nothing is settled here. Messages are taken by a consumer and given back all at once by closing the
channel, which keeps their order on every version; never by nack, which on some moves them to the tail. A
process that dies releases everything, because its connection dies with it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.errors import BadFilter, BrokerError, NoSuch, SessionOver, UnsafeOperation
from hopback.ops.browse.cost import check_delivery_count
from hopback.ops.browse.head import Head
from hopback.ops.browse.memory import estimate_memory, measure_memory
from hopback.ops.browse.prefetch import ROOM_BYTES
from hopback.ops.browse.stream_head import StreamHead
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.requests import NOBODY, GroupBy, Window
from hopback.ops.contract.values import (
    Groups,
    LookProgress,
    Moment,
    Page,
    SessionView,
)
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import EVERYTHING, Judgement
from hopback.ops.messages.grouping import Grouping
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Channel, Connection
    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.requests import Who
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
                    self.held_bytes += measure_memory(delivery)
            if not self.forced:
                check_delivery_count(self.source.name, delivery, self.cost)
            seen = self.skipped + len(self._dead_letters)
            if on_progress is not None and seen % _TELL_EVERY == 0:
                on_progress(LookProgress(self.source.name, seen, count))
            await turns.after(estimate_memory(delivery))
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
                await turns.after(measure_memory(delivery))
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
                await turns.after(measure_memory(delivery))
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
