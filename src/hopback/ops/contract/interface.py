"""The interface of the operations on dead letters.

`Operations` implements it in this process, and `RemoteDeadLetters` by calling a server. Both use
the values of the contract. The first paragraph of a method's docstring is the summary of its
endpoint in OpenAPI and in the reference.
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

    All methods can raise `NoSuch` for an unknown name, `BadRequest` or `BadFilter` for an invalid
    request, `UnsafeOperation` if messages could be lost, `JobConflict` if the queue already has a
    job, `NotAllowed` if the operation is disabled or not permitted, and `BrokerError` if the broker
    fails. Operations that read a queue report their progress to `on_progress`. When they are
    cancelled, they requeue their messages.
    """

    @property
    def runs_jobs_here(self) -> bool:
        """Whether jobs end when this process ends."""

    @property
    def keeps_jobs(self) -> bool:
        """Whether a job can be resumed after its process has ended."""

    def on_behalf_of(self, who: Who) -> Self:
        """Return operations that act for a user. A server identifies the user by the token instead."""

    async def close(self) -> None:
        """Release all sessions and interrupt all jobs of this process. It can be called repeatedly."""

    async def queues(self) -> tuple[QueueSummary, ...]:
        """List the dead-letter queues by name, with their depths. No message is read."""

    async def queue(self, name: str, /) -> QueueDetail:
        """Return one queue with its depth, type, limit, browsing cost, origins, targets and active job."""

    async def candidates(self) -> CandidateList:
        """List queues that have messages but no consumer and may contain dead letters."""

    async def answer_candidate(self, answer: QueueAnswer, /) -> None:
        """Declare whether a queue contains dead letters. This is recorded in the audit."""

    async def lift_limit(self, queue: str, *, reason: str = "") -> str:
        """Lift the delivery limit of a queue with a policy, and return the name of the policy.

        Raises UnsafeOperation without management, or if an operator policy or an argument sets the
        limit.
        """

    async def restore_limit(self, queue: str, *, reason: str = "") -> None:
        """Restore the delivery limit of a queue. This is refused if the limit would remove messages."""

    async def open_session(
        self,
        queue: str,
        request: SessionRequest = USUAL_SESSION,
        *,
        on_progress: OnProgress | None = None,
    ) -> SessionView:
        """Open a browse session. `force` accepts that messages can be lost, and `lift` prevents
        this with a policy.
        """

    async def renew(self, session: str, /, seconds: float | None = None) -> SessionView:
        """Extend a browse session by its original duration, or by a number of seconds."""

    async def release(self, session: str, /) -> None:
        """Requeue all messages of a session in order. It is not an error if the session has already
        ended.
        """

    async def messages(
        self, session: str, where: str = "", *, cursor: int | str = 0, limit: int = 20
    ) -> Page:
        """List the dead letters of a session that match a filter, starting at the cursor."""

    async def message(self, session: str, message: str, /) -> MessageView:
        """Return a message with its history, headers, payload and target. This is recorded in the audit."""

    async def body(self, session: str, message: str, /) -> bytes:
        """Return the body of a message. This is recorded in the audit."""

    async def groups(self, session: str, by: str = GroupBy.FINGERPRINT, where: str = "") -> Groups:
        """Group the dead letters of a session, largest group first."""

    async def errors(
        self, *, survey: bool = False, on_progress: OnProgress | None = None
    ) -> ErrorOverview:
        """List the errors in all queues, as found by their last survey.

        If `survey` is True, all queues are surveyed first.
        """

    async def trend(self, queue: str, /) -> QueueTrend:
        """Return the recorded depths of a queue over the last month."""

    def search(self, request: SearchRequest) -> AsyncGenerator[SearchProgress, None]:
        """Search whole queues. Closing the generator cancels the search.

        A complete search for the returned messages of a job stores their number with the job.
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
        """Start a job in the background and return it.

        Raises CountMismatch if the number of selected messages differs from the expected one. If a
        job with the same `key` exists, that job is returned. If the caller is cancelled before the
        job is stored, no job is started. If the caller is cancelled later, the job continues.
        """

    async def job(self, job: str, /) -> Job:
        """Return a job."""

    async def jobs(
        self, *, queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        """List jobs, newest first."""

    async def failures(
        self, job: str, /, *, cursor: int = 0, limit: int = 100
    ) -> tuple[FailedMessage, ...]:
        """List the messages that a job could not move or has skipped. They are still in the queue."""

    def events(self, job: str, /) -> AsyncIterator[Job]:
        """Yield the job now and after every change until it has ended."""

    async def wait(self, job: str, /) -> Job:
        """Wait until the job is neither running nor paused."""

    async def pause(self, job: str, /) -> Job:
        """Pause a job after the messages in flight. The job can belong to another process."""

    async def resume(self, job: str, /) -> Job:
        """Resume a job that is paused, interrupted, stopped or failed."""

    async def cancel(self, job: str, /) -> Job:
        """Cancel a job after the messages in flight. The other messages are requeued."""

    async def interrupt(self, job: str, /) -> Job:
        """Stop a job of this process after the messages in flight are confirmed. It can be resumed.

        This is used when the process is about to exit, and the operations are closed. A job of
        another process continues.
        """

    async def set_rate(self, job: str, /, rate: float | None) -> Job:
        """Change the rate of a job, in messages per second. Without a rate, there is no limit."""

    async def retry_failures(self, job: str, /, *, reason: str = "") -> Job:
        """Start a job for the messages that another job could not move."""

    async def edit_and_redrive(self, session: str, message: str, /, request: EditRequest) -> str:
        """Re-drive an edited copy of a message and return its id. The original stays in the queue."""

    def export(
        self, queue: str, selection: Selection = WHOLE_QUEUE, *, force: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Export messages as lines of JSON without removing them."""

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        reason: str = "",
    ) -> Imported:
        """Publish exported messages to their original queue or to `queue`. Each is confirmed by the
        broker.

        The start and the result of the import are recorded in the audit.
        """

    @property
    def notes(self) -> GroupNotes:
        """Operations on group notes, saved filters and the history of groups."""

    async def alerts(self) -> AlertList:
        """List firing and pending alerts, and those resolved within the last week."""

    async def test_alert(self, target: str, /) -> AlertTestResult:
        """Send a test message to an alert target and report whether it was accepted."""

    async def audit(self, query: AuditQuery = NEWEST) -> tuple[AuditEntry, ...]:
        """List the audit entries, newest first."""
