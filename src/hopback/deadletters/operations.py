"""Everything that can be done with dead letters, as one object: the library behind command, HTTP and page.

It works on any broker behind the port. A management client adds what AMQP does not tell (discovery,
types, limits, ages); declared topologies add plans. Jobs and audit are kept in a journal: in memory,
or in SQL, where they survive a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from hopback.deadletters.audit import NEWEST
from hopback.deadletters.pacing import UNHURRIED
from hopback.deadletters.requests import NOBODY
from hopback.deadletters.sessions import SMALL_WINDOW, GroupBy
from hopback.deadletters.targets import BY_DESIGN

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping

    from hopback.broker.port import Broker
    from hopback.clock import Clock
    from hopback.deadletters.audit import AuditEntry, AuditQuery
    from hopback.deadletters.browsing import MessageView, SessionView, Survey
    from hopback.deadletters.discovery import DeadLetterQueue, Override
    from hopback.deadletters.importing import Imported
    from hopback.deadletters.jobs import FailedMessage, Job
    from hopback.deadletters.journal import Journal
    from hopback.deadletters.overview import QueueDetail, QueueSummary
    from hopback.deadletters.pacing import Pace
    from hopback.deadletters.places import LiveView
    from hopback.deadletters.plans import JobPlan
    from hopback.deadletters.requests import Edit, Request, Who
    from hopback.deadletters.sessions import Group, Page, Window
    from hopback.deadletters.settings import Settings
    from hopback.deadletters.targets import Target
    from hopback.topology.model import Topology

__all__ = ["Operations"]


class Operations:
    """The operations on dead letters; use it as an async context manager.

    `management` is a `broker.management.Management`, or `EmbeddedManagement` for the embedded broker.
    `overrides` correct or add what discovery finds. Leaving it releases every browse session and
    interrupts the jobs that run in this process: they can be resumed, here or elsewhere.

    Every method raises `NoSuch` for a name it does not know, `BadRequest` or `BadFilter` for what
    cannot be carried out as asked, `UnsafeOperation` for what could lose something, `JobConflict`
    where another job stands in the way, and `BrokerError` where the broker does.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        management: LiveView | None = None,
        vhost: str = "/",
        topologies: Iterable[Topology] = (),
        overrides: Iterable[Override] = (),
        journal: Journal | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release every session and interrupt every job of this process. Safe to repeat."""
        raise NotImplementedError

    # --- queues

    async def queues(self) -> tuple[QueueSummary, ...]:
        """Every dead-letter queue by name, with its depth; never looks into one."""
        raise NotImplementedError

    async def queue(self, name: str) -> QueueDetail:
        """One queue: exact depth, type, limit, cost of looking, origins, targets, active job."""
        raise NotImplementedError

    async def dead_letter_queue(self, name: str) -> DeadLetterQueue:
        """What discovery knows of one queue, with its plans; NoSuch if it is none."""
        raise NotImplementedError

    async def lift_limit(self, queue: str, *, by: Who = NOBODY, reason: str = "") -> str:
        """Lift the queue's delivery limit by a policy of its own; the name of that policy.

        UnsafeOperation where it cannot be lifted: no management, an operator policy, an argument.
        """
        raise NotImplementedError

    async def restore_limit(self, queue: str, *, by: Who = NOBODY, reason: str = "") -> None:
        """Take that policy away again; none there is no error."""
        raise NotImplementedError

    # --- looking

    async def open_session(
        self,
        queue: str,
        window: Window = SMALL_WINDOW,
        *,
        by: Who = NOBODY,
        forced: bool = False,
        lift: bool = False,
    ) -> SessionView:
        """Hold messages for looking at.

        UnsafeOperation if looking could lose something, unless `forced`; with `lift` the limit is
        lifted first. The session ends by itself when its time is over.
        """
        raise NotImplementedError

    def sessions(self) -> tuple[SessionView, ...]:
        """Every session that holds something now."""
        raise NotImplementedError

    def session(self, ident: str) -> SessionView:
        """One session; SessionOver (a NoSuch) if it has ended."""
        raise NotImplementedError

    def renew(self, ident: str, seconds: float | None = None) -> SessionView:
        """Hold on for as long again from now, or for so many seconds."""
        raise NotImplementedError

    async def release(self, ident: str) -> None:
        """Give everything back, in order; a session that has ended already is no error."""
        raise NotImplementedError

    def messages(self, session: str, where: str = "", *, cursor: int = 0, size: int = 20) -> Page:
        """Letters of a session that match, after the place `cursor`."""
        raise NotImplementedError

    async def message(self, session: str, ident: str, *, by: Who = NOBODY) -> MessageView:
        """One message with everything about it, and where it would go; audited as shown."""
        raise NotImplementedError

    async def body(self, session: str, ident: str, *, by: Who = NOBODY) -> bytes:
        """The bytes of one message; audited as shown."""
        raise NotImplementedError

    def groups(
        self, session: str, by: GroupBy = GroupBy.FINGERPRINT, where: str = ""
    ) -> tuple[Group, ...]:
        """The letters of a session by what they have in common, the largest group first."""
        raise NotImplementedError

    async def survey(
        self,
        queue: str,
        by: GroupBy = GroupBy.FINGERPRINT,
        where: str = "",
        *,
        limit: int | None = None,
        forced: bool = False,
        who: Who = NOBODY,
    ) -> Survey:
        """Group a whole queue in one pass, keeping no message; costs what one session costs."""
        raise NotImplementedError

    # --- jobs

    async def plan(self, request: Request) -> JobPlan:
        """What a job would do, without doing it."""
        raise NotImplementedError

    async def start(self, request: Request) -> Job:
        """Begin a job and return it; it goes on by itself.

        CountMismatch if the selection has another size than expected; JobConflict if the queue has
        an active job. The same `key` again returns the job that is there.
        """
        raise NotImplementedError

    async def job(self, ident: str) -> Job:
        """One job as it is now."""
        raise NotImplementedError

    async def jobs(
        self, *, queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        """Jobs, the newest first."""
        raise NotImplementedError

    async def failures(
        self, ident: str, *, cursor: int = 0, limit: int = 100
    ) -> tuple[FailedMessage, ...]:
        """What a job could not move or left out, from number `cursor` on; all of it is in its queue."""
        raise NotImplementedError

    def events(self, ident: str) -> AsyncIterator[Job]:
        """The job now and after every change, until it runs no more."""
        raise NotImplementedError

    async def wait(self, ident: str) -> Job:
        """Return when the job is neither running nor paused."""
        raise NotImplementedError

    async def pause(self, ident: str, *, by: Who = NOBODY) -> Job:
        """Let it finish what is in flight, then wait; in whatever process it runs."""
        raise NotImplementedError

    async def resume(self, ident: str, *, by: Who = NOBODY) -> Job:
        """Let a paused job go on, or begin an interrupted or failed one again, in this process."""
        raise NotImplementedError

    async def cancel(self, ident: str, *, by: Who = NOBODY) -> Job:
        """Let it finish what is in flight, then give the rest back."""
        raise NotImplementedError

    async def set_rate(self, ident: str, rate: float | None, *, by: Who = NOBODY) -> Job:
        """Another rate, messages per second, from now on; None for no limit."""
        raise NotImplementedError

    async def retry_failures(self, ident: str, *, by: Who = NOBODY, reason: str = "") -> Job:
        """A new job for exactly what this one could not move; BadRequest if there is nothing."""
        raise NotImplementedError

    async def came_back(self, ident: str, *, forced: bool = False, by: Who = NOBODY) -> int:
        """Look through the queue for messages that this job had sent and that died again."""
        raise NotImplementedError

    # --- archives

    def export(
        self,
        queue: str = "",
        *,
        session: str = "",
        where: str = "",
        limit: int | None = None,
        forced: bool = False,
        by: Who = NOBODY,
    ) -> AsyncIterator[bytes]:
        """Messages as lines of JSON, of a session or of a whole queue; nothing is removed."""
        raise NotImplementedError

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        by: Who = NOBODY,
        reason: str = "",
    ) -> Imported:
        """Publish exported messages, each confirmed, into the queue they were in, or into `queue`."""
        raise NotImplementedError

    async def edit_and_redrive(
        self,
        session: str,
        ident: str,
        edit: Edit,
        *,
        target: Target = BY_DESIGN,
        by: Who = NOBODY,
        reason: str = "",
    ) -> str:
        """Send a changed copy back; its new message id. The original stays where it is.

        NotAllowed unless the settings allow it.
        """
        raise NotImplementedError

    # --- audit

    async def audit(self, query: AuditQuery = NEWEST) -> tuple[AuditEntry, ...]:
        """What was done, the newest first."""
        raise NotImplementedError

    async def note(
        self,
        action: str,
        *,
        by: Who = NOBODY,
        queue: str = "",
        job: str = "",
        reason: str = "",
        result: str = "ok",
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Write an act of the caller's own down: a denied call, a login."""
        raise NotImplementedError
