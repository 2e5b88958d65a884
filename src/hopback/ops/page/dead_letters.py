"""The pages that list dead-letter queues and show a queue, a browse session or a message."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response

from hopback.errors import BadFilter, BadRequest, HopbackError, NotAllowed, StoreDamaged
from hopback.fields import Timestamp
from hopback.headers import clip
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.candidates import QueueAnswer
from hopback.ops.contract.codec import convert
from hopback.ops.contract.queue_rules import (
    EVERY_QUEUE,
    NO_QUEUE,
    PATH_QUEUE,
    SESSION_QUEUE,
    VISIBLE_QUEUES,
    QueueRule,
    queues_of_answer,
)
from hopback.ops.contract.requests import (
    USUAL_SESSION,
    Edit,
    EditRequest,
    GroupBy,
    SessionRequest,
)
from hopback.ops.contract.roles import Role
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.surveys import ErrorOverview
from hopback.ops.contract.values import (
    DeadLetter,
    Group,
    LookProgress,
    OnProgress,
    Page,
    QueueSummary,
    SessionView,
)
from hopback.ops.http.auth import forbidden
from hopback.ops.http.events import AT_ONCE_S, changes_of_board, page_search_events
from hopback.ops.http.overview import Insight, Swept, read_all
from hopback.ops.http.problems import Refused, refusal_of, trouble_title
from hopback.ops.messages.diff import diff_lines
from hopback.ops.messages.filters import parse_filter, value_in
from hopback.ops.messages.plain import (
    amqp_type,
    plain_headers,
    plain_properties,
    plain_text,
    plain_value,
    pretty_json,
)
from hopback.ops.messages.shown_payload import Form
from hopback.ops.page.errors import visible_errors
from hopback.ops.page.pages import Pages, Visit, form_target, in_time, see_other
from hopback.ops.page.rendering import clock_words, payload_of, visible
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.message import Delivery
    from hopback.ops.contract.surveys import ErrorOverview
    from hopback.ops.http.services import Services
    from hopback.ops.notes.values import GroupNote
    from hopback.ops.operations import Operations

_LOG = logging.getLogger("hopback.ops.http")

# rows per page. The API returns all of them.
_PAGE = 50
_VALUE_BYTES = 80  # bytes of a header or payload field in a table row
_NOTES = 5  # notes on the page of a queue. The page of a group shows all of its notes.
_GROUPS = 100
# queues with the most messages, which are rendered in 60 ms. Others can be found with the search
# field.
_BOARD_ROWS = 200
_VALUE_SHOWN = 2000  # characters of a header
# share of a session's memory from which it is assumed that the next message did not fit
_NEARLY = 0.95
# largest body that can be edited in the form. The API has no such limit.
_EDITABLE_BYTES = 64 * 1024


DEADLETTER_PAGES = Pages()


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A dead-letter queue in the list, and its broker."""

    services: Services
    summary: QueueSummary

    @property
    def trend(self) -> tuple[tuple[float, int], ...]:
        """Recorded depths of the last day. If there are fewer than two, the depths of the last minutes."""
        minutes = self.services.recent.sweep.trend(self.summary.queue)
        day = self.services.operations.surveys.trends.recent.get(self.summary.queue)
        if day is None or len(day.samples) < 2:
            return minutes
        kept = tuple((float(one.at), one.messages) for one in day.samples)
        return (*kept, *(one for one in minutes[-1:] if one[0] > kept[-1][0]))

    @property
    def arrived(self) -> int:
        """Minimum number of messages that have arrived in the last day, derived from the recorded
        depths.
        """
        day = self.services.operations.surveys.trends.recent.get(self.summary.queue)
        return 0 if day is None else day.arrived

    @property
    def insight(self) -> Insight | None:
        """The last insight for the queue."""
        return self.services.recent.insights.known.get(self.summary.queue)

    @property
    def is_held_here(self) -> bool:
        """Whether a browse session of this process holds messages of the queue.

        A consumer of the queue may then belong to the session.
        """
        return any(view.queue == self.summary.queue for view in self.services.operations.sessions())

    @property
    def is_full(self) -> bool:
        """Whether the queue has messages, held-back messages or an active job."""
        one = self.summary
        return one.exists and bool(one.depth.total or one.active_job or one.held_back)


