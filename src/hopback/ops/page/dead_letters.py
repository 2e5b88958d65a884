"""The pages that search messages and show a queue, a browse session or a message."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from hopback.errors import BadFilter, BadRequest
from hopback.headers import clip
from hopback.ops.browse.memory import measure_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.queue_rules import PATH_QUEUE, SESSION_QUEUE, VISIBLE_QUEUES, QueueRule
from hopback.ops.contract.requests import USUAL_SESSION, GroupBy, SessionRequest
from hopback.ops.contract.roles import Role
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.values import DeadLetter, Group, OnProgress, Page, SessionView
from hopback.ops.http.events import page_search_events
from hopback.ops.http.permissions import searchable_queues
from hopback.ops.http.problems import Refused
from hopback.ops.messages.filters import parse_filter, texts_of, value_in, write_term
from hopback.ops.messages.plain import amqp_type, plain_headers, plain_properties, plain_text
from hopback.ops.messages.shown_payload import Form
from hopback.ops.page.long_work import in_time
from hopback.ops.page.pages import Pages, Visit, see_other
from hopback.ops.page.rendering import clock_words, header_text, payload_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response

    from hopback.ops.notes.values import GroupNote
    from hopback.ops.operations import Operations

# rows per page. The API returns all of them.
_PAGE = 50
_VALUE_BYTES = 80  # bytes of a header or payload field in a table row
_NOTES = 5  # notes on the page of a queue. The page of a group shows all of its notes.
_GROUPS = 100
# share of a session's memory from which it is assumed that the next message did not fit
_NEARLY = 0.95


DEADLETTER_PAGES = Pages()


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
    queues = (named,) if named else await searchable_queues(visit)
    found = visit.operations.search(SearchRequest(visit.field("find").strip(), queues))
    return visit.services.shared.streams.open(page_search_events(found, named), visit.principal)


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
        group_filters=_group_filters(by, "" if bad_filter else text, groups, shown),
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


def _group_filters(
    by: str, text: str, groups: Iterable[Group], shown: Iterable[Group]
) -> dict[str, str]:
    """Return the filter of each shown group by key. It matches `text` and the group, and none of
    the other groups. Groups without such a filter are omitted.
    """
    field = "group" if by == GroupBy.FINGERPRINT else by
    matching: Counter[str] = Counter()
    for group in groups:
        for each in {*texts_of(field, group.sample)}:
            matching[each] += group.count
    found = {}
    for group in shown:
        key, term = group.key, write_term(field, group.key)
        # The key of a header or field is empty if it is missing. It can be cut or escaped.
        is_whole = bool(key) and not key.endswith("…") and "\\ud" not in key
        is_exact = is_whole if "." in by else matching[key] == group.count
        if term is not None and is_exact:
            with suppress(BadFilter):  # the terms may be too many or too long together
                found[key] = parse_filter(f"{text} {term}").text
    return found


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
        headers=[(name, amqp_type(value), header_text(value)) for name, value in sorted(headers)],
        more_headers=more_headers,
        editing=visit.operations.settings.editing,
    )
