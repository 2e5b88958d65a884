"""The API of jobs: plan, begin, follow and steer a re-drive or a discard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from hopback.admin.api import ApiAnswer, ApiTable, Call, Empty
from hopback.admin.auth import forbidden
from hopback.admin.events import job_events
from hopback.admin.problems import Refused
from hopback.admin.roles import Role
from hopback.admin.services import need_target, who
from hopback.deadletters.contract import FailureList, Job, JobList, JobPlan
from hopback.deadletters.requests import (
    BY_DESIGN,
    JobKind,
    JobRequest,
    NewRate,
    RedriveRequest,
    RetryRequest,
)

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "JOBS",
    "FailuresQuery",
    "JobsQuery",
    "visible_job",
]

_Name = Annotated[str, Meta(max_length=255)]


JOBS = ApiTable()
"""The rows of this part, each above what answers it."""
_JOB = "/admin/dlq/jobs/{job}"
_KEY = (("Idempotency-Key", "The same key again finds the job that is there."),)


class JobsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs."""

    queue: _Name = ""
    active: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FailuresQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """From which on."""

    cursor: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


@JOBS.row("GET", "/admin/dlq/jobs", Role.VIEWER, query=JobsQuery, answer=JobList)
async def _list_jobs(call: Call[JobsQuery, None]) -> JobList:
    """Jobs, the newest first."""
    asked = call.query
    jobs = await call.services.operations.jobs(
        queue=asked.queue, active=asked.active, limit=asked.limit
    )
    seen = tuple(job for job in jobs if call.principal.allows(Role.VIEWER, job.queue))
    return JobList(seen, len(seen))


@JOBS.row(
    "POST",
    "/admin/dlq/jobs",
    Role.OPERATOR,
    body=JobRequest,
    answer=Job,
    status=202,
    errors=(404, 409),
    headers=_KEY,
    further=((200, JobPlan),),
)
async def _create_job(call: Call[Empty, JobRequest]) -> ApiAnswer:
    """Begin a re-drive or a discard; with `dryRun` answer 200 with the plan instead."""
    call.need(Role.OPERATOR, call.body.queue)
    if call.body.selection.ids and not call.body.selection.session:
        raise Refused(422, "invalid", "selection.ids: expected selection.session beside them.")
    request = call.body.request(who(call.principal), _key(call), call.correlation)
    operations = call.services.operations
    if isinstance(request, RedriveRequest):
        await need_target(operations, call.principal, request.queue, request.target)
    if call.body.dry_run:
        return ApiAnswer(await operations.plan(request), status=200)
    job = await operations.start(request)
    return ApiAnswer(job, headers=(("Location", f"/admin/dlq/jobs/{job.id}"),))


def _key(call: Call[Empty, JobRequest]) -> str | None:
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
    if job.by_id != call.principal.id and not call.principal.allows(Role.ADMIN, job.queue):
        raise forbidden("An operator steers own jobs only; this one belongs to someone else.")
    return job


@JOBS.row("GET", _JOB, Role.VIEWER, answer=Job)
async def _show_job(call: Call[Empty, None]) -> Job:
    """A job."""
    return await visible_job(call)


@JOBS.row("GET", f"{_JOB}/failures", Role.VIEWER, query=FailuresQuery, answer=FailureList)
async def _list_failures(call: Call[FailuresQuery, None]) -> FailureList:
    """What a job could not move or left out."""
    job, asked = await visible_job(call), call.query
    found = await call.services.operations.failures(job.id, cursor=asked.cursor, limit=asked.limit)
    more = str(asked.cursor + len(found)) if len(found) == asked.limit else None
    return FailureList(found, more)


@JOBS.row("GET", f"{_JOB}/events", Role.VIEWER, media=("text/event-stream",))
async def _follow_job(call: Call[Empty, None]) -> Response:
    """The job now and after every change, as server-sent events of type `job`."""
    job = await visible_job(call)
    events = job_events(call.services.operations.events(job.id))
    return call.services.streams.open(events, call.principal)


@JOBS.row("POST", f"{_JOB}/cancel", Role.OPERATOR, answer=Job, errors=(409,))
async def _cancel_job(call: Call[Empty, None]) -> Job:
    """Finish what is in flight, give the rest back."""
    job = await _steered(call)
    return await call.services.operations.cancel(job.id, by=who(call.principal))


@JOBS.row("POST", f"{_JOB}/pause", Role.OPERATOR, answer=Job, errors=(409,))
async def _pause_job(call: Call[Empty, None]) -> Job:
    """Finish what is in flight, then wait."""
    job = await _steered(call)
    return await call.services.operations.pause(job.id, by=who(call.principal))


@JOBS.row("POST", f"{_JOB}/resume", Role.OPERATOR, answer=Job, errors=(409,))
async def _resume_job(call: Call[Empty, None]) -> Job:
    """Go on."""
    job = await _steered(call)
    return await call.services.operations.resume(job.id, by=who(call.principal))


@JOBS.row(
    "POST",
    f"{_JOB}/retry-failures",
    Role.OPERATOR,
    body=RetryRequest,
    answer=Job,
    status=202,
    errors=(409,),
)
async def _retry_failures(call: Call[Empty, RetryRequest]) -> ApiAnswer:
    """A new job for exactly what this one could not move."""
    job = await _steered(call)
    if job.kind is JobKind.REDRIVE:
        await need_target(
            call.services.operations, call.principal, job.queue, job.target_choice or BY_DESIGN
        )
    again = await call.services.operations.retry_failures(
        job.id, by=who(call.principal), reason=call.body.reason
    )
    return ApiAnswer(again, headers=(("Location", f"/admin/dlq/jobs/{again.id}"),))


@JOBS.row("PATCH", _JOB, Role.OPERATOR, body=NewRate, answer=Job, errors=(409,))
async def _set_rate(call: Call[Empty, NewRate]) -> Job:
    """Another rate from now on."""
    job = await _steered(call)
    return await call.services.operations.set_rate(job.id, call.body.rate, by=who(call.principal))
