"""The API of dead letters: queues, browse sessions, messages, and jobs that re-drive or discard them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct, structs
from starlette.responses import Response

from hopback.errors import HopbackError
from hopback.ops.brokers.discovery import CandidateList, QueueAnswer
from hopback.ops.contract.queue_rules import (
    EVERY_QUEUE,
    JOB_QUEUE,
    JOB_TARGETS,
    PATH_QUEUE,
    SESSION_QUEUE,
    VISIBLE_QUEUES,
    QueueRule,
    queues_of_answer,
    targets_of,
)
from hopback.ops.contract.requests import (
    EditRequest,
    GroupBy,
    JobRequest,
    LimitReason,
    NewRate,
    RedriveRequest,
    Renewal,
    RetryRequest,
    SessionRequest,
    Submission,
)
from hopback.ops.contract.roles import Role
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.surveys import ErrorOverview, QueueTrend
from hopback.ops.contract.values import (
    EditedCopy,
    FailureList,
    Groups,
    Job,
    JobList,
    JobPlan,
    LimitPolicy,
    MessageView,
    Moment,
    Overview,
    Page,
    QueueDetail,
    SessionView,
)
from hopback.ops.http.api import ApiAnswer, ApiTable, Call, Empty, answer_event
from hopback.ops.http.auth import forbidden
from hopback.ops.http.events import AT_ONCE_S, EVENTS, job_events, search_events
from hopback.ops.http.problems import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from hopback.ops.contract.search import SearchProgress

DEADLETTERS = ApiTable()
"""The rows of this part, each above what answers it."""

_SESSION = "/admin/dlq/sessions/{session}"
_JOB = "/admin/dlq/jobs/{job}"
_KEY = (("Idempotency-Key", "The same key again finds the job that is there."),)
_MOST_GROUPS = 1000  # an answer of a few megabytes at most

_Name = Annotated[str, Meta(max_length=255)]
_Filter = Annotated[str, Meta(max_length=4096)]
_Cursor = Annotated[int, Meta(ge=0, le=2**31)]


class MessagesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters, and after which."""

    filter: _Filter = ""
    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class GroupQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to group by: one of `GroupBy`, or a `header.NAME` or `payload.PATH`."""

    by: Annotated[str, Meta(max_length=512)] = GroupBy.FINGERPRINT.value
    filter: _Filter = ""


class JobsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs."""

    queue: _Name = ""
    active: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FailuresQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """From which on."""

    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


def _held_session(call: Call[Any, Any]) -> SessionView:
    return call.operations.session(call.path["session"])


async def _job_in_path(call: Call[Any, Any]) -> Job:
    return await call.operations.job(call.path["job"])


async def _steerable_job(call: Call[Any, Any]) -> Job:
    """Return the job in the path. Refuse an operator who did not start it. Admins may steer every job."""
    job = await _job_in_path(call)
    if job.by_id != call.principal.id and not call.principal.allows(Role.ADMIN, job.queue):
        raise forbidden("An operator steers own jobs only; this one belongs to someone else.")
    return job


@DEADLETTERS.row("GET", "/admin/dlq/overview", Role.VIEWER, VISIBLE_QUEUES, answer=Overview)
async def _show_overview(call: Call[Empty, None]) -> Overview:
    """The dead-letter queues with their depths, from one sweep a second."""
    swept, now = await call.services.sweep.get(), call.services.clock.now()
    seen = [one for one in swept.queues if call.principal.allows(Role.VIEWER, one.queue)]
    items = tuple(structs.replace(one, depth=one.depth.shown_at(now)) for one in seen)
    return Overview(items, len(items), Moment(swept.at), round(swept.age(now), 3))


