"""A browse session holds messages of a queue for inspection for a limited time.

A session does not settle messages. When it ends, its channel is closed, which requeues all messages
in order on every version of RabbitMQ. If messages were nacked one by one, some versions would move
them to the tail. If the process is killed, its connection is closed and the broker requeues the
messages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hopback.errors import BadRequest, NoSuch, SessionOver
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.queue_messages import QueueMessages
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.values import DeadLetter, Groups, Moment, Page, SessionView
from hopback.ops.messages.filters import EVERYTHING, Filter, Judgement, parse_filter
from hopback.ops.messages.grouping import Grouping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Connection
    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.browse.session_reader import SessionReader
    from hopback.ops.contract.requests import Selection


@dataclass(frozen=True, slots=True)
class ChosenMessages:
    """Dead letters of a session, in the order of the queue.

    `not_looked_into` is the number of messages that exceed the limits for applying the filter.
    """

    session: BrowseSession
    dead_letters: tuple[DeadLetter, ...]
    not_looked_into: int = 0


class BrowseSession:
    """Messages that are held until the session expires, is released or is handed over to a job."""

    def __init__(self, view: SessionView, reader: SessionReader, clock: Clock) -> None:
        self.view: SessionView = view
        self.why_closed: str = ""
        self._reader = reader
        self._clock = clock
        self._timer = self._start_timer()
        self._closing: asyncio.Task[None] | None = None
        self._watching = asyncio.create_task(self._watch(), name=f"watch {self.id}")

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def source(self) -> DeadLetterQueue:
        return self._reader.source

    @property
    def usual_s(self) -> float:
        """The requested duration in seconds."""
        return self._reader.request.seconds

    @property
    def is_open(self) -> bool:
        """Whether the session still holds its messages."""
        return not self.why_closed

    @property
    def is_held_here(self) -> bool:
        """Whether messages of the session are missing in the queue. This is not the case for streams."""
        return self.is_open and not self.view.cost.is_stream

    @property
    def taken(self) -> int:
        """The number of messages that others cannot receive, including those skipped or held to
        keep the order.
        """
        return self._reader.taken if self.is_open else 0

    @property
    def consumers(self) -> int:
        """The number of consumers of this session that the broker counts."""
        return self._reader.consumers if self.is_open else 0

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """All dead letters of the session, in the order of the queue."""
        self._check()
        return tuple(self._reader.dead_letters)

    def dead_letter(self, message: str) -> DeadLetter:
        """Return the dead letter with this id. Raises NoSuch if it is not part of the session."""
        for dead_letter in self.dead_letters:
            if dead_letter.id == message:
                return dead_letter
        raise NoSuch("message", message)

    def content(self, message: str) -> Delivery | None:
        """Return the message with this id, or None if it is not part of the session."""
        return self._reader.deliveries.get(message)

    def delivery(self, message: str) -> Delivery:
        """Return the message with this id. Raises NoSuch if it is not part of the session."""
        self._check()
        delivery = self.content(message)
        if delivery is None:
            raise NoSuch("message", message)
        return delivery

    async def sift(self, wanted: Filter = EVERYTHING) -> ChosenMessages:
        """Return the dead letters that match a filter. Raises SessionOver if the session ends meanwhile."""
        now, turns = self._clock.now(), Turns()
        found: list[DeadLetter] = []
        unread = 0
        for dead_letter in self.dead_letters:
            delivery = self.content(dead_letter.id)
            judged = wanted.judge(dead_letter, delivery, now)
            if judged is Judgement.MATCHES:
                found.append(dead_letter)
            unread += judged is Judgement.NOT_LOOKED_INTO
            if delivery is not None and wanted.needs_content:
                await turns.after(measure_memory(delivery))
                self._check()
        return ChosenMessages(self, tuple(found), unread)

    async def choose(self, selection: Selection) -> ChosenMessages:
        """Return the selected dead letters.

        Raises NoSuch if an id is not part of the session, and BadRequest if there is a limit, which
        only selects messages of a queue.
        """
        if selection.limit is not None:
            raise BadRequest("selection.limit", "none with selection.session; name selection.ids")
        found = await self.sift(parse_filter(selection.filter))
        if not selection.ids:
            return found
        wanted = set(selection.ids)
        for message in wanted - {dead_letter.id for dead_letter in found.dead_letters}:
            self.dead_letter(message)
        chosen = tuple(each for each in found.dead_letters if each.id in wanted)
        return ChosenMessages(self, chosen, found.not_looked_into)

    async def page(self, wanted: Filter = EVERYTHING, *, cursor: int = 0, limit: int = 20) -> Page:
        """Return up to `limit` matching dead letters after the position `cursor`."""
        found = await self.sift(wanted)
        after = [dead_letter for dead_letter in found.dead_letters if dead_letter.place > cursor]
        shown = tuple(after[: max(limit, 1)])
        following = str(shown[-1].place) if len(after) > len(shown) else None
        return Page(shown, len(found.dead_letters), following, found.not_looked_into)

    async def groups(self, by: str, wanted: Filter = EVERYTHING) -> Groups:
        """Group the matching dead letters, largest group first."""
        grouping = Grouping(by)
        found, turns = await self.sift(wanted), Turns()
        for dead_letter in found.dead_letters:
            delivery = self.content(dead_letter.id)
            grouping.add(dead_letter, delivery)
            if delivery is not None and grouping.needs_content:
                await turns.after(measure_memory(delivery))
                self._check()
        count = len(found.dead_letters)
        return Groups(by, grouping.groups(), 0, count, found.not_looked_into)

    def renew(self, seconds: float) -> None:
        """Set the remaining time of the session in seconds."""
        self._check()
        self.view = replace(self.view, expires_at=Moment(self._clock.now() + seconds))
        self._timer.cancel()
        self._timer = self._start_timer()

    def note_lost_order(self) -> None:
        """Record that the queue will put the held messages behind others."""
        self.view = replace(self.view, order_kept=False)

    async def release(self, why: str = "released") -> None:
        """Requeue all messages in order. It can be called repeatedly."""
        self._close(why)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def hand_over(self, dead_letters: Iterable[DeadLetter]) -> tuple[Connection, QueueMessages]:
        """End the session and hand over these messages, with the connection that holds them, to a
        job.

        When the job closes the channel, the broker requeues all messages that were not settled.
        Raises SessionOver if the session has already ended.
        """
        self._check()
        chosen = tuple(self.delivery(dead_letter.id) for dead_letter in dead_letters)
        self._end("handed over to a job")
        held = self.view.skipped + self.view.held
        messages = QueueMessages.handed_over(self._reader.channel, self.source.name, chosen, held)
        return self._reader.connection, messages

    def _start_timer(self) -> asyncio.TimerHandle:
        delay = self.view.expires_at - self._clock.now()
        return asyncio.get_running_loop().call_later(delay, self._close, "expired")

    async def _watch(self) -> None:
        """End the session if the broker closes its channel and requeues the messages."""
        error = await self._reader.channel.wait_closed()
        if self.is_open:
            self._end(f"the broker requeued its messages: {error}")
            await self._reader.connection.close()

    def _close(self, why: str) -> None:
        if self.is_open:
            self._end(why)
            self._closing = asyncio.create_task(self._reader.release(), name=f"release {self.id}")

    def _end(self, why: str) -> None:
        self.why_closed = why
        self._reader.dead_letters, self._reader.deliveries = [], {}
        self._timer.cancel()
        if self._watching is not asyncio.current_task():
            self._watching.cancel()

    def _check(self) -> None:
        if not self.is_open:
            raise SessionOver(self.id, self.why_closed)
