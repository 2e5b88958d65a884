"""The API of jobs: plan, begin, follow and steer a re-drive or a discard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from hopback.admin.answers import (
    CostAnswer,
    FailureList,
    JobAnswer,
    JobList,
    Moment,
    cost_answer,
    failure_answer,
    job_answer,
)
from hopback.admin.answers_messages import GroupAnswer, group_answer
from hopback.admin.api import Answer, Call, Empty, Endpoint
from hopback.admin.auth import forbidden
from hopback.admin.events import job_events
from hopback.admin.problems import Refused
from hopback.admin.roles import Role
from hopback.admin.services import need_target, who
from hopback.deadletters.jobs import JobKind
from hopback.deadletters.pacing import HIGHEST_RATE, MOST_IN_FLIGHT, UNHURRIED, Pace
from hopback.deadletters.requests import DiscardRequest, FromHead, FromSession, RedriveRequest
from hopback.deadletters.targets import Target, TargetKind
from hopback.headers import timestamp
from hopback.policy.redrive import MAX_REDRIVES

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.deadletters.jobs import Job
    from hopback.deadletters.plans import JobPlan
    from hopback.deadletters.requests import Request, Selection

__all__ = [
    "JOBS",
    "FailuresQuery",
    "JobsQuery",
    "LeftOutAnswer",
    "NewJob",
    "NewRate",
    "PaceBody",
    "PlanAnswer",
    "RetryBody",
    "SelectionBody",
    "TargetBody",
    "WayCheckAnswer",
    "plan_answer",
    "visible_job",
]

_Name = Annotated[str, Meta(max_length=255)]
_Queue = Annotated[str, Meta(min_length=1, max_length=255)]
_Reason = Annotated[str, Meta(min_length=1, max_length=1000)]
_Filter = Annotated[str, Meta(max_length=4096)]
_Rate = Annotated[float, Meta(gt=0, le=HIGHEST_RATE)]
_Ids = Annotated[list[_Name], Meta(max_length=2000)]


class SelectionBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Which messages: of a session (these ids, or a filter), or the first ones of the queue."""

    session: _Name = ""
    ids: _Ids = []
    filter: _Filter = ""
    limit: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None


class TargetBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Where to; `reset` null leaves it to the design whether attempts begin anew."""

    kind: TargetKind = TargetKind.DESIGN
    exchange: _Name = ""
    routing_key: _Name = ""
    reset: bool | None = None


class PaceBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How fast, and how carefully; `watchSeconds` null waits as long as the design takes to fail."""

    rate: _Rate | None = None
    in_flight: Annotated[int, Meta(ge=1, le=MOST_IN_FLIGHT)] = UNHURRIED.in_flight
    ramp: Annotated[list[Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=20)] = []
    watch_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None


