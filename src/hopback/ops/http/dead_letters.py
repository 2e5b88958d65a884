"""The API for dead-letter queues, browse sessions, messages and jobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec import structs
from starlette.responses import Response

from hopback.errors import HopbackError
from hopback.ops.contract import endpoints
from hopback.ops.contract.candidates import CandidateList
from hopback.ops.contract.queue_rules import queues_of_search
from hopback.ops.contract.requests import (
    FailuresQuery,
    GroupQuery,
    JobRequest,
    JobsQuery,
    RedriveRequest,
    SessionRequest,
    Submission,
)
from hopback.ops.contract.roles import Role
from hopback.ops.contract.values import (
    FailureList,
    Groups,
    Job,
    JobList,
    Moment,
    Overview,
    SessionView,
)
from hopback.ops.http.api import ApiAnswer, ApiTable, Call, answer_event
from hopback.ops.http.events import AT_ONCE_S, job_events, search_events
from hopback.ops.http.permissions import searchable_queues, visible_jobs
from hopback.ops.http.problems import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.ops.contract.endpoints import Empty
    from hopback.ops.contract.search import SearchRequest
    from hopback.ops.contract.surveys import ErrorOverview

DEADLETTERS = ApiTable()
"""The endpoints whose implementation does more than call an operation."""

_MOST_GROUPS = 1000  # groups per response, which is a few megabytes at most


@DEADLETTERS.answer(endpoints.OVERVIEW)
async def _show_overview(call: Call[Empty, None]) -> Overview:
    """List the dead-letter queues with their depths."""
    swept, now = await call.services.recent.sweep.get(), call.services.clock.now()
    seen = call.principal.visible(swept.queues)
    items = tuple(structs.replace(one, depth=one.depth.shown_at(now)) for one in seen)
    return Overview(items, len(items), Moment(swept.at), round(swept.age(now), 3))


@DEADLETTERS.answer(endpoints.CANDIDATES)
async def _list_candidates(call: Call[Empty, None]) -> CandidateList:
    """List queues with messages and without consumers that may contain dead letters, and earlier
    answers.
    """
    found = await call.operations.candidates()
    items = call.principal.visible(found.items)
    answers = call.principal.visible(found.answers)
    return CandidateList(items, len(items), sum(one.messages for one in items), answers)


@DEADLETTERS.answer(endpoints.SURVEY)
async def _survey_queues(call: Call[Empty, None]) -> ErrorOverview:
    """Survey all queues that can be read without risk and have no active job."""
    return await call.operations.errors(survey=True, on_progress=call.on_progress)


@DEADLETTERS.answer(endpoints.SEARCH)
async def _search_messages(call: Call[Empty, SearchRequest]) -> Response:
    """Search whole queues. The hits are sent as events of type `search`. Disconnecting cancels the
    search.
    """
    asked = structs.replace(call.body, queues=await queues_of_search(call))
    if not asked.queues:
        asked = structs.replace(asked, queues=await searchable_queues(call, missing=True))
    events = search_events(call.operations.search(asked))
    # Wait for a moment, so that an invalid request can still be refused with an error status.
    first = asyncio.ensure_future(anext(events))
    if (await asyncio.wait({first}, timeout=AT_ONCE_S))[0]:
        first.result()

    async def end() -> None:
        first.cancel()
        await asyncio.wait({first})
        await events.aclose()

    try:
        stream = _continue_search(first, events, call)
        return call.services.shared.streams.open(stream, call.principal, end)
    except Refused:
        await end()
        raise


async def _continue_search(
    first: asyncio.Future[bytes],
    events: AsyncGenerator[bytes, None],
    call: Call[Empty, SearchRequest],
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a search, starting with the first one. An error is the last event."""
    try:
        async with aclosing(events):
            yield await first
            async for event in events:
                yield event
    except HopbackError as refused:
        yield answer_event(call.refusal(refused))


@DEADLETTERS.answer(endpoints.OPEN_SESSION)
async def _open_session(call: Call[Empty, SessionRequest]) -> SessionView:
    """Open a browse session, which holds messages for inspection."""
    asked, queue = call.body, call.path["queue"]
    return await call.services.hold(call.principal, queue, asked, call.on_progress)


@DEADLETTERS.answer(endpoints.SESSION)
async def _show_session(call: Call[Empty, None]) -> SessionView:
    """Return a browse session."""
    return call.session


@DEADLETTERS.answer(endpoints.RELEASE)
async def _release_session(call: Call[Empty, None]) -> None:
    """End a browse session and requeue its messages in order."""
    await call.operations.release(call.path["session"])


@DEADLETTERS.answer(endpoints.BODY)
async def _download_body(call: Call[Empty, None]) -> Response:
    """Download the body of a message. This is recorded in the audit."""
    message = call.path["message"]
    body = await call.operations.body(call.path["session"], message)
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{quote(message, safe="")}.bin"'},
    )


@DEADLETTERS.answer(endpoints.GROUPS)
async def _list_groups(call: Call[GroupQuery, None]) -> Groups:
    """Group the dead letters of a session, largest group first."""
    groups = await call.operations.groups(call.path["session"], call.query.by, call.query.where)
    items = groups.items[:_MOST_GROUPS]
    return structs.replace(groups, items=items, more=len(groups.items) - len(items))


@DEADLETTERS.answer(endpoints.JOBS)
async def _list_jobs(call: Call[JobsQuery, None]) -> JobList:
    """List jobs, newest first."""
    asked = call.query
    seen = await visible_jobs(
        call.operations, call.principal, asked.limit, queue=asked.queue, active=asked.active
    )
    return JobList(seen, len(seen))


@DEADLETTERS.answer(endpoints.START_JOB)
async def _create_job(call: Call[Empty, JobRequest]) -> Job | ApiAnswer:
    """Start a re-drive or a discard. With `dryRun`, only return its plan."""
    request = call.body
    if isinstance(request, RedriveRequest) and request.change:
        call.need(Role.ADMIN, request.queue)
    key = call.request.headers.get("idempotency-key")
    if key is not None:
        if not 1 <= len(key) <= 200 or not key.isprintable():
            expected = "Idempotency-Key: expected 1 to 200 printable characters."
            raise Refused(400, "bad-key", expected)
        key = f"{call.principal.id} {key}"  # callers cannot use each other's keys
    if request.dry_run:
        plan = await call.operations.plan(request, on_progress=call.on_progress)
        return ApiAnswer(plan, status=200)
    submission = Submission(key=key, operation=call.correlation)
    return await call.operations.start(request, submission, on_progress=call.on_progress)


@DEADLETTERS.answer(endpoints.FAILURES)
async def _list_failures(call: Call[FailuresQuery, None]) -> FailureList:
    """List the messages that a job could not move or has skipped."""
    job, asked = call.path["job"], call.query
    found = await call.operations.failures(job, cursor=asked.cursor, limit=asked.limit)
    more = str(asked.cursor + len(found)) if len(found) == asked.limit else None
    return FailureList(found, more)


@DEADLETTERS.answer(endpoints.FOLLOW_JOB)
async def _follow_job(call: Call[Empty, None]) -> Response:
    """Stream the state of a job as server-sent events of type `job`, now and after every change."""
    job = await call.job()
    events = job_events(call.operations.events(job.id), call.services.add_prefix)
    return call.services.shared.streams.open(events, call.principal)
