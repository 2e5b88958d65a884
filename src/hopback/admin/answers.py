"""What the API answers about queues and jobs: names in camelCase, times in RFC 3339."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hopback.deadletters.cost import Price  # noqa: TC001  msgspec reads it at run time
from hopback.deadletters.jobs import JobKind, JobState  # noqa: TC001
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.deadletters.cost import Cost
    from hopback.deadletters.jobs import FailedMessage, Job
    from hopback.deadletters.overview import Depth, QueueDetail, QueueSummary, TargetChoice

__all__ = [
    "CostAnswer",
    "CountsAnswer",
    "DepthAnswer",
    "FailureAnswer",
    "FailureList",
    "HeldBackAnswer",
    "JobAnswer",
    "JobList",
    "Moment",
    "OverviewAnswer",
    "QueueAnswer",
    "SummaryAnswer",
    "TargetAnswer",
    "cost_answer",
    "depth_answer",
    "failure_answer",
    "job_answer",
    "moment",
    "queue_answer",
    "summary_answer",
]

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A moment as RFC 3339 in UTC."""


def moment(seconds: float | None) -> str | None:
    """A moment, or None where nobody knows it."""
    return None if seconds is None else timestamp(seconds)


class DepthAnswer(Struct, frozen=True, rename="camel"):
    """How many messages, who says so and how old that may be; null where nobody says."""

    messages: int | None
    messages_ready: int | None
    messages_unacknowledged: int | None
    messages_held_back: int | None
    consumers: int | None
    source: str
    read_at: Moment
    age_seconds: float


class CostAnswer(Struct, frozen=True, rename="camel"):
    """What one browse session costs each message that it holds."""

    price: Price
    text: str
    delivery_limit: int | None
    remedy: str


class TargetAnswer(Struct, frozen=True, rename="camel"):
    """A target that a re-drive may choose."""

    kind: str
    text: str
    exchange: str | None
    routing_key: str | None
    warning: str
    flaw: str | None
    is_default: bool


class CountsAnswer(Struct, frozen=True, rename="camel"):
    """How far a job is."""

    selected: int
    done: int
    skipped: int
    failed: int
    returned: int
    remaining: int
    arrived_meanwhile: int
    came_back: int


class JobAnswer(Struct, frozen=True, rename="camel"):
    """A job; `state_reason` says why it is in its state, `reason` why someone began it."""

    id: str
    url: str
    kind: JobKind
    queue: str
    state: JobState
    state_reason: str
    reason: str
    by: str
    by_id: str
    target: str
    filter: str
    rate: float | None
    ramp: list[int]
    counts: CountsAnswer
    can_resume: bool
    export_to: str
    created_at: Moment
    updated_at: Moment


class JobList(Struct, frozen=True, rename="camel"):
    """Jobs, the newest first."""

    items: list[JobAnswer]
    total: int


class FailureAnswer(Struct, frozen=True, rename="camel"):
    """A message that a job could not move, or left out; it is still in its queue."""

    id: str
    message_id: str
    digest: str
    reason: str
    at: Moment


class FailureList(Struct, frozen=True, rename="camel"):
    """What a job could not move; `cursor` asks for what comes after it, null at the end."""

    items: list[FailureAnswer]
    cursor: str | None


class HeldBackAnswer(Struct, frozen=True, rename="camel"):
    """Messages that the broker holds back in a queue, because the next one does not take them."""

    queue: str
    messages: int


class SummaryAnswer(Struct, frozen=True, rename="camel"):
    """A dead-letter queue with its depth."""

    queue: str
    main_queue: str | None
    origins: list[str]
    label: str
    known_by: str
    exists: bool
    state: str | None
    depth: DepthAnswer
    active_job: JobAnswer | None
    held_back: list[HeldBackAnswer]


class OverviewAnswer(Struct, frozen=True, rename="camel"):
    """Every dead-letter queue that the caller may see, from one sweep; never looked into."""

    items: list[SummaryAnswer]
    total: int
    read_at: Moment
    age_seconds: float