class NewJob(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A re-drive or a discard. `confirm` repeats the queue's name for a discard."""

    kind: JobKind
    queue: _Queue
    reason: _Reason
    selection: SelectionBody = SelectionBody()
    target: TargetBody = TargetBody()
    pace: PaceBody = PaceBody()
    expected_count: Annotated[int, Meta(ge=0)] | None = None
    max_redrives: Annotated[int, Meta(ge=0, le=1000)] | None = MAX_REDRIVES
    confirm: _Name = ""
    export: bool = True
    force: bool = False
    dry_run: bool = False


class NewRate(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Another rate, messages per second; null for no limit."""

    rate: _Rate | None


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Why it is tried again."""

    reason: _Reason


class JobsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs."""

    queue: _Name = ""
    active: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FailuresQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """From which on."""

    cursor: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class WayCheckAnswer(Struct, frozen=True, rename="camel"):
    """A way that messages would take, and why it may not be used."""

    exchange: str
    routing_key: str
    count: int
    flaw: str | None


class LeftOutAnswer(Struct, frozen=True, rename="camel"):
    """What would not be touched, and why."""

    reason: str
    count: int


class PlanAnswer(Struct, frozen=True, rename="camel"):
    """What a job would do; the histograms are of the `seen` messages that match."""

    kind: JobKind
    queue: str
    target: str
    selected: int
    seen: int
    matching: int
    reasons: list[GroupAnswer]
    errors: list[GroupAnswer]
    ways: list[WayCheckAnswer]
    left_out: list[LeftOutAnswer]
    cost: CostAnswer
    order: str
    warnings: list[str]
    flaws: list[str]
    may_start: bool
    as_of: Moment
    watch_seconds: float
    export_to: str
    """The file on the server to which a discard writes each message first; empty if it does not."""


def plan_answer(plan: JobPlan) -> PlanAnswer:
    """A plan."""
    return PlanAnswer(
        kind=plan.kind,
        queue=plan.queue,
        target=plan.target,
        selected=plan.selected,
        seen=plan.seen,
        matching=plan.matching,
        reasons=[group_answer(each) for each in plan.reasons],
        errors=[group_answer(each) for each in plan.errors],
        ways=[
            WayCheckAnswer(each.exchange, each.routing_key, each.count, each.flaw)
            for each in plan.ways
        ],
        left_out=[LeftOutAnswer(each.reason, each.count) for each in plan.left_out],
        cost=cost_answer(plan.cost),
        order=plan.order,
        warnings=list(plan.warnings),
        flaws=list(plan.flaws),
        may_start=plan.may_start,
        as_of=timestamp(plan.as_of),
        watch_seconds=plan.watch_s,
        export_to=plan.export_to,
    )


async def _create(call: Call[Empty, NewJob]) -> Answer:
    """Plan a job, or begin it."""
    call.need(Role.OPERATOR, call.body.queue)
    request = _request(call)
    operations = call.services.operations
    if isinstance(request, RedriveRequest):
        await need_target(operations, call.principal, request.queue, request.target)
    if call.body.dry_run:
        return Answer(plan_answer(await operations.plan(request)), status=200)
    job = await operations.start(request)
    return Answer(job_answer(job), headers=(("Location", f"/admin/dlq/jobs/{job.id}"),))


def _request(call: Call[Empty, NewJob]) -> Request:
    body = call.body
    common: dict[str, Any] = {
        "queue": body.queue,
        "selection": _selection(body.selection),
        "reason": body.reason,
        "by": who(call.principal),
        "pace": Pace(
            body.pace.rate, body.pace.in_flight, tuple(body.pace.ramp), body.pace.watch_seconds
        ),
        "expected_count": body.expected_count,
        "key": _key(call),
        "forced": body.force,
    }
    if body.kind is JobKind.DISCARD:
        return DiscardRequest(**common, confirm=body.confirm, export=body.export)
    target = body.target
    return RedriveRequest(
        **common,
        target=Target(target.kind, target.exchange, target.routing_key, target.reset),
        max_redrives=body.max_redrives,
        operation=call.correlation,
    )


def _selection(body: SelectionBody) -> Selection:
    if body.session:
        return FromSession(body.session, tuple(body.ids), body.filter)
    if body.ids:
        raise Refused(422, "invalid", "selection.ids: expected selection.session beside them.")
    return FromHead(body.limit, body.filter)


def _key(call: Call[Empty, NewJob]) -> str | None:
    """The caller's idempotency key; one caller's is not another's."""
    key = call.request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 200 or not key.isprintable():
        raise Refused(400, "bad-key", "Idempotency-Key: expected 1 to 200 printable characters.")
    return f"{call.principal.id} {key}"


async def visible_job(call: Call[Any, Any], role: Role = Role.VIEWER) -> Job:
    """The job in the path, if the caller may see it."""
    job = await call.services.operations.job(call.path["job"])
    call.need(role, job.queue)
    return job


async def _steered(call: Call[Any, Any]) -> Job:
    """The job in the path, if the caller may steer it: operators their own, admins all."""
    job = await visible_job(call, Role.OPERATOR)
    if job.spec.by.id != call.principal.id and not call.principal.allows(Role.ADMIN, job.queue):
        raise forbidden("An operator steers own jobs only; this one belongs to someone else.")
    return job


async def _list(call: Call[JobsQuery, None]) -> JobList:
    asked = call.query
    jobs = await call.services.operations.jobs(
        queue=asked.queue, active=asked.active, limit=asked.limit
    )
    seen = [job_answer(job) for job in jobs if call.principal.allows(Role.VIEWER, job.queue)]
    return JobList(seen, len(seen))


async def _show(call: Call[Empty, None]) -> JobAnswer:
    return job_answer(await visible_job(call))


async def _failures(call: Call[FailuresQuery, None]) -> FailureList:
    job, asked = await visible_job(call), call.query
    found = await call.services.operations.failures(job.id, cursor=asked.cursor, limit=asked.limit)
    more = str(asked.cursor + len(found)) if len(found) == asked.limit else None
    return FailureList([failure_answer(each) for each in found], more)


async def _events(call: Call[Empty, None]) -> Response:
    job = await visible_job(call)
    events = job_events(call.services.operations.events(job.id))
    return call.services.streams.open(events, call.principal)


async def _cancel(call: Call[Empty, None]) -> JobAnswer:
    job = await _steered(call)
    return job_answer(await call.services.operations.cancel(job.id, by=who(call.principal)))


async def _pause(call: Call[Empty, None]) -> JobAnswer:
    job = await _steered(call)
    return job_answer(await call.services.operations.pause(job.id, by=who(call.principal)))


async def _resume(call: Call[Empty, None]) -> JobAnswer:
    job = await _steered(call)
    return job_answer(await call.services.operations.resume(job.id, by=who(call.principal)))


async def _retry(call: Call[Empty, RetryBody]) -> Answer:
    job = await _steered(call)
    if job.kind is JobKind.REDRIVE:
        await need_target(call.services.operations, call.principal, job.queue, job.spec.target)
    again = await call.services.operations.retry_failures(
        job.id, by=who(call.principal), reason=call.body.reason
    )
    return Answer(job_answer(again), headers=(("Location", f"/admin/dlq/jobs/{again.id}"),))


async def _set_rate(call: Call[Empty, NewRate]) -> JobAnswer:
    job = await _steered(call)
    return job_answer(
        await call.services.operations.set_rate(job.id, call.body.rate, by=who(call.principal))
    )


_JOB = "/admin/dlq/jobs/{job}"
_KEY = (("Idempotency-Key", "The same key again finds the job that is there."),)

JOBS = (
    Endpoint(
        "GET", "/admin/dlq/jobs", "listJobs", "Jobs, the newest first.",
        _list, Role.VIEWER, query=JobsQuery, answer=JobList,
    ),
    Endpoint(
        "POST", "/admin/dlq/jobs", "createJob",
        "Begin a re-drive or a discard; with `dryRun` answer 200 with the plan instead.",
        _create, Role.OPERATOR, body=NewJob, answer=JobAnswer, status=202, errors=(404, 409),
        headers=_KEY, further=((200, PlanAnswer),),
    ),
    Endpoint("GET", _JOB, "showJob", "A job.", _show, Role.VIEWER, answer=JobAnswer),
    Endpoint(
        "GET", f"{_JOB}/failures", "listFailures", "What a job could not move or left out.",
        _failures, Role.VIEWER, query=FailuresQuery, answer=FailureList,
    ),
    Endpoint(
        "GET", f"{_JOB}/events", "followJob",
        "The job now and after every change, as server-sent events of type `job`.",
        _events, Role.VIEWER, media=("text/event-stream",),
    ),
    Endpoint(
        "POST", f"{_JOB}/cancel", "cancelJob", "Finish what is in flight, give the rest back.",
        _cancel, Role.OPERATOR, answer=JobAnswer, errors=(409,),
    ),
    Endpoint(
        "POST", f"{_JOB}/pause", "pauseJob", "Finish what is in flight, then wait.",
        _pause, Role.OPERATOR, answer=JobAnswer, errors=(409,),
    ),
    Endpoint(
        "POST", f"{_JOB}/resume", "resumeJob", "Go on.",
        _resume, Role.OPERATOR, answer=JobAnswer, errors=(409,),
    ),
    Endpoint(
        "POST", f"{_JOB}/retry-failures", "retryFailures",
        "A new job for exactly what this one could not move.",
        _retry, Role.OPERATOR, body=RetryBody, answer=JobAnswer, status=202, errors=(409,),
    ),
    Endpoint(
        "PATCH", _JOB, "setRate", "Another rate from now on.",
        _set_rate, Role.OPERATOR, body=NewRate, answer=JobAnswer, errors=(409,),
    ),
)  # fmt: skip
"""The rows."""