@dataclass(frozen=True, slots=True)
class BoardSection:
    """A broker in the list, with the queues that the visitor can see."""

    services: Services
    swept: Swept | None
    rows: tuple[BoardRow, ...]

    @property
    def total(self) -> int:
        """The number of dead letters."""
        return sum(row.summary.depth.total or 0 for row in self.rows)

    @property
    def trouble(self) -> str:
        """Why the last reading has failed. It is empty if it has succeeded or not ended yet."""
        error = None if self.swept is None else self.swept.error
        if isinstance(error, StoreDamaged):
            return f"{error}. {error.remedy}"
        return "" if error is None else str(error)

    @property
    def trouble_title(self) -> str:
        """A title that names the part that failed."""
        name = self.services.name
        error = None if self.swept is None else self.swept.error
        return trouble_title(error, f"Broker {name}" if name else "The broker")


async def _shown_brokers(visit: Visit) -> list[BoardSection]:
    """Return this broker. The page for all brokers shows those that the visitor can see."""
    if not visit.services.spans_brokers:
        seen = [(visit.services, visit.principal)]
        sweep = visit.services.recent.sweep
        found: list[Swept | None] = [await sweep.get_or_last(visit.first_s)]
    else:
        seen = visit.services.shared.visible_to(visit.principal)
        found = await read_all([each.recent.sweep for each, _ in seen], visit.first_s)
    return [
        BoardSection(
            services,
            swept,
            tuple(
                BoardRow(services, one)
                for one in principal.visible(() if swept is None else swept.queues)
            ),
        )
        for (services, principal), swept in zip(seen, found, strict=True)
    ]


@DEADLETTER_PAGES.get("/", None, VISIBLE_QUEUES)
async def _board(visit: Visit) -> Response:
    brokers = await _shown_brokers(visit)
    rows = [row for broker in brokers for row in broker.rows]
    wanted, several = visit.field("find").strip().lower(), visit.services.spans_brokers
    found = [row for row in rows if wanted in f"{row.services.name} {row.summary.queue}".lower()]
    full = [row for row in found if row.is_full]
    full.sort(key=lambda row: (-(row.summary.depth.total or 0), row.summary.queue))
    shown = full[:_BOARD_ROWS]
    quiet = [row for row in found if row.summary.exists and not row.is_full]
    # Check this before reading the errors. If no survey is running, its results are then complete.
    surveying = None if several else _survey_under_way(visit)
    errors, known = await visible_errors(visit)
    if surveying is not None:
        visit.services.recent.errors.expire()  # a running survey finds more errors
    surveys = {one.queue: one for one in known}
    top_errors: dict[str, Insight] = {}  # the most frequent error of each queue
    for one in errors:
        for at in one.queues:
            last, top = surveys.get(at.queue), top_errors.get(at.queue)
            if last is not None and last.at is not None and (top is None or at.count > top.count):
                top_errors[at.queue] = Insight(one.error, at.count, last.seen, None, last.at)
    now = visit.services.clock.now()
    # Statistics of the broker still contain the consumer of a survey some seconds after it has
    # ended.
    just_surveyed = {one.queue for one in known if now - (one.at or 0.0) < _COUNTED_S}
    if surveying is not None:
        just_surveyed.add(surveying.queue)
    candidates = None  # only admins can answer
    if not several and visit.principal.allows_everywhere(Role.ADMIN):
        candidates = await visit.services.recent.candidates.get_soon()
    read = [broker.swept.at for broker in brokers if broker.swept is not None]
    unread = len(brokers) - len(read)
    return visit.page(
        "dead_letters.html",
        headline=_headline(rows) if rows or not unread else "Reading the brokers…",
        unread=unread,
        brokers=brokers,
        several=several,
        find=visit.field("find"),
        rows=rows,
        full=shown,
        most=max((row.summary.depth.total or 0 for row in shown), default=0),
        unshown=len(full) - len(shown),
        quiet=quiet[:_BOARD_ROWS],
        quiet_count=len(quiet),
        missing=[row for row in found if not row.summary.exists],
        at=min(read, default=now),
        live_at=max(read, default=now),
        sources=", ".join(sorted({row.summary.depth.source for row in rows})),
        candidates=candidates,
        errors=errors[:_SHOWN_ERRORS],
        error_count=len(errors),
        error_messages=sum(one.count for one in errors),
        surveying=surveying,
        asks_again=unread
        or surveying is not None
        or visit.services.recent.errors.is_computing
        or visit.services.recent.candidates.is_computing,
        just_surveyed=just_surveyed,
        surveyed=top_errors,
        surveyed_at=max((one.at for one in known if one.at is not None), default=None),
        read_free={one.queue for one in known if one.is_stream},
        left_out={one.queue: one.why_not for one in known if one.why_not} if errors else {},
        surveys=not several and visit.principal.allows_everywhere(Role.OPERATOR),
    )