@DEADLETTERS.row("GET", "/admin/dlq/candidates", Role.VIEWER, VISIBLE_QUEUES, answer=CandidateList)
async def _list_candidates(call: Call[Empty, None]) -> CandidateList:
    """Queues with messages and no consumer: are they dead letters? And what was answered before."""
    found = await call.operations.candidates()
    items = tuple(one for one in found.items if call.principal.allows(Role.VIEWER, one.queue))
    answers = tuple(one for one in found.answers if call.principal.allows(Role.VIEWER, one.queue))
    return CandidateList(items, len(items), sum(one.messages for one in items), answers)


async def _answered_queues(call: Call[Empty, QueueAnswer]) -> tuple[str, ...]:
    return queues_of_answer(call.body)


@DEADLETTERS.row(
    "PUT",
    "/admin/dlq/candidates",
    Role.ADMIN,
    QueueRule("the queue and its main queue", _answered_queues),
    body=QueueAnswer,
    status=204,
    errors=(404,),
)
async def _answer_candidate(call: Call[Empty, QueueAnswer]) -> None:
    """Say that a queue holds dead letters, or none; `forget` takes that back."""
    await call.operations.answer_candidate(call.body)


@DEADLETTERS.row("GET", "/admin/dlq/queues/{queue}", Role.VIEWER, PATH_QUEUE, answer=QueueDetail)
async def _show_queue(call: Call[Empty, None]) -> QueueDetail:
    """A dead-letter queue: type, cost of looking, targets, depth with its age."""
    return await call.operations.queue(call.path["queue"])


@DEADLETTERS.row("GET", "/admin/dlq/errors", Role.OPERATOR, EVERY_QUEUE, answer=ErrorOverview)
async def _list_errors(call: Call[Empty, None]) -> ErrorOverview:
    """The errors of all queues, by the last survey of each; what is new since yesterday is marked."""
    return await call.operations.errors()


@DEADLETTERS.row(
    "POST",
    "/admin/dlq/errors/survey",
    Role.OPERATOR,
    EVERY_QUEUE,
    answer=ErrorOverview,
    takes_long=True,
)
async def _survey_queues(call: Call[Empty, None]) -> ErrorOverview:
    """Survey now every queue that looking does not harm and that nobody works on."""
    return await call.operations.errors(survey=True, on_progress=call.on_progress)


@DEADLETTERS.row(
    "GET", "/admin/dlq/queues/{queue}/trend", Role.VIEWER, PATH_QUEUE, answer=QueueTrend
)
async def _show_trend(call: Call[Empty, None]) -> QueueTrend:
    """How the depth of a queue went, for a month; kept in the store."""
    return await call.operations.trend(call.path["queue"])


async def _searched_queues(call: Call[Empty, SearchRequest]) -> tuple[str, ...]:
    if call.body.job:
        return ((await call.operations.job(call.body.job)).queue,)
    return call.body.queues


@DEADLETTERS.row(
    "POST",
    "/admin/dlq/search",
    Role.OPERATOR,
    QueueRule("each named queue, or the queues that the caller may search", _searched_queues),
    body=SearchRequest,
    media=(EVENTS,),
    errors=(404, 409),
    is_heavy=True,
)
async def _search_messages(call: Call[Empty, SearchRequest]) -> Response:
    """Look through whole queues, one or all, as server-sent events of type `search`; leaving cancels."""
    asked = structs.replace(call.body, queues=await _searched_queues(call))
    if not asked.queues:
        known = await call.operations.queues()
        names = [one.queue for one in known if call.principal.allows(Role.OPERATOR, one.queue)]
        asked = structs.replace(asked, queues=tuple(names))
    found = call.operations.search(asked)
    # What is wrong with the question is told with a status of its own, unless the broker is slow to tell.
    first = asyncio.ensure_future(anext(found))
    if (await asyncio.wait({first}, timeout=AT_ONCE_S))[0]:
        first.result()

    async def end() -> None:
        first.cancel()
        await asyncio.wait({first})
        await found.aclose()

    try:
        events = _search_stream(first, found, call)
        return call.services.streams.open(events, call.principal, end)
    except Refused:
        await end()
        raise


