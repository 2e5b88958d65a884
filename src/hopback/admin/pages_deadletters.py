"""The pages of dead letters: the list, a queue, a browse session, a message."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hopback.admin.events import changes_of_board
from hopback.admin.pages import Pages, see_other
from hopback.admin.problems import Refused
from hopback.admin.rendering import Form, payload_of, visible
from hopback.admin.roles import Role
from hopback.admin.services import who
from hopback.deadletters.contract import Page
from hopback.deadletters.filters import BadFilter
from hopback.deadletters.plain import amqp_type, plain_headers, plain_properties, plain_value
from hopback.deadletters.requests import GroupBy, Window

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.admin.pages import Visit
    from hopback.deadletters.contract import Group, QueueSummary, SessionView
    from hopback.message import Delivery

__all__ = ["DEADLETTER_PAGES", "group_filter"]

# As much as one page can show and a reader takes in; the API gives the rest.
_PAGE = 50
_GROUPS = 100
_VALUE_SHOWN = 2000  # characters of a header


DEADLETTER_PAGES = Pages()
"""The rows of this part."""


@DEADLETTER_PAGES.get("/")
async def _board(visit: Visit) -> Response:
    services = visit.services
    swept = await services.sweep.get_or_last()
    seen = [one for one in swept.queues if visit.principal.allows(Role.VIEWER, one.queue)]
    full = [
        one for one in seen if one.exists and (one.depth.total or one.active_job or one.held_back)
    ]
    full.sort(key=lambda one: (-(one.depth.total or 0), one.queue))
    return visit.page(
        "dead_letters.html",
        headline=_headline(full, seen),
        queues=seen,
        full=full,
        quiet=[one for one in seen if one.exists and one not in full],
        missing=[one for one in seen if not one.exists],
        trends={one.queue: services.sweep.trend(one.queue) for one in full},
        insights=services.insights.known,
        at=swept.at,
        sources=", ".join(sorted({one.depth.source for one in seen})),
        error=None if swept.error is None else str(swept.error),
    )


def _headline(full: list[QueueSummary], seen: list[QueueSummary]) -> str:
    total = sum(one.depth.total or 0 for one in full)
    if not total:
        return "No dead letters"
    letters = f"{total:,} dead letter{'s' if total != 1 else ''}"
    holding = sum(bool(one.depth.total) for one in full)
    return f"{letters} in {holding} of {len(seen)} queues"


@DEADLETTER_PAGES.get("/live")
async def _live(visit: Visit) -> Response:
    """When what was shown at that moment is out of date; from now on, if none is given."""
    services, at = visit.services, visit.field("at")
    shown_at = (
        float(at) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", at) else services.clock.now()
    )
    return services.streams.open(changes_of_board(services.sweep, shown_at), visit.principal)


@DEADLETTER_PAGES.get("/queues/{queue}")
async def _queue(visit: Visit) -> Response:
    operations, name = visit.services.operations, visit.path["queue"]
    visit.need(Role.VIEWER, name)
    return visit.page(
        "queue.html",
        detail=await operations.queue(name),
        operator=visit.principal.allows(Role.OPERATOR, name),
        sessions=[view for view in operations.sessions() if view.queue == name],
        jobs=await operations.jobs(queue=name, limit=5),
    )


@DEADLETTER_PAGES.post("/queues/{queue}/look")
async def _look(visit: Visit) -> Response:
    operations, name = visit.services.operations, visit.path["queue"]
    visit.need(Role.OPERATOR, name)
    limit = visit.number("limit", 100, least=1, most=10_000)
    minutes = visit.number("minutes", 5, least=1, most=25)
    visit.services.check_room(visit.principal)
    view = await operations.open_session(
        name,
        Window(limit, seconds=minutes * 60.0),
        by=who(visit.principal),
        forced=visit.field("how") == "force",
        lift=visit.field("how") == "lift",
    )
    await visit.services.insights.remember(operations, view)
    return see_other(f"/sessions/{quote(view.id, safe='')}")


def _held(visit: Visit) -> SessionView:
    view = visit.services.operations.session(visit.path["session"])
    visit.need(Role.OPERATOR, view.queue)
    return view


@DEADLETTER_PAGES.get("/sessions/{session}")
async def _session(visit: Visit) -> Response:
    view, operations = _held(visit), visit.services.operations
    by = GroupBy(visit.field("by")) if visit.field("by") in set(GroupBy) else GroupBy.FINGERPRINT
    text, cursor = visit.field("filter"), visit.number("cursor", 0)
    bad_filter, page = "", Page((), 0, None)
    try:
        page = await operations.messages(view.id, text, cursor=cursor, size=_PAGE)
    except BadFilter as error:
        bad_filter = str(error)
    groups = (await operations.groups(view.id, by)).items
    shown = groups[:_GROUPS]
    return visit.page(
        "session.html",
        view=view,
        by=by.value,
        groups=shown,
        more_groups=len(groups) - len(shown),
        group_filters={group.key: group_filter(by, group) for group in shown},
        filter=text,
        bad_filter=bad_filter,
        page=page,
        cursor=cursor,
    )


def group_filter(by: GroupBy, group: Group) -> str:
    """The filter that matches exactly the letters of a group."""
    field = "group" if by is GroupBy.FINGERPRINT else by.value
    escaped = group.key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field}:"{escaped}"' if any(not c.isalnum() for c in escaped) else f"{field}:{escaped}"


@DEADLETTER_PAGES.post("/sessions/{session}/renew")
async def _renew(visit: Visit) -> Response:
    view = _held(visit)
    await visit.services.renew(view, visit.principal)
    return see_other(f"/sessions/{quote(view.id, safe='')}")


@DEADLETTER_PAGES.post("/sessions/{session}/release")
async def _release(visit: Visit) -> Response:
    view = _held(visit)
    await visit.services.release(view, visit.principal)
    return see_other(f"/queues/{quote(view.queue, safe='')}?told=released")


@DEADLETTER_PAGES.get("/sessions/{session}/messages/{message}")
async def _message(visit: Visit) -> Response:
    view = _held(visit)
    message = await visit.services.operations.message(
        view.id, visit.path["message"], by=who(visit.principal)
    )
    form = visit.field("form", Form.PRETTY.value)
    if form not in set(Form):
        raise Refused(400, "bad-form", f"form: expected one of {', '.join(Form)}, got {form!r}.")
    delivery = visit.services.operations.delivery(view.id, message.letter.id)
    headers, more_headers = plain_headers(delivery.properties.headers)
    payload = payload_of(delivery.body, Form(form), delivery.properties.content_encoding)
    return visit.page(
        "message.html",
        message=message,
        letter=message.letter,
        session=view.id,
        payload=payload,
        form=form,
        content_type=delivery.properties.content_type or "",
        properties=list(_properties(delivery).items()),
        headers=[(name, amqp_type(value), _shown(value)) for name, value in sorted(headers)],
        more_headers=more_headers,
    )


def _properties(delivery: Delivery) -> dict[str, str]:
    named = {"exchange": delivery.exchange, "routingKey": delivery.routing_key}
    named |= {name: str(value) for name, value in plain_properties(delivery.properties).items()}
    return named | {"redelivered": "yes" if delivery.redelivered else "no"}


def _shown(value: Any) -> str:
    """A header's value as text: plain ones as they are, the rest as JSON."""
    plain = plain_value(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, indent=1)
    cut = text[:_VALUE_SHOWN]
    return visible(cut, lines=True) + ("…" if len(text) > len(cut) else "")