def _survey_under_way(visit: Visit) -> LookProgress | None:
    """Return the progress of a running survey. Surveys started here count until their task has ended."""
    begun = LookProgress("", 0, 0) if visit.services.recent.surveying else None
    return visit.operations.surveys.running or begun


# seconds. RabbitMQ counts every 5 s, reports the count 5 s later, and is read every second.
_COUNTED_S = 12.0
# errors on the list, so that the queues can be seen without scrolling. Another page shows all
# errors.
_SHOWN_ERRORS = 5


@DEADLETTER_PAGES.post("/errors/survey", Role.OPERATOR, EVERY_QUEUE)
async def _survey(visit: Visit) -> Response:
    running = visit.services.recent.surveying
    if not running:
        asked = asyncio.create_task(visit.operations.errors(survey=True), name="survey")
        running.add(asked)
        asked.add_done_callback(running.discard)
        asked.add_done_callback(lambda _: visit.services.recent.errors.expire())
        asked.add_done_callback(_log_failure)
    done, _ = await asyncio.wait(tuple(running), timeout=AT_ONCE_S)
    for over in done:
        over.result()
    # If the survey is still running, the list shows its progress.
    return see_other("/?told=surveyed" if done else "/")


def _log_failure(survey: asyncio.Task[ErrorOverview]) -> None:
    if not survey.cancelled() and survey.exception() is not None:
        _LOG.warning("the survey ended early: %s", survey.exception())


@DEADLETTER_PAGES.get("/search", Role.VIEWER, VISIBLE_QUEUES)
async def _search(visit: Visit) -> Response:
    swept = await visit.services.recent.sweep.get_or_last(visit.first_s)
    find, trouble = visit.field("find").strip(), ""
    try:
        parse_filter(find)
    except BadFilter as error:
        trouble = str(error)
    return visit.page(
        "search.html",
        job=None,
        find=find,
        queue=visit.field("in"),
        queues=[
            one.queue
            for one in swept.queues
            if one.exists and visit.principal.allows(Role.OPERATOR, one.queue)
        ],
        trouble=trouble,
    )


async def _queue_field(visit: Visit) -> tuple[str, ...]:
    return (visit.field("in"),) if visit.field("in") else ()


@DEADLETTER_PAGES.get(
    "/search/events",
    Role.OPERATOR,
    QueueRule("the named queue, or the queues that the visitor may search", _queue_field),
    is_heavy=True,
)
async def _search_events(visit: Visit) -> Response:
    """Stream the results of a search in one queue, or in all queues that the visitor may browse."""
    named = visit.field("in")
    if named:
        queues: tuple[str, ...] = (named,)
    else:
        known = await visit.operations.queues()
        allowed = (one for one in known if visit.principal.allows(Role.OPERATOR, one.queue))
        queues = tuple(one.queue for one in allowed if one.exists)
    if not queues:
        raise forbidden("A search needs the role operator for a queue.")
    found = visit.operations.search(SearchRequest(visit.field("find").strip(), queues))
    return visit.services.shared.streams.open(page_search_events(found, named), visit.principal)


def _answer_in(visit: Visit) -> QueueAnswer:
    said = {
        "queue": visit.field("queue"),
        "answer": visit.field("answer"),
        "mainQueue": visit.field("main_queue").strip(),
    }
    return convert(QueueAnswer, said)