async def _search_stream(
    first: asyncio.Future[SearchProgress],
    found: AsyncGenerator[SearchProgress, None],
    call: Call[Empty, SearchRequest],
) -> AsyncGenerator[bytes, None]:
    """The events of a search whose beginning is under way."""

    async def told() -> AsyncGenerator[SearchProgress, None]:
        async with aclosing(found):
            yield await first
            async for progress in found:
                yield progress

    try:
        async with aclosing(search_events(told())) as events:
            async for event in events:
                yield event
    except HopbackError as refused:
        yield answer_event(call.refusal(refused))


@DEADLETTERS.row(
    "POST",
    "/admin/dlq/queues/{queue}/lift-limit",
    Role.OPERATOR,
    PATH_QUEUE,
    body=LimitReason,
    body_optional=True,
    answer=LimitPolicy,
    errors=(409,),
)
async def _lift_limit(call: Call[Empty, LimitReason]) -> LimitPolicy:
    """Lift the queue's delivery limit by a policy of its own, so that looking costs nothing."""
    policy = await call.operations.lift_limit(call.path["queue"], reason=call.body.reason)
    return LimitPolicy(policy)


@DEADLETTERS.row(
    "POST",
    "/admin/dlq/queues/{queue}/restore-limit",
    Role.OPERATOR,
    PATH_QUEUE,
    body=LimitReason,
    body_optional=True,
    status=204,
    errors=(409,),
)
async def _restore_limit(call: Call[Empty, LimitReason]) -> None:
    """Take that policy away again; refused while the limit would remove messages."""
    await call.operations.restore_limit(call.path["queue"], reason=call.body.reason)


@DEADLETTERS.row(
    "POST",
    "/admin/dlq/queues/{queue}/sessions",
    Role.OPERATOR,
    PATH_QUEUE,
    body=SessionRequest,
    body_optional=True,
    answer=SessionView,
    status=201,
    errors=(409,),
    takes_long=True,
)
async def _open_session(call: Call[Empty, SessionRequest]) -> ApiAnswer:
    """Open a browse session: hold messages for looking at."""
    asked, queue = call.body, call.path["queue"]
    view = await call.services.hold(call.principal, queue, asked, call.on_progress)
    return ApiAnswer(view, headers=(("Location", f"/admin/dlq/sessions/{view.id}"),))


@DEADLETTERS.row("GET", _SESSION, Role.OPERATOR, SESSION_QUEUE, answer=SessionView)
async def _show_session(call: Call[Empty, None]) -> SessionView:
    """A browse session."""
    return _held_session(call)


@DEADLETTERS.row("DELETE", _SESSION, Role.OPERATOR, SESSION_QUEUE, status=204, takes_long=True)
async def _release_session(call: Call[Empty, None]) -> None:
    """Give everything back, in order."""
    view = _held_session(call)
    await call.operations.release(view.id)
    await call.operations.note("session.release", queue=view.queue, details={"session": view.id})


@DEADLETTERS.row(
    "POST",
    f"{_SESSION}/renew",
    Role.OPERATOR,
    SESSION_QUEUE,
    body=Renewal,
    body_optional=True,
    answer=SessionView,
)
async def _renew_session(call: Call[Empty, Renewal]) -> SessionView:
    """Hold on for longer."""
    view = _held_session(call)
    renewed = await call.operations.renew(view.id, call.body.ttl_seconds)
    await call.operations.note("session.renew", queue=view.queue, details={"session": view.id})
    return renewed


@DEADLETTERS.row(
    "GET",
    f"{_SESSION}/messages",
    Role.OPERATOR,
    SESSION_QUEUE,
    query=MessagesQuery,
    answer=Page,
)
async def _list_messages(call: Call[MessagesQuery, None]) -> Page:
    """Dead letters of a session that match."""
    view, asked = _held_session(call), call.query
    return await call.operations.messages(
        view.id, asked.filter, cursor=asked.cursor, size=asked.limit
    )


