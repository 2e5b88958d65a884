"""What can be done with dead letters: one interface, carried out in this process or by a server.

`Operations` is it here, `remote.RemoteDeadLetters` is it by HTTP. Both take and give the values of the
contract, so a caller need not know which of them it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from hopback.ops.contract.requests import (
    BY_CALLER,
    BY_DESIGN,
    NEWEST,
    SMALL_WINDOW,
    UNHURRIED,
    WHOLE_QUEUE,
    GroupBy,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

    from hopback.ops.alerts.rules import AlertList, AlertTestResult
    from hopback.ops.brokers.discovery import CandidateList, QueueAnswer
    from hopback.ops.contract.requests import (
        AuditQuery,
        Edit,
        JobRequest,
        Pace,
        Selection,
        Submission,
        Target,
        Who,
        Window,
    )
    from hopback.ops.contract.search import SearchProgress, SearchRequest
    from hopback.ops.contract.surveys import ErrorOverview, QueueTrend
    from hopback.ops.contract.values import (
        AuditEntry,
        FailedMessage,
        Groups,
        Imported,
        Job,
        JobPlan,
        MessageView,
        OnProgress,
        Page,
        QueueDetail,
        QueueSummary,
        SessionView,
        Survey,
    )
    from hopback.ops.notes.values import GroupNotes


class DeadLetters(Protocol):
    """The operations on dead letters.

    Every method raises `NoSuch` for a name it does not know, `BadRequest` or `BadFilter` for what
    cannot be carried out as asked, `UnsafeOperation` for what could lose something, `JobConflict`
    where another job stands in the way, `NotAllowed` for what is switched off or not granted, and
    `BrokerError` where the broker, or the way to it, does. What goes through a queue tells
    `on_progress` now and then how far it is; cancelled, it gives back what it holds.
    """

    @property
    def runs_jobs_here(self) -> bool:
        """Whether a job ends with this process."""

    @property
    def keeps_jobs(self) -> bool:
        """Whether a job can be resumed when the process that ran it has ended."""

    def acting_as(self, who: Who) -> Self:
        """The same, with everything done in the name of this person; a server knows its caller."""

    async def close(self) -> None:
        """Release every session and interrupt every job of this process. Safe to repeat."""

    async def queues(self) -> tuple[QueueSummary, ...]:
        """Every dead-letter queue by name, with its depth; never looks into one."""

    async def queue(self, name: str, /) -> QueueDetail:
        """One queue: exact depth, type, limit, cost of looking, origins, targets, active job."""

    async def candidates(self) -> CandidateList:
        """Queues that have messages and no consumer, which nobody has said to hold dead letters."""

    async def answer_candidate(self, said: QueueAnswer, /) -> None:
        """Add a queue to the dead-letter queues, or ignore it; kept, and audited."""

    async def lift_limit(self, queue: str, *, reason: str = "") -> str:
        """Lift the queue's delivery limit by a policy of its own; the name of that policy."""

    async def restore_limit(self, queue: str, *, reason: str = "") -> None:
        """Take that policy away again; none there is no error."""

    async def open_session(
        self,
        queue: str,
        window: Window = SMALL_WINDOW,
        *,
        forced: bool = False,
        lift: bool = False,
        on_progress: OnProgress | None = None,
    ) -> SessionView:
        """Hold messages for looking at; `forced` accepts a danger, `lift` removes it by a policy."""

    async def renew(self, session: str, /, seconds: float | None = None) -> SessionView:
        """Hold on for as long again from now, or for so many seconds."""

    async def release(self, session: str, /) -> None:
        """Give everything back, in order; a session that has ended already is no error."""

    async def messages(
        self, session: str, where: str = "", *, cursor: int | str = 0, size: int = 20
    ) -> Page:
        """Dead letters of a session that match, after the cursor."""

    async def message(self, session: str, message: str, /) -> MessageView:
        """One message with everything about it, and where it would go; audited as shown."""

    async def body(self, session: str, message: str, /) -> bytes:
        """The bytes of one message; audited as shown."""

    async def groups(
        self, session: str, by: GroupBy | str = GroupBy.FINGERPRINT, where: str = ""
    ) -> Groups:
        """The dead letters of a session by what they have in common, the largest group first."""

    async def survey(
        self,
        queue: str,
        by: GroupBy | str = GroupBy.FINGERPRINT,
        where: str = "",
        *,
        limit: int | None = None,
        forced: bool = False,
    ) -> Survey:
        """Group a whole queue in one pass; costs what one session costs."""

    async def errors(
        self, *, survey: bool = False, on_progress: OnProgress | None = None
    ) -> ErrorOverview:
        """The errors of all queues, as they were surveyed last, or after another survey of all."""

    async def trend(self, queue: str, /) -> QueueTrend:
        """How the depth of a queue went, as far as it was kept."""

    def search(self, request: SearchRequest) -> AsyncGenerator[SearchProgress, None]:
        """Look through whole queues; close the generator to cancel."""

    async def plan(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> JobPlan:
        """What a job would do, without doing it."""

    async def start(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> Job:
        """Begin a job and return it; it goes on by itself."""

    async def job(self, job: str, /) -> Job:
        """One job as it is now."""

    async def jobs(
        self, *, queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        """Jobs, the newest first."""

    async def failures(
        self, job: str, /, *, cursor: int = 0, limit: int = 100
    ) -> tuple[FailedMessage, ...]:
        """What a job could not move or left out, from number `cursor` on; all of it is in its queue."""

    def events(self, job: str, /) -> AsyncIterator[Job]:
        """The job now and after every change, until it runs no more."""

    async def wait(self, job: str, /) -> Job:
        """Return when the job is neither running nor paused."""

    async def pause(self, job: str, /) -> Job:
        """Let it finish what is in flight, then wait; in whatever process it runs."""

    async def resume(self, job: str, /) -> Job:
        """Let a paused job go on, or begin an interrupted or failed one again."""

    async def cancel(self, job: str, /) -> Job:
        """Let it finish what is in flight, then give the rest back."""

    async def interrupt(self, job: str, /) -> Job:
        """Before this process ends: finish what is in flight, and leave the job to be resumed.

        A job that runs elsewhere goes on.
        """

    async def set_rate(self, job: str, rate: float | None, /) -> Job:
        """Another rate, messages per second, from now on; None for no limit."""

    async def retry_failures(self, job: str, /, *, reason: str = "") -> Job:
        """A new job for exactly what this one could not move; BadRequest if there is nothing."""

    async def edit_and_redrive(
        self,
        session: str,
        message: str,
        edit: Edit,
        /,
        *,
        target: Target = BY_DESIGN,
        reason: str = "",
    ) -> str:
        """Send a changed copy back; its new message id. The original stays where it is."""

    def export(
        self,
        queue: str,
        selection: Selection = WHOLE_QUEUE,
        *,
        forced: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Messages as lines of JSON; nothing is removed."""

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        reason: str = "",
    ) -> Imported:
        """Publish exported messages, each confirmed, into the queue they were in, or into `queue`."""

    @property
    def notes(self) -> GroupNotes:
        """Notes on groups, saved filters and what was done to a group."""

    async def alerts(self) -> AlertList:
        """Alerts that fire, are about to, or were resolved within a week."""

    async def test_alert(self, target: str, /) -> AlertTestResult:
        """Send a target a message that says it is a test, and tell whether it was taken."""

    async def audit(self, query: AuditQuery = NEWEST) -> tuple[AuditEntry, ...]:
        """What was done, the newest first."""