async def _queues_of_answer(visit: Visit) -> tuple[str, ...]:
    return queues_of_answer(_answer_in(visit))


@DEADLETTER_PAGES.post(
    "/candidates", Role.ADMIN, QueueRule("the queue and its main queue", _queues_of_answer)
)
async def _answer_candidate(visit: Visit) -> Response:
    await visit.operations.answer_candidate(_answer_in(visit))
    visit.services.recent.candidates.expire()
    visit.services.recent.sweep.forget()
    return see_other("/")


def _headline(rows: list[BoardRow]) -> str:
    depths = [row.summary.depth.total or 0 for row in rows if row.summary.exists]
    total, holding = sum(depths), sum(map(bool, depths))
    if not total:
        return "No dead letters"
    dead_letters = count_of(total, "dead letter")
    return f"{dead_letters} in {holding} of {len(rows)} queues"


@DEADLETTER_PAGES.get("/live", None, NO_QUEUE)
async def _live(visit: Visit) -> Response:
    """Stream an event when the list is outdated. `at` is when the list was rendered, by default now."""
    services, at = visit.services, visit.field("at")
    shown_at = (
        float(at) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", at) else services.clock.now()
    )
    sweeps = [services.recent.sweep]
    if services.spans_brokers and visit.field("over") == "all":
        sweeps = [each.recent.sweep for each, _ in services.shared.visible_to(visit.principal)]
    elif visit.principal.role is None:
        raise forbidden()
    return services.shared.streams.open(changes_of_board(sweeps, shown_at), visit.principal)


@DEADLETTER_PAGES.get("/alive", None, VISIBLE_QUEUES)
async def _alive(visit: Visit) -> Response:
    """Report whether a session still holds messages and whether the broker responds. Open pages
    poll this.
    """
    swept, asked = visit.services.recent.sweep.last, visit.field("session")
    held = any(
        view.id == asked and visit.principal.allows(Role.OPERATOR, view.queue)
        for view in visit.operations.sessions()
    )
    told = swept.error is not None and visit.principal.role is not None
    trouble = f"{trouble_title(swept.error)}: {visible(str(swept.error))}" if told else ""
    return JSONResponse(
        {"held": held, "trouble": trouble, "readAt": swept.at},
        headers={"Cache-Control": "no-store"},
    )


@DEADLETTER_PAGES.get("/queues/{queue}", Role.VIEWER, PATH_QUEUE, reads_broker=True)
async def _queue(visit: Visit) -> Response:
    operations, name = visit.operations, visit.path["queue"]
    return visit.page(
        "queue.html",
        detail=await operations.queue(name),
        operator=visit.principal.allows(Role.OPERATOR, name),
        sessions=[view for view in operations.sessions() if view.queue == name],
        jobs=await operations.jobs(queue=name, limit=5),
        past=await operations.trend(name),
        saved=await operations.notes.filters(name),
        notes=(await operations.notes.of(name))[:_NOTES],
    )


@DEADLETTER_PAGES.post("/queues/{queue}/look", Role.OPERATOR, PATH_QUEUE)
async def _look(visit: Visit) -> Response:
    name, chosen, how = visit.path["queue"], visit.field("filter"), visit.field("how")
    asked = SessionRequest(
        limit=visit.number("limit", 100, least=1, most=10_000),
        seconds=visit.number("minutes", 5, least=1, most=25) * 60.0,
        force=how == "force",
        lift=how == "lift",
        skip=visit.number("skip", 0),
    )

    async def look(on_progress: OnProgress) -> Response:
        view = await visit.services.hold(visit.principal, name, asked, on_progress)
        onward = f"&filter={quote(chosen, safe='')}#messages" if chosen else ""
        return see_other(_session_url(view) + onward)

    return await in_time(visit, look, f"Looking into {name}", f"/queues/{quote(name, safe='')}")


def _session_url(view: SessionView) -> str:
    """Return the URL of a session. It contains the queue, which is still needed when the session
    has ended.
    """
    return f"/sessions/{quote(view.id, safe='')}?queue={quote(view.queue, safe='')}"