@DEADLETTERS.row(
    "GET",
    f"{_SESSION}/messages/{{message}}",
    Role.OPERATOR,
    SESSION_QUEUE,
    answer=MessageView,
)
async def _show_message(call: Call[Empty, None]) -> MessageView:
    """A message with its story, headers and payload; written to the audit."""
    view = _held_session(call)
    return await call.operations.message(view.id, call.path["message"])


@DEADLETTERS.row(
    "GET",
    f"{_SESSION}/messages/{{message}}/body",
    Role.OPERATOR,
    SESSION_QUEUE,
    media=("application/octet-stream",),
)
async def _download_body(call: Call[Empty, None]) -> Response:
    """The bytes of a message as a file; written to the audit."""
    view, message = _held_session(call), call.path["message"]
    body = await call.operations.body(view.id, message)
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{quote(message, safe="")}.bin"'},
    )


async def _edit_targets(call: Call[Empty, EditRequest]) -> Iterable[str] | None:
    return await targets_of(call, _held_session(call).queue, call.body.target)


@DEADLETTERS.row(
    "POST",
    f"{_SESSION}/messages/{{message}}/edit",
    Role.OPERATOR,
    SESSION_QUEUE,
    QueueRule("every queue that the copy reaches", _edit_targets),
    body=EditRequest,
    answer=EditedCopy,
    status=201,
    errors=(409,),
)
async def _edit_and_redrive(call: Call[Empty, EditRequest]) -> EditedCopy:
    """Send a changed copy of a message back; the original stays where it is."""
    view, asked = _held_session(call), call.body
    copy = await call.operations.edit_and_redrive(
        view.id, call.path["message"], asked.edit, target=asked.target, reason=asked.reason
    )
    return EditedCopy(copy)


@DEADLETTERS.row(
    "GET",
    f"{_SESSION}/groups",
    Role.OPERATOR,
    SESSION_QUEUE,
    query=GroupQuery,
    answer=Groups,
)
async def _list_groups(call: Call[GroupQuery, None]) -> Groups:
    """Dead letters by what they have in common."""
    view, asked = _held_session(call), call.query
    groups = await call.operations.groups(view.id, asked.by, asked.filter)
    items = groups.items[:_MOST_GROUPS]
    return structs.replace(groups, items=items, more=len(groups.items) - len(items))


@DEADLETTERS.row(
    "GET", "/admin/dlq/jobs", Role.VIEWER, VISIBLE_QUEUES, query=JobsQuery, answer=JobList
)
async def _list_jobs(call: Call[JobsQuery, None]) -> JobList:
    """Jobs, the newest first."""
    asked = call.query
    jobs = await call.operations.jobs(queue=asked.queue, active=asked.active, limit=asked.limit)
    seen = tuple(job for job in jobs if call.principal.allows(Role.VIEWER, job.queue))
    return JobList(seen, len(seen))


async def _moved_from(call: Call[Empty, JobRequest]) -> tuple[str, ...]:
    return (call.body.queue,)


async def _moved_to(call: Call[Empty, JobRequest]) -> Iterable[str] | None:
    if not isinstance(call.body, RedriveRequest):
        return ()
    return await targets_of(call, call.body.queue, call.body.target)


@DEADLETTERS.row(
    "POST",
    "/admin/dlq/jobs",
    Role.OPERATOR,
    QueueRule("the dead-letter queue", _moved_from),
    QueueRule("every queue that a re-drive reaches", _moved_to),
    body=JobRequest,
    answer=Job,
    status=202,
    errors=(404, 409),
    headers=_KEY,
    further=((200, JobPlan),),
    takes_long=True,
    is_heavy=True,
)
async def _create_job(call: Call[Empty, JobRequest]) -> ApiAnswer:
    """Begin a re-drive or a discard; with `dryRun` answer 200 with the plan instead."""
    request = call.body
    if isinstance(request, RedriveRequest) and request.change:
        call.need(Role.ADMIN, request.queue)
    key = call.request.headers.get("idempotency-key")
    if key is not None:
        if not 1 <= len(key) <= 200 or not key.isprintable():
            expected = "Idempotency-Key: expected 1 to 200 printable characters."
            raise Refused(400, "bad-key", expected)
        key = f"{call.principal.id} {key}"  # one caller's is not another's
    if request.dry_run:
        plan = await call.operations.plan(request, on_progress=call.on_progress)
        return ApiAnswer(plan, status=200)
    submission = Submission(key=key, operation=call.correlation)
    job = await call.operations.start(request, submission, on_progress=call.on_progress)
    return ApiAnswer(job, headers=(("Location", f"/admin/dlq/jobs/{job.id}"),))


