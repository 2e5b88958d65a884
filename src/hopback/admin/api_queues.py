"""The API of queues, browse sessions and the messages in them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct, structs
from starlette.responses import Response

from hopback.admin.api import ApiAnswer, ApiTable, Call, Empty, Reach
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


QUEUES = ApiTable()
"""The rows of this part, each above what answers it."""
_SESSION = "/admin/dlq/sessions/{session}"
_MOST_GROUPS = 1000


class MessagesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters, and after which."""

    filter: _Filter = ""
    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class GroupQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to group by."""

    by: GroupBy = GroupBy.FINGERPRINT
    filter: _Filter = ""


@QUEUES.row("GET", "/admin/dlq/overview", Role.VIEWER, answer=Overview)
async def _show_overview(call: Call[Empty, None]) -> Overview:
    """The dead-letter queues with their depths, from one sweep a second."""
    swept, now = await call.services.sweep.get(), call.services.clock.now()
    seen = [one for one in swept.queues if call.principal.allows(Role.VIEWER, one.queue)]
    items = tuple(structs.replace(one, depth=one.depth.shown_at(now)) for one in seen)
    return Overview(items, len(items), Moment(swept.at), round(swept.age(now), 3))


@QUEUES.row("GET", "/admin/dlq/queues/{queue}", Role.VIEWER, Reach.QUEUE, answer=QueueDetail)
async def _show_queue(call: Call[Empty, None]) -> QueueDetail:
    """A dead-letter queue: type, cost of looking, targets, depth with its age."""
    return await call.services.operations.queue(call.path["queue"])


@QUEUES.row(
    "POST",
    "/admin/dlq/queues/{queue}/sessions",
    Role.OPERATOR,
    Reach.QUEUE,
    body=SessionRequest,
    body_optional=True,
    answer=SessionView,
    status=201,
    errors=(409,),
)
async def _open_session(call: Call[Empty, SessionRequest]) -> ApiAnswer:
    """Open a browse session: hold messages for looking at."""
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
    return ApiAnswer(view, headers=(("Location", f"/admin/dlq/sessions/{view.id}"),))


def held_session(call: Call[Any, Any], role: Role = Role.OPERATOR) -> SessionView:
    """The session in the path, if the caller may see it."""
    view = call.services.operations.session(call.path["session"])
    call.need(role, view.queue)
    return view


@QUEUES.row("GET", _SESSION, Role.OPERATOR, answer=SessionView)
async def _show_session(call: Call[Empty, None]) -> SessionView:
    """A browse session."""
    return held_session(call)


@QUEUES.row("DELETE", _SESSION, Role.OPERATOR, status=204)
async def _release_session(call: Call[Empty, None]) -> None:
    """Give everything back, in order."""
    view = held_session(call)
    await call.services.release(view, call.principal)


@QUEUES.row(
    "POST", f"{_SESSION}/renew", Role.OPERATOR, body=Renewal, body_optional=True, answer=SessionView
)
async def _renew_session(call: Call[Empty, Renewal]) -> SessionView:
    """Hold on for longer."""
    view = held_session(call)
    return await call.services.renew(view, call.principal, call.body.ttl_seconds)


@QUEUES.row("GET", f"{_SESSION}/messages", Role.OPERATOR, query=MessagesQuery, answer=Page)
async def _list_messages(call: Call[MessagesQuery, None]) -> Page:
    """Letters of a session that match."""
    view, asked = held_session(call), call.query
    return await call.services.operations.messages(
        view.id, asked.filter, cursor=asked.cursor, size=asked.limit
    )


@QUEUES.row("GET", f"{_SESSION}/messages/{{message}}", Role.OPERATOR, answer=MessageView)
async def _show_message(call: Call[Empty, None]) -> MessageView:
    """A message with its story, headers and payload; written to the audit."""
    view = held_session(call)
    return await call.services.operations.message(
        view.id, call.path["message"], by=who(call.principal)
    )


@QUEUES.row(
    "GET",
    f"{_SESSION}/messages/{{message}}/body",
    Role.OPERATOR,
    media=("application/octet-stream",),
)
async def _download_body(call: Call[Empty, None]) -> Response:
    """The bytes of a message as a file; written to the audit."""
    view, ident = held_session(call), call.path["message"]
    body = await call.services.operations.body(view.id, ident, by=who(call.principal))
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{quote(ident, safe="")}.bin"'},
    )


@QUEUES.row("GET", f"{_SESSION}/groups", Role.OPERATOR, query=GroupQuery, answer=Groups)
async def _list_groups(call: Call[GroupQuery, None]) -> Groups:
    """Letters by what they have in common."""
    view, asked = held_session(call), call.query
    groups = await call.services.operations.groups(view.id, asked.by, asked.filter)
    items = groups.items[:_MOST_GROUPS]
    return structs.replace(groups, items=items, more=len(groups.items) - len(items))
