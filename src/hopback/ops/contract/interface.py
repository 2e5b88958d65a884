"""The operations on dead letters: one interface, implemented in this process and by HTTP.

`Operations` implements it here, `RemoteDeadLetters` by a server. Both take and return the values of the
contract. The first paragraph of a docstring is the summary of its endpoint in OpenAPI and in the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from hopback.ops.contract.requests import (
    BY_CALLER,
    NEWEST,
    UNHURRIED,
    USUAL_SESSION,
    WHOLE_QUEUE,
    AuditQuery,
    EditRequest,
    GroupBy,
    JobRequest,
    Pace,
    Selection,
    SessionRequest,
    Submission,
    Who,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

    from hopback.ops.alerts.values import AlertList, AlertTestResult
    from hopback.ops.contract.candidates import CandidateList, QueueAnswer
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
    )
    from hopback.ops.notes.values import GroupNotes


class DeadLetters(Protocol):
    """The operations on dead letters.

    Every method raises `NoSuch` for an unknown name, `BadRequest` or `BadFilter` for a request that cannot
    be carried out, `UnsafeOperation` if messages could be lost, `JobConflict` if the queue has another job,
    `NotAllowed` if it is switched off or not granted, and `BrokerError` if the broker fails. Operations that
    read a queue report their progress to `on_progress`. If they are cancelled, they requeue their messages.
    """

    @property
    def runs_jobs_here(self) -> bool:
        """Whether a job ends with this process."""

    @property
    def keeps_jobs(self) -> bool:
        """Whether a job can be resumed when the process that ran it has ended."""

    def on_behalf_of(self, who: Who) -> Self:
        """Return the operations on behalf of this person. A server knows its caller by the token."""

    async def close(self) -> None:
        """Release every session and interrupt every job of this process. Safe to repeat."""

    async def queues(self) -> tuple[QueueSummary, ...]:
        """List the dead-letter queues by name, with their depths. No message is read."""

    async def queue(self, name: str, /) -> QueueDetail:
        """Return one queue: exact depth, type, limit, browsing cost, origins, targets, active job."""

    async def candidates(self) -> CandidateList:
        """List queues that have messages and no consumer and may contain dead letters."""

    async def answer_candidate(self, answer: QueueAnswer, /) -> None:
        """Declare whether a queue contains dead letters. The audit records it."""

    async def lift_limit(self, queue: str, *, reason: str = "") -> str:
        """Lift the delivery limit of a queue by a policy and return its name.

        UnsafeOperation without management, or if an operator policy or an argument sets the limit.
        """

    async def restore_limit(self, queue: str, *, reason: str = "") -> None:
        """Restore the delivery limit of a queue. Refused while the limit would drop messages."""

    async def open_session(
        self,
        queue: str,
        request: SessionRequest = USUAL_SESSION,
        *,
        on_progress: OnProgress | None = None,
    ) -> SessionView:
        """Open a browse session. `force` accepts the danger of looking, `lift` removes it by a policy."""

    async def renew(self, session: str, /, seconds: float | None = None) -> SessionView:
        """Extend a browse session by its original time, or by a number of seconds."""

    async def release(self, session: str, /) -> None:
        """Requeue all messages of a session, in order. A session that has ended is not an error."""

    async def messages(
        self, session: str, where: str = "", *, cursor: int | str = 0, limit: int = 20
    ) -> Page:
        """List the dead letters of a session that match the filter, after the cursor."""

    async def message(self, session: str, message: str, /) -> MessageView:
        """Return a message with its history, headers, payload and target. The audit records it."""

    async def body(self, session: str, message: str, /) -> bytes:
        """Return the body of a message. The audit records it."""

    async def groups(self, session: str, by: str = GroupBy.FINGERPRINT, where: str = "") -> Groups:
        """Group the dead letters of a session, the largest group first."""

    async def errors(
        self, *, survey: bool = False, on_progress: OnProgress | None = None
    ) -> ErrorOverview:
        """List the errors of all queues as of their last survey.

        `survey` surveys all queues first.
        """

    async def trend(self, queue: str, /) -> QueueTrend:
        """Return the stored depths of a queue over the last month."""

    def search(self, request: SearchRequest) -> AsyncGenerator[SearchProgress, None]:
        """Search whole queues. Closing the generator cancels the search.

        A complete search for the returned messages of a job records their number with the job.
        """

    async def plan(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> JobPlan:
        """Return the plan of a job without starting it."""

    async def start(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> Job:
        """Start a job and return it. It runs in the background.

        CountMismatch if the number of selected messages is not the expected one. A repeated `key` returns the
        existing job. If the caller is cancelled before the job is saved, no job is started. If it is
        cancelled later, the job continues.
        """

    async def job(self, job: str, /) -> Job:
        """Return a job."""

    async def jobs(
        self, *, queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        """List jobs, the newest first."""

    async def failures(
        self, job: str, /, *, cursor: int = 0, limit: int = 100
    ) -> tuple[FailedMessage, ...]:
        """List the messages that a job could not move or left out. They are still in the queue."""

    def events(self, job: str, /) -> AsyncIterator[Job]:
        """Yield the job now and after every change until it has ended."""

    async def wait(self, job: str, /) -> Job:
        """Return when the job is neither running nor paused."""

    async def pause(self, job: str, /) -> Job:
        """Pause a job of any process after the messages in flight."""

    async def resume(self, job: str, /) -> Job:
        """Resume a job that is paused, interrupted, stopped or failed."""

    async def cancel(self, job: str, /) -> Job:
        """Cancel a job after the messages in flight. Requeue the others."""

    async def interrupt(self, job: str, /) -> Job:
        """Stop a job of this process after the messages in flight are confirmed. It can be resumed.

        For a process that is about to exit: the operations are closed. A job of another process continues.
        """

    async def set_rate(self, job: str, /, rate: float | None) -> Job:
        """Change the rate of a job, in messages per second. No rate means no limit."""

    async def retry_failures(self, job: str, /, *, reason: str = "") -> Job:
        """Start a job for the messages that another job could not move."""

    async def edit_and_redrive(self, session: str, message: str, /, request: EditRequest) -> str:
        """Send a changed copy of a message back and return its id. The original stays in the queue."""

    def export(
        self, queue: str, selection: Selection = WHOLE_QUEUE, *, force: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Export messages as lines of JSON. No message is removed."""

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        reason: str = "",
    ) -> Imported:
        """Publish exported messages, each confirmed, into their original queue or into `queue`.

        The audit has an entry from the start, and a second one with the result.
        """

    @property
    def notes(self) -> GroupNotes:
        """Notes on groups, saved filters and the history of groups."""

    async def alerts(self) -> AlertList:
        """List firing and pending alerts, and alerts resolved within a week."""

    async def test_alert(self, target: str, /) -> AlertTestResult:
        """Send a test message to an alert target and report whether it was accepted."""

    async def audit(self, query: AuditQuery = NEWEST) -> tuple[AuditEntry, ...]:
        """List the entries of the audit, the newest first."""
