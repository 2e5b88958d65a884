"""Where the commands on dead letters are answered: by the library here, or by a server elsewhere.

Both answer with the same documents, so no command knows which of them it talks to.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from hopback.cli.documents import (
    failure_document,
    job_document,
    plan_document,
    queue_document,
    summary_document,
)
from hopback.cli.letter_documents import group_document, letter_document, message_document

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from hopback.cli.documents import Document
    from hopback.clock import Clock
    from hopback.deadletters.contract import Imported
    from hopback.deadletters.operations import Operations
    from hopback.deadletters.requests import Pace, Request, Who

__all__ = ["Desk", "Held", "LibraryDesk", "Look"]


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be looked at: how many messages, and whether a danger is accepted or lifted."""

    queue: str
    limit: int | None = None
    where: str = ""
    forced: bool = False
    lift: bool = False


class Held(Protocol):
    """Messages that are held for looking at; leaving the context gives them back."""

    async def letters(self, where: str, size: int) -> Document:
        """The letters that match: `items`, and how many are `matching`."""

    async def message(self, ident: str) -> Document:
        """One message with everything about it."""

    async def body(self, ident: str) -> bytes:
        """The bytes of one message."""


class Desk(Protocol):
    """Everything that the commands ask for."""

    runs_jobs_here: bool
    """Whether a job ends with this process."""

    @property
    def keeps_jobs(self) -> bool:
        """Whether a job can be resumed when its process has ended."""

    async def queues(self) -> list[Document]:
        """Every dead-letter queue, by name."""

    async def queue(self, name: str) -> Document:
        """One of them."""

    def hold(self, look: Look) -> AbstractAsyncContextManager[Held]:
        """Hold messages for looking at."""

    async def lift(self, queue: str) -> None:
        """Lift the delivery limit of a queue, if looking at it could lose messages."""

    async def groups(self, look: Look, by: str) -> Document:
        """Messages by what they have in common: `items`, `seen`, `matching`, `complete`."""

    def export(self, look: Look) -> AsyncIterator[bytes]:
        """Messages as lines of JSON."""

    async def import_lines(
        self, lines: AsyncIterable[bytes], queue: str | None, pace: Pace, reason: str
    ) -> Imported:
        """Publish exported messages again."""

    async def plan(self, request: Request) -> Document:
        """What a job would do."""

    async def start(self, request: Request) -> Document:
        """Begin a job."""

    async def jobs(self, queue: str, active: bool, limit: int) -> list[Document]:
        """Jobs, the newest first."""

    async def job(self, ident: str) -> Document:
        """One of them."""

    def events(self, ident: str) -> AsyncIterator[Document]:
        """The job now and after every change, until it runs no more."""

    async def failures(self, ident: str, cursor: int, limit: int) -> list[Document]:
        """What a job could not move or left out."""

    async def pause(self, ident: str) -> Document:
        """Let a job wait."""

    async def resume(self, ident: str) -> Document:
        """Let a job go on."""

    async def cancel(self, ident: str) -> Document:
        """Let a job end."""

    async def interrupt(self, ident: str) -> Document:
        """Let a job that ends with this process finish what is in flight, and put it down."""

    async def set_rate(self, ident: str, rate: float | None) -> Document:
        """Let a job go at another rate."""

    async def retry_failures(self, ident: str, reason: str) -> Document:
        """Begin a job for what another could not move."""