@DEADLETTERS.row("GET", _JOB, Role.VIEWER, JOB_QUEUE, answer=Job)
async def _show_job(call: Call[Empty, None]) -> Job:
    """A job."""
    return await _job_in_path(call)


@DEADLETTERS.row(
    "GET",
    f"{_JOB}/failures",
    Role.VIEWER,
    JOB_QUEUE,
    query=FailuresQuery,
    answer=FailureList,
)
async def _list_failures(call: Call[FailuresQuery, None]) -> FailureList:
    """What a job could not move or left out."""
    job, asked = await _job_in_path(call), call.query
    found = await call.operations.failures(job.id, cursor=asked.cursor, limit=asked.limit)
    more = str(asked.cursor + len(found)) if len(found) == asked.limit else None
    return FailureList(found, more)


@DEADLETTERS.row("GET", f"{_JOB}/events", Role.VIEWER, JOB_QUEUE, media=(EVENTS,))
async def _follow_job(call: Call[Empty, None]) -> Response:
    """The job now and after every change, as server-sent events of type `job`."""
    job = await _job_in_path(call)
    events = job_events(call.operations.events(job.id), call.services.placed)
    return call.services.streams.open(events, call.principal)


@DEADLETTERS.row("POST", f"{_JOB}/cancel", Role.OPERATOR, JOB_QUEUE, answer=Job, errors=(409,))
async def _cancel_job(call: Call[Empty, None]) -> Job:
    """Finish what is in flight, give the rest back."""
    job = await _steerable_job(call)
    return await call.operations.cancel(job.id)


@DEADLETTERS.row("POST", f"{_JOB}/pause", Role.OPERATOR, JOB_QUEUE, answer=Job, errors=(409,))
async def _pause_job(call: Call[Empty, None]) -> Job:
    """Finish what is in flight, then wait."""
    job = await _steerable_job(call)
    return await call.operations.pause(job.id)


@DEADLETTERS.row(
    "POST",
    f"{_JOB}/resume",
    Role.OPERATOR,
    JOB_QUEUE,
    JOB_TARGETS,
    answer=Job,
    errors=(409,),
)
async def _resume_job(call: Call[Empty, None]) -> Job:
    """Go on."""
    job = await _steerable_job(call)
    return await call.operations.resume(job.id)


@DEADLETTERS.row(
    "POST",
    f"{_JOB}/retry-failures",
    Role.OPERATOR,
    JOB_QUEUE,
    JOB_TARGETS,
    body=RetryRequest,
    answer=Job,
    status=202,
    errors=(409,),
)
async def _retry_failures(call: Call[Empty, RetryRequest]) -> ApiAnswer:
    """A new job for exactly what this one could not move."""
    job = await _steerable_job(call)
    again = await call.operations.retry_failures(job.id, reason=call.body.reason)
    return ApiAnswer(again, headers=(("Location", f"/admin/dlq/jobs/{again.id}"),))


@DEADLETTERS.row("PATCH", _JOB, Role.OPERATOR, JOB_QUEUE, body=NewRate, answer=Job, errors=(409,))
async def _set_rate(call: Call[Empty, NewRate]) -> Job:
    """Another rate from now on."""
    job = await _steerable_job(call)
    return await call.operations.set_rate(job.id, call.body.rate)
