"""The pages to start, follow and control re-drives and discards.

A job is started in three steps: choosing messages, choosing target and pace, and reviewing the dry
run. All steps are part of one form. The values of other steps are in hidden fields, so the server
does not store anything in between.

In addition to the options of a job, the form has these fields:

- `step`: the requested step from 1 to 3, or `go` to start the job.
- `on`: the step that was shown. Boxes are shown in step 2. Only then can a missing box be treated
  as unticked.
- `session`, `ids`: the browse session and the messages selected in it.
- `release`: a browse session of the queue that is ended before the messages are counted.
- `selection`: the selection that was counted for the review.
- `key`: the idempotency key. It prevents a second job if the form is submitted twice.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import structs

from hopback.errors import BadRequest, CountMismatch, HopbackError, NoSuch
from hopback.ops.contract.codec import encode, from_json, read_patch
from hopback.ops.contract.queue_rules import (
    JOB_QUEUE,
    PATH_QUEUE,
    STEERED_JOB,
    VISIBLE_QUEUES,
    QueueRule,
    role_for_job,
    targets_of_job,
)
from hopback.ops.contract.requests import (
    LONGEST_FOUND_WATCH_S,
    RAMP,
    DiscardRequest,
    GroupBy,
    JobRequest,
    Pace,
    RedriveRequest,
    Selection,
    SessionRequest,
    Submission,
)
from hopback.ops.contract.roles import Role
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.values import Job, JobState, OnProgress, Price
from hopback.ops.http.events import changes_of_job, page_search_events
from hopback.ops.http.permissions import visible_jobs
from hopback.ops.http.problems import Refused, refusal_of
from hopback.ops.jobs.return_watch import MEASURE_S
from hopback.ops.page.long_work import in_time
from hopback.ops.page.pages import Pages, Visit, form_target, release_look, see_other
from hopback.ops.page.rendering import visible
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response


_UNDER_WAY = (JobState.RUNNING, JobState.PAUSED)
_AT_ONCE = 2000
"""Messages that a session can take within one second. If there are more, a search is used instead."""
_SHOWN = 50
"""Failures to show on the page of a job. The command and the API list all of them."""
_LOOKING_S = 300.0
"""Seconds until this session ends, the same as for a session opened on the page of a queue."""
_CORRECTABLE = frozenset({400, 409, 422})
"""Status codes of errors that the visitor can correct in the form."""
_MESSAGES_FIELDS = ("filter", "limit", "force", "release")
_OPTIONS_FIELDS = (
    "target", "target_queue", "rate", "watchSeconds", "maxReturned", "change", "reason",
)  # fmt: skip
_OPTIONS_BOXES = ("ramp", "export")

JOB_PAGES = Pages()


async def _redrive_targets(visit: Visit) -> Iterable[str] | None:
    if visit.field("step", "1") in ("1", "2"):
        return ()
    target = form_target(visit.field("target"), visit.field("target_queue"))
    return await visit.operations.queues_reached(visit.path["queue"], target)


_TARGETS = QueueRule("every queue that the re-drive reaches", _redrive_targets)


@JOB_PAGES.get("/queues/{queue}/re-drive", Role.OPERATOR, PATH_QUEUE, reads_broker=True)
@JOB_PAGES.post("/queues/{queue}/re-drive", Role.OPERATOR, PATH_QUEUE, _TARGETS)
async def _redrive(visit: Visit) -> Response:
    if visit.field("change").strip():
        visit.need(Role.ADMIN, visit.path["queue"])
    target = form_target(visit.field("target"), visit.field("target_queue"))
    pace = structs.replace(visit.read(Pace), ramp=RAMP if _is_ticked(visit, "ramp") else ())
    return await _answer_form(visit, RedriveRequest(**_common(visit), target=target, pace=pace))


@JOB_PAGES.get("/queues/{queue}/discard", Role.OPERATOR, PATH_QUEUE, reads_broker=True)
@JOB_PAGES.post("/queues/{queue}/discard", Role.OPERATOR, PATH_QUEUE)
async def _discard(visit: Visit) -> Response:
    confirm, export = visit.field("confirm"), _is_ticked(visit, "export")
    return await _answer_form(
        visit, DiscardRequest(**_common(visit), confirm=confirm, export=export)
    )


def _common(visit: Visit) -> dict[str, Any]:
    """Return the fields that re-drives and discards have in common."""
    reviewed = visit.field("selection")
    is_start = visit.field("step") == "go" and reviewed
    return {
        "queue": visit.path["queue"],
        "selection": from_json(Selection, reviewed) if is_start else _selection(visit),
        "reason": visit.field("reason").strip(),
        "force": visit.field("force") == "1",
    }


def _selection(visit: Visit) -> Selection:
    """Return the selection of the form. It has not been counted."""
    session, ids = visit.field("session"), tuple(visit.all("ids"))
    if session or ids:  # ids without a session are refused
        return Selection(session=session, ids=ids, filter="" if ids else visit.field("filter"))
    return visit.read(Selection)


def _is_ticked(visit: Visit, box: str) -> bool:
    """Return True if a box is ticked. Boxes that were not submitted yet count as ticked."""
    was_sent = visit.field("on") == "2" or bool(visit.all("ramp") or visit.all("export"))
    return visit.field(box) == "1" or not (visit.request.method == "POST" and was_sent)


async def _answer_form(visit: Visit, request: JobRequest) -> Response:
    """Show the requested step, which is messages, options or review, or start the job."""
    session, step = request.selection.session, visit.field("step", "1")
    # Do not reveal to users of other queues that the session exists.
    opened = {view.id: view.queue for view in visit.operations.sessions()}
    if opened.get(session, request.queue) != request.queue:
        raise NoSuch("session", session)
    if visit.request.method == "GET" or step == "1":
        return await _show_messages_step(visit, request)
    if step == "2":
        return await _show_options_step(visit, request)
    answer = _start_job if step == "go" else _show_review
    back = f"/queues/{quote(request.queue, safe='')}"
    words = f"Counting in {request.queue}"
    return await in_time(visit, lambda tell: answer(visit, request, tell), words, back)


async def _show_messages_step(visit: Visit, request: JobRequest) -> Response:
    operations, selection = visit.operations, request.selection
    detail = await operations.queue(request.queue)
    held, matching, trouble = 0, 0, ""
    if selection.session:
        held = operations.session(selection.session).held
        try:
            page = await operations.messages(selection.session, selection.filter, limit=1)
            matching = page.matching
        except HopbackError as error:
            trouble = str(error)
    return _form_page(
        visit, request, 1, trouble,
        depth=detail.depth.ready, held_elsewhere=detail.depth.held_here,
        cost=detail.job_cost, held=held, matching=matching,
        busy=detail.active_job,
    )  # fmt: skip


async def _show_options_step(
    visit: Visit, request: JobRequest, trouble: str = "", bad_change: str = ""
) -> Response:
    queue = request.queue
    detail = await visit.operations.queue(queue)
    editing = visit.operations.settings.editing and visit.principal.allows(Role.ADMIN, queue)
    return _form_page(
        visit, request, 2, trouble,
        targets=detail.targets, busy=detail.active_job,
        found_watch=LONGEST_FOUND_WATCH_S,
        editing=editing, bad_change=bad_change,
    )  # fmt: skip


async def _show_review(
    visit: Visit, request: JobRequest, on_progress: OnProgress, trouble: str = ""
) -> Response:
    if not request.reason:
        return await _show_options_step(visit, request, "Why: expected a reason for the audit.")
    planned = request
    if isinstance(request, DiscardRequest):
        # The name is only entered after the review. Planning does not discard any messages.
        planned = structs.replace(request, confirm=request.queue)
    try:
        planned = _with_change(visit, planned)
        await release_look(visit, request.queue)
        plan = await visit.operations.plan(planned, on_progress=on_progress)
    except HopbackError as error:
        return await _show_error(visit, request, error)
    left = sum(each.count for each in plan.left_out) if plan.seen >= plan.selected else 0
    goes = max((plan.selection.count or 0) - left, 0)
    stages = [sum(plan.ramp[: number + 1]) for number in range(len(plan.ramp))]
    watches = sum(end < goes for end in stages) + 1
    changes = [
        (sample.id, sample.problem, [(line[0], visible(line[1:])) for line in sample.diff])
        for sample in plan.changes
    ]
    return _form_page(
        visit, request, 3, trouble,
        plan=plan, expected=goes,
        least_s=watches * plan.watch_s + min(plan.watch_s, MEASURE_S),
        busy=None,
        key=visit.field("key") or secrets.token_hex(12), changes=changes,
    )  # fmt: skip


async def _start_job(visit: Visit, request: JobRequest, on_progress: OnProgress) -> Response:
    if isinstance(request, DiscardRequest) and request.confirm != request.queue:
        typed = "nothing" if not request.confirm else repr(request.confirm)
        trouble = f"To discard, type the queue's name {request.queue!r}; got {typed}."
        return await _show_review(visit, request, on_progress, trouble)
    key = visit.field("key")
    submission = Submission(key=f"{visit.principal.id} {key}" if key else None)
    try:
        changed = _with_change(visit, request)
        job = await visit.operations.start(changed, submission, on_progress=on_progress)
    except CountMismatch as mismatch:
        # The review counts the messages again.
        again = structs.replace(request, selection=_selection(visit))
        return await _show_review(visit, again, on_progress, f"{mismatch}. Check the new count.")
    except HopbackError as error:
        return await _show_error(visit, request, error)
    return see_other(f"/jobs/{quote(job.id, safe='')}")


async def _show_error(visit: Visit, request: JobRequest, error: HopbackError) -> Response:
    """Show the options with an error. Errors that cannot be corrected there are raised."""
    refused = refusal_of(error)
    if refused is None or refused.status not in _CORRECTABLE or "job" in refused.more:
        raise error
    if isinstance(error, BadRequest) and error.field == "change":
        return await _show_options_step(visit, request, bad_change=f"Expected {error.expected}.")
    return await _show_options_step(visit, request, f"{error}. {error.remedy}")


def _with_change(visit: Visit, request: JobRequest) -> JobRequest:
    """Add the JSON patch in the field `change` to the request. Raises BadRequest if it is invalid."""
    change = visit.field("change").strip()
    if isinstance(request, RedriveRequest) and change:
        return structs.replace(request, change=read_patch(change))
    return request


def _form_page(
    visit: Visit, request: JobRequest, step: int, trouble: str, **values: Any
) -> Response:
    fields = {name: visit.field(name) for name in ("session", *_MESSAGES_FIELDS, *_OPTIONS_FIELDS)}
    boxes = {name: _is_ticked(visit, name) for name in _OPTIONS_BOXES}
    ids = visit.all("ids")
    # Include the values of the other steps as hidden fields.
    carried = [("on", str(step)), ("session", fields["session"])]
    carried += [("ids", each) for each in ids]
    carried += [(name, fields[name]) for name in _MESSAGES_FIELDS if step != 1 or name == "release"]
    if step != 2:
        carried += [(name, fields[name]) for name in _OPTIONS_FIELDS]
        carried += [(name, "1" if ticked else "0") for name, ticked in boxes.items()]
    if step == 3:
        selection = encode(values["plan"].selection).decode()
        carried += [("key", values["key"]), ("selection", selection)]
    return visit.page(
        "act.html",
        kind=request.kind.value,
        queue=request.queue,
        step=step,
        state={**fields, **boxes, "ids": ids},
        carried=carried,
        trouble=trouble,
        **values,
    )


@JOB_PAGES.get("/jobs", Role.VIEWER, VISIBLE_QUEUES)
async def _jobs(visit: Visit) -> Response:
    seen = await visible_jobs(visit.operations, visit.principal, 100)
    counts = [(state, sum(job.state is state for job in seen)) for state in _UNDER_WAY]
    words = [f"{count_of(n, 'job')} {state.value}" for state, n in counts if n]
    return visit.page("jobs.html", jobs=seen, headline=", ".join(words) or "No running jobs")


@JOB_PAGES.get("/jobs/{job}", Role.VIEWER, JOB_QUEUE)
async def _job(visit: Visit) -> Response:
    job = await visit.job()
    failures = await visit.operations.failures(job.id, limit=_SHOWN + 1)
    speed = visit.services.recent.speeds.of(job, visit.services.clock.now())
    begins = job.counts.done <= sum(job.ramp)  # the first stages are slower than the rest
    left = job.counts.remaining / speed if speed and not (job.ramp and begins) else None
    return visit.page(
        "job.html",
        job=job,
        failures=failures[:_SHOWN],
        has_more=len(failures) > _SHOWN,
        steers=visit.principal.allows(role_for_job(visit.principal, job), job.queue),
        may_download=visit.principal.allows(Role.OPERATOR, job.queue),
        speed=speed,
        left=left,
    )


@JOB_PAGES.get("/jobs/{job}/live", Role.VIEWER, JOB_QUEUE)
async def _live(visit: Visit) -> Response:
    job = await visit.job()
    changes = changes_of_job(visit.operations.events(job.id))
    return visit.services.shared.streams.open(changes, visit.principal)


async def _show_returned_messages(visit: Visit, job: Job) -> Response:
    """Open a session and show the returned messages in it. For a large queue, use a search instead."""
    operations = visit.operations
    detail = await operations.queue(job.queue)
    ready = detail.depth.ready or 0
    if 0 < ready <= _AT_ONCE and detail.cost.price is not Price.REFUSED:
        visit.services.check_room(visit.principal)
        view = await operations.open_session(job.queue, SessionRequest(ready, seconds=_LOOKING_S))
        if view.complete:
            queue, session = quote(view.queue, safe=""), quote(view.id, safe="")
            return see_other(f"/sessions/{session}?queue={queue}&filter=job:{quote(job.id)}")
        await operations.release(view.id)
    return see_other(f"/jobs/{quote(job.id, safe='')}/came-back")


@JOB_PAGES.get("/jobs/{job}/came-back", Role.OPERATOR, JOB_QUEUE)
async def _came_back(visit: Visit) -> Response:
    job = await visit.job()
    return visit.page("search.html", job=job, find=f"job:{job.id}", queue=job.queue, trouble="")


@JOB_PAGES.get("/jobs/{job}/came-back/events", Role.OPERATOR, JOB_QUEUE, is_heavy=True)
async def _came_back_events(visit: Visit) -> Response:
    job = await visit.job()
    found = visit.operations.search(SearchRequest(job=job.id, by=GroupBy.FINGERPRINT.value))
    return visit.services.shared.streams.open(page_search_events(found, job.queue), visit.principal)


async def _resume_targets(visit: Visit) -> Iterable[str] | None:
    if visit.path["verb"] not in ("resume", "retry-failures"):
        return ()
    return await targets_of_job(visit, await visit.job())


@JOB_PAGES.post(
    "/jobs/{job}/{verb}",
    Role.OPERATOR,
    STEERED_JOB,
    QueueRule("every queue that the job publishes to", _resume_targets),
)
async def _steer(visit: Visit) -> Response:
    job, verb = await visit.job(), visit.path["verb"]
    operations = visit.operations
    match verb:
        case "pause":
            await operations.pause(job.id)
        case "resume":
            await operations.resume(job.id)
        case "cancel":
            await operations.cancel(job.id)
        case "rate":
            await operations.set_rate(job.id, visit.read(Pace).rate)
        case "retry-failures":
            job = await operations.retry_failures(job.id, reason=visit.field("reason"))
        case "came-back":
            return await _show_returned_messages(visit, job)
        case _:
            raise Refused(404, "not-found", f"Unknown job action {verb!r}.")
    return see_other(f"/jobs/{quote(job.id, safe='')}")