@DEADLETTER_PAGES.post("/queues/{queue}/restore-limit", Role.OPERATOR, PATH_QUEUE)
async def _restore_limit(visit: Visit) -> Response:
    name = visit.path["queue"]
    await visit.operations.restore_limit(name, reason=visit.field("reason").strip())
    return see_other(f"/queues/{quote(name, safe='')}?told=limit-restored")


@DEADLETTER_PAGES.get("/sessions/{session}", Role.OPERATOR, SESSION_QUEUE)
async def _session(visit: Visit) -> Response:
    view, operations = visit.session, visit.operations
    by = visit.field("by").strip() or GroupBy.FINGERPRINT.value
    text, cursor = visit.field("filter"), visit.number("cursor", 0)
    bad_filter, page = "", Page((), 0, None)
    try:
        page = await operations.messages(view.id, text, cursor=cursor, limit=_PAGE)
    except BadFilter as error:
        bad_filter = str(error)
    bad_by = ""
    groups: tuple[Group, ...] = ()
    try:
        groups = (await operations.groups(view.id, by, "" if bad_filter else text)).items
    except BadRequest as error:
        bad_by = str(error)
    shown = groups[:_GROUPS]
    notes: dict[str, list[GroupNote]] = {}
    if by == GroupBy.FINGERPRINT:
        for note in await operations.notes.of(view.queue):
            notes.setdefault(note.group, []).append(note)
    swept = (await visit.services.recent.sweep.get_or_last(visit.first_s)).queues
    return visit.page(
        "session.html",
        view=view,
        # Use the same number as the list of queues.
        depth=max((one.depth.total or 0 for one in swept if one.queue == view.queue), default=0),
        by_bytes=not view.complete and view.held_bytes > _NEARLY * USUAL_SESSION.max_bytes,
        by=by,
        bad_by=bad_by,
        groups=shown,
        more_groups=len(groups) - len(shown),
        group_filters={
            group.key: " ".join(filter(None, (text, group_filter(by, group)))) for group in shown
        },
        notes=notes,
        saved=await operations.notes.filters(view.queue),
        filter=text,
        bad_filter=bad_filter,
        page=page,
        cursor=cursor,
        values=await _field_values(operations, view.id, by, page.dead_letters),
    )


async def _field_values(
    operations: Operations, session: str, by: str, dead_letters: Iterable[DeadLetter]
) -> dict[str, str]:
    """Return the values of the header or payload field `by` for each message id."""
    kind, _, path = by.partition(".")
    if kind not in ("header", "payload") or not path:
        return {}
    found, turns = {}, Turns()
    for each in dead_letters:
        delivery = operations.delivery(session, each.id)
        value = value_in(delivery, by)
        if value is not None:
            found[each.id] = clip(plain_text(value), _VALUE_BYTES)
        await turns.after(measure_memory(delivery))
    return found


def group_filter(by: str, group: Group) -> str:
    """Return a filter that matches exactly the messages of a group."""
    field = "group" if by == GroupBy.FINGERPRINT else by
    escaped = group.key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field}:"{escaped}"' if any(not c.isalnum() for c in escaped) else f"{field}:{escaped}"


@DEADLETTER_PAGES.post("/sessions/{session}/renew", Role.OPERATOR, SESSION_QUEUE)
async def _renew(visit: Visit) -> Response:
    view = visit.session
    await visit.operations.renew(view.id)
    return see_other(_session_url(view))


@DEADLETTER_PAGES.post("/sessions/{session}/release", Role.OPERATOR, SESSION_QUEUE)
async def _release(visit: Visit) -> Response:
    view = visit.session
    await visit.operations.release(view.id)
    return see_other(f"/queues/{quote(view.queue, safe='')}?told=released")


