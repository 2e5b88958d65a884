"""A browse session: messages of one queue, held for inspection for a limited time.

A session does not settle messages. Closing its channel requeues them all and keeps their order on every
version of RabbitMQ, while a nack of single messages moves them to the tail on some versions. If the
process dies, its connection closes and the broker requeues the messages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hopback.errors import NoSuch, SessionOver
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
    """Dead letters of a session in the order of the queue.

    `not_looked_into` counts messages that a filter could not read within its limits.
    """

    session: BrowseSession
    dead_letters: tuple[DeadLetter, ...]
    not_looked_into: int = 0


class BrowseSession:
    """Messages of one queue that a reader holds until the session expires, is released or handed over."""

    def __init__(self, view: SessionView, reader: SessionReader, clock: Clock) -> None:
        self.view = view
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
        """The requested time in seconds."""
        return self._reader.request.seconds

    @property
    def is_open(self) -> bool:
        """Whether it holds its messages."""
        return not self.why_closed

    @property
    def is_held_here(self) -> bool:
        """Whether its messages are missing from the queue. A stream keeps its messages."""
        return self.is_open and not self.view.cost.is_stream

    @property
    def taken(self) -> int:
        """Number of messages that others cannot get, with skipped ones and those held to keep the order."""
        return self._reader.taken if self.is_open else 0

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """All its dead letters in the order of the queue."""
        self._check()
        return tuple(self._reader.dead_letters)

    def dead_letter(self, message: str) -> DeadLetter:
        """Return the dead letter with this id. Raise NoSuch if the session does not hold it."""
        for dead_letter in self.dead_letters:
            if dead_letter.id == message:
                return dead_letter
        raise NoSuch("message", message)

    def content(self, message: str) -> Delivery | None:
        """Return the whole message, or None if the session does not have it."""
        return self._reader.deliveries.get(message)

    def delivery(self, message: str) -> Delivery:
        """Return the whole message. Raise NoSuch if the session does not have it."""
        self._check()
        delivery = self.content(message)
        if delivery is None:
            raise NoSuch("message", message)
        return delivery

    async def sift(self, wanted: Filter = EVERYTHING) -> ChosenMessages:
        """Return the dead letters that match a filter. SessionOver if the session ends in the meantime."""
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
        """Return the selected dead letters. Raise NoSuch for an id that the session does not hold."""
        found = await self.sift(parse_filter(selection.filter))
        if not selection.ids:
            return found
        wanted = set(selection.ids)
        for message in wanted - {dead_letter.id for dead_letter in found.dead_letters}:
            self.dead_letter(message)
        chosen = tuple(each for each in found.dead_letters if each.id in wanted)
        return ChosenMessages(self, chosen, found.not_looked_into)

    async def page(self, wanted: Filter = EVERYTHING, *, cursor: int = 0, limit: int = 20) -> Page:
        """Return at most `limit` matching dead letters behind the place `cursor`."""
        found = await self.sift(wanted)
        after = [dead_letter for dead_letter in found.dead_letters if dead_letter.place > cursor]
        shown = tuple(after[: max(limit, 1)])
        following = str(shown[-1].place) if len(after) > len(shown) else None
        return Page(shown, len(found.dead_letters), following, found.not_looked_into)

    async def groups(self, by: str, wanted: Filter = EVERYTHING) -> Groups:
        """Return the matching dead letters in groups, the largest group first."""
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
        """Let the session expire this many seconds from now."""
        self._check()
        self.view = replace(self.view, expires_at=Moment(self._clock.now() + seconds))
        self._timer.cancel()
        self._timer = self._start_timer()

    async def release(self, why: str = "released") -> None:
        """Requeue all messages in order. Repeated calls are safe."""
        self._close(why)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def hand_over(self, dead_letters: Iterable[DeadLetter]) -> tuple[Connection, QueueMessages]:
        """Give these messages and the connection that holds them to a job. The session ends.

        Raise SessionOver if it has already ended. The broker requeues the messages that the job does not
        settle when the job closes the channel.
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
        """End the session when the broker closes its channel and requeues the messages."""
        error = await self._reader.channel.wait_closed()
        if self.is_open:
            self._end(f"the broker took everything back: {error}")
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