class QueueAnswer(Struct, frozen=True, rename="camel"):
    """A dead-letter queue with all that is known without looking into it."""

    queue: str
    main_queue: str | None
    origins: list[str]
    retry_exchange: str | None
    label: str
    known_by: str
    exists: bool
    state: str | None
    idle_since: str | None
    depth: DepthAnswer
    type: str | None
    delivery_limit: int | None
    limit_lifted: bool
    can_lift: bool
    cost: CostAnswer
    targets: list[TargetAnswer]
    active_job: JobAnswer | None
    broker_version: str
    held_back: list[HeldBackAnswer]


def depth_answer(depth: Depth, now: float) -> DepthAnswer:
    """The numbers with their age."""
    return DepthAnswer(
        depth.total,
        depth.ready,
        depth.unacked,
        depth.held_back,
        depth.consumers,
        depth.source,
        timestamp(depth.read_at),
        round(depth.age(now), 3),
    )


def cost_answer(cost: Cost) -> CostAnswer:
    """What looking costs."""
    return CostAnswer(cost.price, cost.text, cost.limit, cost.remedy)


def _target(choice: TargetChoice) -> TargetAnswer:
    return TargetAnswer(
        choice.target.kind.value,
        choice.text,
        choice.exchange,
        choice.routing_key,
        choice.warning,
        choice.flaw,
        choice.is_default,
    )


def queue_answer(detail: QueueDetail, now: float) -> QueueAnswer:
    """A queue."""
    summary = detail.summary
    return QueueAnswer(
        queue=summary.queue,
        main_queue=summary.main_queue,
        origins=list(summary.origins),
        retry_exchange=summary.retry_exchange,
        label=summary.label,
        known_by=summary.known_by,
        exists=summary.exists,
        state=summary.state,
        idle_since=summary.idle_since,
        depth=depth_answer(summary.depth, now),
        type=None if detail.type is None else detail.type.value,
        delivery_limit=detail.limit,
        limit_lifted=detail.limit_lifted,
        can_lift=detail.can_lift,
        cost=cost_answer(detail.cost),
        targets=[_target(choice) for choice in detail.targets],
        active_job=None if summary.active_job is None else job_answer(summary.active_job),
        broker_version=str(detail.version),
        held_back=_held_back(summary),
    )


def _held_back(summary: QueueSummary) -> list[HeldBackAnswer]:
    return [HeldBackAnswer(queue, count) for queue, count in summary.held_back]


def summary_answer(summary: QueueSummary, now: float) -> SummaryAnswer:
    """A queue of the overview."""
    job = summary.active_job
    return SummaryAnswer(
        summary.queue,
        summary.main_queue,
        list(summary.origins),
        summary.label,
        summary.known_by,
        summary.exists,
        summary.state,
        depth_answer(summary.depth, now),
        None if job is None else job_answer(job),
        _held_back(summary),
    )


def job_answer(job: Job) -> JobAnswer:
    """A job."""
    counts, spec = job.counts, job.spec
    return JobAnswer(
        id=job.id,
        url=f"/admin/dlq/jobs/{job.id}",
        kind=job.kind,
        queue=job.queue,
        state=job.state,
        state_reason=job.reason,
        reason=spec.why,
        by=spec.by.name,
        by_id=spec.by.id,
        target=str(spec.target),
        filter=spec.selection.filter,
        rate=job.rate,
        ramp=list(spec.pace.ramp),
        counts=CountsAnswer(
            counts.selected,
            counts.done,
            counts.skipped,
            counts.failed,
            counts.returned,
            counts.remaining,
            counts.arrived_meanwhile,
            counts.came_back,
        ),
        can_resume=job.can_resume,
        export_to=spec.export_to,
        created_at=timestamp(job.created),
        updated_at=timestamp(job.updated),
    )


def failure_answer(failed: FailedMessage) -> FailureAnswer:
    """A message that a job could not move."""
    return FailureAnswer(
        failed.letter_id, failed.message_id, failed.digest, failed.reason, timestamp(failed.at)
    )