@DEADLETTER_PAGES.get(
    "/sessions/{session}/messages/{message}", Role.OPERATOR, SESSION_QUEUE, reads_broker=True
)
async def _message(visit: Visit) -> Response:
    view = visit.session
    message = await visit.operations.message(view.id, visit.path["message"])
    form = visit.field("form", Form.PRETTY.value)
    if form not in set(Form):
        raise Refused(400, "bad-form", f"form: expected one of {', '.join(Form)}, got {form!r}.")
    delivery = visit.operations.delivery(view.id, message.dead_letter.id)
    headers, more_headers = plain_headers(delivery.properties.headers)
    payload = payload_of(delivery, Form(form))
    failure, recorded_by = message.failure, message.dead_letter.recorded_by
    by = "" if recorded_by == "hopback" else recorded_by
    said, sent = delivery.properties, delivery.properties.timestamp
    exchange = delivery.exchange or "(default exchange)"
    named = {"exchange": exchange, "routingKey": delivery.routing_key}
    named |= {name: str(value) for name, value in plain_properties(said).items()}
    if sent is not None:
        named["timestamp"] = f"{clock_words(sent)} ({named['timestamp']})"
    named["redelivered"] = "yes" if delivery.redelivered else "no"
    return visit.page(
        "message.html",
        message=message,
        dead_letter=message.dead_letter,
        session=view.id,
        is_stream=view.cost.is_stream,
        payload=payload,
        failure=failure if failure is not None and failure.stack else None,
        recorded_by=by,
        form=form,
        content_type=delivery.properties.content_type or "",
        properties=list(named.items()),
        headers=[(name, amqp_type(value), _value_text(value)) for name, value in sorted(headers)],
        more_headers=more_headers,
        editing=visit.operations.settings.editing,
    )


@DEADLETTER_PAGES.get(
    "/sessions/{session}/messages/{message}/edit", Role.OPERATOR, SESSION_QUEUE, reads_broker=True
)
async def _edit(visit: Visit) -> Response:
    view = visit.session
    await visit.operations.message(
        view.id, visit.path["message"]
    )  # records in the audit that the message was shown
    return await _edit_page(visit, EditForm.of(visit))


async def _edit_targets(visit: Visit) -> Iterable[str] | None:
    if visit.field("step") not in _SENDING_STEPS:
        return ()
    target = form_target(visit.field("target"), visit.field("target_queue"))
    return await visit.operations.queues_reached(visit.session.queue, target)


_SENDING_STEPS = ("review", "go")


@DEADLETTER_PAGES.post(
    "/sessions/{session}/messages/{message}/edit",
    Role.OPERATOR,
    SESSION_QUEUE,
    QueueRule("every queue that the copy reaches", _edit_targets),
)
async def _edit_step(visit: Visit) -> Response:
    view, form, step = visit.session, EditForm.of(visit), visit.field("step")
    if step not in _SENDING_STEPS:
        return await _edit_page(visit, form)
    try:
        asked = form.request
        if step == "review":
            return await _edit_page(visit, form, changes=form.changes(asked.edit))
        await visit.operations.edit_and_redrive(view.id, form.message, asked)
    except HopbackError as error:
        refused = refusal_of(error)
        if refused is None or refused.status not in (400, 409, 422):
            raise
        return await _edit_page(visit, form, trouble=f"{error}. {error.remedy}")
    session, message = quote(view.id, safe=""), quote(form.message, safe="")
    return see_other(f"/sessions/{session}/messages/{message}?told=copy-sent")


async def _edit_page(visit: Visit, form: EditForm, **more: Any) -> Response:
    if not visit.operations.settings.editing:
        raise NotAllowed("editing messages is disabled")
    view = visit.session
    detail = await visit.operations.queue(view.queue)
    return visit.page(
        "edit.html",
        form=form,
        queue=view.queue,
        session=view.id,
        targets=detail.targets,
        **{"changes": None, "trouble": "", **more},
    )


