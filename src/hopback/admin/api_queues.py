"""The API of queues, browse sessions and the messages in them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct, structs
from starlette.responses import Response

from hopback.admin.api import Answer, Call, Empty, Endpoint, Reach
from hopback.admin.roles import Role
from hopback.admin.services import who
from hopback.deadletters.contract import (
    Groups,
    MessageView,
    Moment,
    Overview,
    Page,
    QueueDetail,
    SessionView,
)
from hopback.deadletters.requests import GroupBy, Renewal, SessionRequest

__all__ = [
    "QUEUES",
    "GroupQuery",
    "MessagesQuery",
    "held_session",
]

_Filter = Annotated[str, Meta(max_length=4096)]
_Cursor = Annotated[int, Meta(ge=0, le=2**31)]


class MessagesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters, and after which."""

    filter: _Filter = ""
    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class GroupQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to group by."""

    by: GroupBy = GroupBy.FINGERPRINT
    filter: _Filter = ""


async def _overview(call: Call[Empty, None]) -> Overview:
    swept, now = await call.services.sweep.get(), call.services.clock.now()
    seen = [one for one in swept.queues if call.principal.allows(Role.VIEWER, one.queue)]
    items = tuple(structs.replace(one, depth=one.depth.shown_at(now)) for one in seen)
    return Overview(items, len(items), Moment(swept.at), round(swept.age(now), 3))


async def _show_queue(call: Call[Empty, None]) -> QueueDetail:
    """One queue."""
    return await call.services.operations.queue(call.path["queue"])


async def _open_session(call: Call[Empty, SessionRequest]) -> Answer:
    """Hold messages for looking at."""
    asked, services = call.body, call.services
    services.check_room(call.principal)
    view = await services.operations.open_session(
        call.path["queue"],
        asked.window,
        by=who(call.principal),
        forced=asked.force,
        lift=asked.lift,
    )
    await services.insights.remember(services.operations, view)
    return Answer(view, headers=(("Location", f"/admin/dlq/sessions/{view.id}"),))


def held_session(call: Call[Any, Any], role: Role = Role.OPERATOR) -> SessionView:
    """The session in the path, if the caller may see it."""
    view = call.services.operations.session(call.path["session"])
    call.need(role, view.queue)
    return view


async def _show_session(call: Call[Empty, None]) -> SessionView:
    """One session."""
    return held_session(call)


async def _renew_session(call: Call[Empty, Renewal]) -> SessionView:
    """Hold on for longer."""
    view = held_session(call)
    return await call.services.renew(view, call.principal, call.body.ttl_seconds)


async def _release_session(call: Call[Empty, None]) -> None:
    """Give everything back."""
    view = held_session(call)
    await call.services.release(view, call.principal)


async def _list_messages(call: Call[MessagesQuery, None]) -> Page:
    """Letters of a session, page by page."""
    view, asked = held_session(call), call.query
    return await call.services.operations.messages(
        view.id, asked.filter, cursor=asked.cursor, size=asked.limit
    )


async def _show_message(call: Call[Empty, None]) -> MessageView:
    """One message with everything about it."""
    view = held_session(call)
    return await call.services.operations.message(
        view.id, call.path["message"], by=who(call.principal)
    )


async def _download_body(call: Call[Empty, None]) -> Response:
    """The bytes as they are, as a file: never to be rendered."""
    view, ident = held_session(call), call.path["message"]
    body = await call.services.operations.body(view.id, ident, by=who(call.principal))
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{quote(ident, safe="")}.bin"'},
    )


async def _list_groups(call: Call[GroupQuery, None]) -> Groups:
    """The letters of a session by what they have in common."""
    view, asked = held_session(call), call.query
    groups = await call.services.operations.groups(view.id, asked.by, asked.filter)
    items = groups.items[:_MOST_GROUPS]
    return structs.replace(groups, items=items, more=len(groups.items) - len(items))


_SESSION = "/admin/dlq/sessions/{session}"
_MOST_GROUPS = 1000

QUEUES = (
    Endpoint(
        "GET", "/admin/dlq/overview", "showOverview",
        "The dead-letter queues with their depths, from one sweep a second.",
        _overview, Role.VIEWER, answer=Overview,
    ),
    Endpoint(
        "GET", "/admin/dlq/queues/{queue}", "showQueue",
        "A dead-letter queue: type, cost of looking, targets, depth with its age.",
        _show_queue, Role.VIEWER, Reach.QUEUE, answer=QueueDetail,
    ),
    Endpoint(
        "POST", "/admin/dlq/queues/{queue}/sessions", "openSession",
        "Open a browse session: hold messages for looking at.",
        _open_session, Role.OPERATOR, Reach.QUEUE, body=SessionRequest, body_optional=True,
        answer=SessionView, status=201, errors=(409,),
    ),
    Endpoint(
        "GET", _SESSION, "showSession", "A browse session.",
        _show_session, Role.OPERATOR, answer=SessionView,
    ),
    Endpoint(
        "DELETE", _SESSION, "releaseSession", "Give everything back, in order.",
        _release_session, Role.OPERATOR, status=204,
    ),
    Endpoint(
        "POST", f"{_SESSION}/renew", "renewSession", "Hold on for longer.",
        _renew_session, Role.OPERATOR, body=Renewal, body_optional=True, answer=SessionView,
    ),
    Endpoint(
        "GET", f"{_SESSION}/messages", "listMessages", "Letters of a session that match.",
        _list_messages, Role.OPERATOR, query=MessagesQuery, answer=Page,
    ),
    Endpoint(
        "GET", f"{_SESSION}/messages/{{message}}", "showMessage",
        "A message with its story, headers and payload; written to the audit.",
        _show_message, Role.OPERATOR, answer=MessageView,
    ),
    Endpoint(
        "GET", f"{_SESSION}/messages/{{message}}/body", "downloadBody",
        "The bytes of a message as a file; written to the audit.",
        _download_body, Role.OPERATOR, media=("application/octet-stream",),
    ),
    Endpoint(
        "GET", f"{_SESSION}/groups", "listGroups", "Letters by what they have in common.",
        _list_groups, Role.OPERATOR, query=GroupQuery, answer=Groups,
    ),
)  # fmt: skip
"""The rows."""