class LibraryDesk:
    """The operations of the library, in this process; `everywhere` lists the jobs of all brokers."""

    runs_jobs_here = True

    def __init__(
        self, operations: Operations, who: Who, clock: Clock, *, everywhere: bool = False
    ) -> None:
        self._operations = operations.acting_as(who, everywhere=everywhere)
        self._who = who
        self._clock = clock

    @property
    def keeps_jobs(self) -> bool:
        """Whether the journal outlives this process."""
        from hopback.deadletters.journal import MemoryJournal

        return not isinstance(self._operations.journal, MemoryJournal)

    async def queues(self) -> list[Document]:
        """Every dead-letter queue, by name."""
        return [summary_document(each) for each in await self._operations.queues()]

    async def queue(self, name: str) -> Document:
        """One of them."""
        return queue_document(await self._operations.queue(name))

    # --- looking

    @asynccontextmanager
    async def hold(self, look: Look) -> AsyncIterator[Held]:
        """Hold messages for looking at; they are given back however this ends."""
        from hopback.deadletters.requests import SMALL_WINDOW

        window = (
            SMALL_WINDOW if look.limit is None else structs.replace(SMALL_WINDOW, limit=look.limit)
        )
        view = await self._operations.open_session(
            look.queue, window, by=self._who, forced=look.forced, lift=look.lift
        )
        try:
            yield _Session(self._operations, view.id, self._who)
        finally:
            await self._operations.release(view.id)

    async def groups(self, look: Look, by: str) -> Document:
        """Messages of the whole queue by what they have in common; none of them is kept."""
        from hopback.deadletters.requests import GroupBy

        if look.lift:
            await self.lift(look.queue)
        found = await self._operations.survey(
            look.queue,
            GroupBy(by),
            look.where,
            limit=look.limit,
            forced=look.forced,
            who=self._who,
        )
        return {
            "queue": found.queue,
            "by": by,
            "items": [group_document(group) for group in found.groups],
            "seen": found.seen,
            "matching": found.matching,
            "complete": found.complete,
            "notLookedInto": found.not_looked_into,
        }

    async def export(self, look: Look) -> AsyncIterator[bytes]:
        """Messages as lines of JSON."""
        if look.lift:
            await self.lift(look.queue)
        lines = self._operations.export(
            look.queue, where=look.where, limit=look.limit, forced=look.forced, by=self._who
        )
        async for line in lines:
            yield line

    async def lift(self, queue: str) -> None:
        """Lift the delivery limit of a queue by a policy, if looking at it could lose messages."""
        from hopback.deadletters.contract import Price

        if (await self._operations.queue(queue)).cost.price is Price.REFUSED:
            await self._operations.lift_limit(queue, by=self._who, reason="to look at it")

    async def import_lines(
        self, lines: AsyncIterable[bytes], queue: str | None, pace: Pace, reason: str
    ) -> Imported:
        """Publish exported messages again."""
        return await self._operations.import_lines(
            lines, queue=queue, pace=pace, by=self._who, reason=reason
        )

    # --- jobs

    async def plan(self, request: Request) -> Document:
        """What a job would do."""
        return plan_document(await self._operations.plan(structs.replace(request, by=self._who)))

    async def start(self, request: Request) -> Document:
        """Begin a job in this process."""
        return job_document(await self._operations.start(structs.replace(request, by=self._who)))

    async def jobs(self, queue: str, active: bool, limit: int) -> list[Document]:
        """Jobs, the newest first."""
        found = await self._operations.jobs(queue=queue, active=active, limit=limit)
        return [job_document(job) for job in found]

    async def job(self, ident: str) -> Document:
        """One of them."""
        return job_document(await self._operations.job(ident))

    async def events(self, ident: str) -> AsyncIterator[Document]:
        """The job now and after every change, until it runs no more."""
        async for job in self._operations.events(ident):
            yield job_document(job)

    async def failures(self, ident: str, cursor: int, limit: int) -> list[Document]:
        """What a job could not move or left out."""
        found = await self._operations.failures(ident, cursor=cursor, limit=limit)
        return [failure_document(each) for each in found]

    async def pause(self, ident: str) -> Document:
        """Let a job wait, in whatever process it runs."""
        return job_document(await self._operations.pause(ident, by=self._who))

    async def resume(self, ident: str) -> Document:
        """Let a job go on: a paused one where it runs, any other in this process."""
        return job_document(await self._operations.resume(ident, by=self._who))

    async def cancel(self, ident: str) -> Document:
        """Let a job end, in whatever process it runs."""
        return job_document(await self._operations.cancel(ident, by=self._who))

    async def interrupt(self, ident: str) -> Document:
        """Let a job finish what is in flight, and put it down; it can be resumed."""
        from hopback.deadletters.contract import JobState
        from hopback.errors import JobConflict

        with suppress(JobConflict):  # it has just come to its end
            await self._operations.pause(ident, by=self._who)
            async for job in self._operations.events(ident):
                if job.state is not JobState.RUNNING:
                    break
        await self._operations.close()
        return await self.job(ident)

    async def set_rate(self, ident: str, rate: float | None) -> Document:
        """Let a job go at another rate."""
        return job_document(await self._operations.set_rate(ident, rate, by=self._who))

    async def retry_failures(self, ident: str, reason: str) -> Document:
        """Begin a job for what another could not move."""
        return job_document(
            await self._operations.retry_failures(ident, by=self._who, reason=reason)
        )


@dataclass(frozen=True, slots=True)
class _Session:
    """A browse session of the library."""

    operations: Operations
    ident: str
    who: Who

    async def letters(self, where: str, size: int) -> Document:
        """The letters that match."""
        page = await self.operations.messages(self.ident, where, size=size)
        items = [letter_document(letter) for letter in page.letters]
        unread = page.not_looked_into
        return {"items": items, "matching": page.matching, "notLookedInto": unread}

    async def message(self, ident: str) -> Document:
        """One message with everything about it."""
        return message_document(await self.operations.message(self.ident, ident, by=self.who))

    async def body(self, ident: str) -> bytes:
        """The bytes of one message."""
        return await self.operations.body(self.ident, ident, by=self.who)