@dataclass(frozen=True, slots=True)
class EditForm:
    """The form for editing a copy of a message.

    `editable` is the body as text. It is None if a form would change the body.
    """

    message: str
    delivery: Delivery
    editable: str | None
    body: str
    content_type: str
    headers: str
    without: str
    target: str
    target_queue: str
    reason: str

    @classmethod
    def of(cls, visit: Visit) -> EditForm:
        """Read the form. Until it is submitted, its values are those of the message."""
        delivery = visit.operations.delivery(visit.path["session"], visit.path["message"])
        text, said = _editable(delivery.body), visit.field("body").replace("\r\n", "\n")
        if text is not None and "\r\n" in text:  # browsers submit all line breaks as CRLF
            said = said.replace("\n", "\r\n")
        sent = visit.request.method == "POST"
        return cls(
            message=visit.path["message"],
            delivery=delivery,
            editable=text,
            body=said if sent and text is not None else text or "",
            content_type=visit.field("content_type", _form_text(delivery.properties.content_type)),
            headers=visit.field("headers"),
            without=visit.field("without"),
            target=visit.field("target"),
            target_queue=visit.field("target_queue"),
            reason=visit.field("reason").strip(),
        )

    @property
    def request(self) -> EditRequest:
        """The requested change. Raises BadRequest if it is invalid or if there is no difference."""
        said = [line.strip() for line in self.headers.splitlines() if line.strip()]
        wrong = next((line for line in said if not line.partition(":")[0].strip()), None)
        wrong = wrong or next((line for line in said if ":" not in line), None)
        if wrong is not None:
            raise BadRequest("headers to set", f"name: value, got {wrong!r}")
        if not self.reason:
            raise BadRequest("why", "a reason for the audit")
        pairs = (line.partition(":") for line in said)
        properties = self.delivery.properties
        edit = Edit(
            body=None if self.body == (self.editable or "") else self.body.encode(),
            content_type=None
            if self.content_type == _form_text(properties.content_type)
            else self.content_type,
            headers={name.strip(): value.strip() for name, _, value in pairs},
            without=frozenset(filter(None, map(str.strip, self.without.splitlines()))),
        )
        if edit == Edit():
            raise BadRequest("the copy", "a difference from the message")
        return EditRequest(
            edit=edit, reason=self.reason, target=form_target(self.target, self.target_queue)
        )

    def changes(self, edit: Edit) -> list[tuple[str, str]]:
        """Return the differences between the message and the copy as lines of a diff."""
        properties = self.delivery.properties
        names = sorted({*edit.headers, *edit.without})
        old = [
            f"{name}: {_value_text(properties.headers[name])}"
            for name in names
            if name in properties.headers
        ]
        new = [
            f"{name}: {_value_text(edit.headers[name])}" for name in names if name in edit.headers
        ]
        if edit.content_type is not None:
            old.insert(0, f"content type: {properties.content_type or ''}")
            new.insert(0, f"content type: {edit.content_type}")
        found = list(diff_lines(old, new))
        if edit.body is not None:
            found += diff_lines(_lines(self.delivery.body), _lines(edit.body))
        return [(mark, visible(line)) for mark, line in found]

    @property
    def hidden_fields(self) -> list[tuple[str, str]]:
        """Names and values of the hidden fields in the review."""
        names = ("body", "content_type", "headers", "without", "target", "target_queue", "reason")
        return [(name, getattr(self, name)) for name in names]


def _editable(body: bytes) -> str | None:
    """Return the body as text, or None if submitting it in a form would change it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    others = text.replace("\r\n", "")
    mixed = "\r" in others or ("\n" in others and len(others) < len(text))
    hidden = any(unicodedata.category(each) == "Cc" and each not in "\r\n\t" for each in text)
    return None if mixed or hidden or len(body) > _EDITABLE_BYTES else text


def _form_text(text: str | None) -> str:
    """Return the text for a form field, or an empty string if submitting it would change it."""
    return text if text is not None and text.isprintable() else ""


def _lines(body: bytes) -> list[str]:
    """Split a body into lines. JSON is indented, so that each value is on its own line."""
    pretty = pretty_json(body, _EDITABLE_BYTES)
    if pretty is not None and not pretty[1]:
        return pretty[0].splitlines()
    return body.decode("utf-8", "replace").splitlines()


def _add_dates(value: Any) -> Any:
    """Add dates to AMQP timestamps, which for example occur in `x-death`."""
    match value:
        case Timestamp():
            return f"{clock_words(value)} ({int(value)})"
        case dict():
            return {key: _add_dates(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_add_dates(inner) for inner in value]
    return value


def _value_text(value: Any) -> str:
    """Format the value of a header. Strings are not changed, and other values are shown as JSON."""
    plain = plain_value(_add_dates(value))
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, indent=1)
    cut = text[:_VALUE_SHOWN]
    return visible(cut, lines=True) + ("…" if len(text) > len(cut) else "")
