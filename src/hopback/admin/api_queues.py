"""The API of queues, browse sessions and the messages in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct
from starlette.responses import Response

from hopback.admin.answers import (
    OverviewAnswer,
    QueueAnswer,
    queue_answer,
    summary_answer,
)
from hopback.admin.answers_messages import (
    GroupList,
    LetterList,
    MessageAnswer,
    SessionAnswer,
    group_answer,
    letter_answer,
    message_answer,
    session_answer,
)
from hopback.admin.api import Answer, Call, Empty, Endpoint, Reach
from hopback.admin.roles import Role
from hopback.admin.services import who
from hopback.deadletters.sessions import GroupBy, Window
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.deadletters.browsing import SessionView

__all__ = [
    "QUEUES",
    "GroupQuery",
    "MessagesQuery",
    "NewSession",
    "Renewal",
    "held_session",
]

_Count = Annotated[int, Meta(ge=1, le=10_000)]
_Bytes = Annotated[int, Meta(ge=1, le=256 * 1024 * 1024)]
_Seconds = Annotated[float, Meta(ge=1, le=1500)]
_Filter = Annotated[str, Meta(max_length=4096)]
_Cursor = Annotated[int, Meta(ge=0, le=2**31)]


class NewSession(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How much to hold and for how long; `force` accepts a danger, `lift` removes it by a policy."""

    limit: _Count = 100
    max_bytes: _Bytes = 64 * 1024 * 1024
    ttl_seconds: _Seconds = 300.0
    force: bool = False
    lift: bool = False


class Renewal(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """For how long again; the session's own time by default."""

    ttl_seconds: _Seconds | None = None


class MessagesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters, and after which."""

    filter: _Filter = ""
    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class GroupQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What to group by."""

    by: GroupBy = GroupBy.FINGERPRINT
    filter: _Filter = ""


async def _overview(call: Call[Empty, None]) -> OverviewAnswer:
    swept, now = await call.services.sweep.get(), call.services.clock.now()
    seen = [one for one in swept.queues if call.principal.allows(Role.VIEWER, one.queue)]
    items = [summary_answer(one, now) for one in seen]
    return OverviewAnswer(items, len(items), timestamp(swept.at), round(swept.age(now), 3))


async def _show_queue(call: Call[Empty, None]) -> QueueAnswer:
    """One queue."""
    services = call.services
    return queue_answer(await services.operations.queue(call.path["queue"]), services.clock.now())


async def _open_session(call: Call[Empty, NewSession]) -> Answer:
    """Hold messages for looking at."""
    asked, services = call.body, call.services
    services.check_room(call.principal)
    view = await services.operations.open_session(
        call.path["queue"],
        Window(asked.limit, asked.max_bytes, asked.ttl_seconds),
        by=who(call.principal),
        forced=asked.force,
        lift=asked.lift,
    )
    await services.insights.remember(services.operations, view)
    return Answer(session_answer(view), headers=(("Location", f"/admin/dlq/sessions/{view.id}"),))


def held_session(call: Call[Any, Any], role: Role = Role.OPERATOR) -> SessionView:
    """The session in the path, if the caller may see it."""
    view = call.services.operations.session(call.path["session"])
    call.need(role, view.queue)
    return view


async def _show_session(call: Call[Empty, None]) -> SessionAnswer:
    """One session."""
    return session_answer(held_session(call))


async def _renew_session(call: Call[Empty, Renewal]) -> SessionAnswer:
    """Hold on for longer."""
    view = held_session(call)
    renewed = await call.services.renew(view, call.principal, call.body.ttl_seconds)
    return session_answer(renewed)


async def _release_session(call: Call[Empty, None]) -> None:
    """Give everything back."""
    view = held_session(call)
    await call.services.release(view, call.principal)


async def _list_messages(call: Call[MessagesQuery, None]) -> LetterList:
    """Letters of a session, page by page."""
    view, asked = held_session(call), call.query
    page = await call.services.operations.messages(
        view.id, asked.filter, cursor=asked.cursor, size=asked.limit
    )
    cursor = None if page.next is None else str(page.next)
    items = [letter_answer(each) for each in page.letters]
    return LetterList(items, page.matching, cursor, page.not_looked_into)


async def _show_message(call: Call[Empty, None]) -> MessageAnswer:
    """One message with everything about it."""
    view = held_session(call)
    found = await call.services.operations.message(
        view.id, call.path["message"], by=who(call.principal)
    )
    return message_answer(found, view.id)


async def _download_body(call: Call[Empty, None]) -> Response:
    """The bytes as they are, as a file: never to be rendered."""
    view, ident = held_session(call), call.path["message"]
    body = await call.services.operations.body(view.id, ident, by=who(call.principal))
    return Response(
        body,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{quote(ident, safe="")}.bin"'},
    )


async def _list_groups(call: Call[GroupQuery, None]) -> GroupList:
    """The letters of a session by what they have in common."""
    view, asked = held_session(call), call.query
    groups = await call.services.operations.groups(view.id, asked.by, asked.filter)
    items = [group_answer(each) for each in groups.items[:_MOST_GROUPS]]
    more = len(groups.items) - len(items)
    return GroupList(asked.by.value, items, more, groups.matching, groups.not_looked_into)


_SESSION = "/admin/dlq/sessions/{session}"
_MOST_GROUPS = 1000

QUEUES = (
    Endpoint(
        "GET", "/admin/dlq/overview", "showOverview",
        "The dead-letter queues with their depths, from one sweep a second.",
        _overview, Role.VIEWER, answer=OverviewAnswer,
    ),
    Endpoint(
        "GET", "/admin/dlq/queues/{queue}", "showQueue",
        "A dead-letter queue: type, cost of looking, targets, depth with its age.",
        _show_queue, Role.VIEWER, Reach.QUEUE, answer=QueueAnswer,
    ),
    Endpoint(
        "POST", "/admin/dlq/queues/{queue}/sessions", "openSession",
        "Open a browse session: hold messages for looking at.",
        _open_session, Role.OPERATOR, Reach.QUEUE, body=NewSession, body_optional=True,
        answer=SessionAnswer, status=201, errors=(409,),
    ),
    Endpoint(
        "GET", _SESSION, "showSession", "A browse session.",
        _show_session, Role.OPERATOR, answer=SessionAnswer,
    ),
    Endpoint(
        "DELETE", _SESSION, "releaseSession", "Give everything back, in order.",
        _release_session, Role.OPERATOR, status=204,
    ),
    Endpoint(
        "POST", f"{_SESSION}/renew", "renewSession", "Hold on for longer.",
        _renew_session, Role.OPERATOR, body=Renewal, body_optional=True, answer=SessionAnswer,
    ),
    Endpoint(
        "GET", f"{_SESSION}/messages", "listMessages", "Letters of a session that match.",
        _list_messages, Role.OPERATOR, query=MessagesQuery, answer=LetterList,
    ),
    Endpoint(
        "GET", f"{_SESSION}/messages/{{message}}", "showMessage",
        "A message with its story, headers and payload; written to the audit.",
        _show_message, Role.OPERATOR, answer=MessageAnswer,
    ),
    Endpoint(
        "GET", f"{_SESSION}/messages/{{message}}/body", "downloadBody",
        "The bytes of a message as a file; written to the audit.",
        _download_body, Role.OPERATOR, media=("application/octet-stream",),
    ),
    Endpoint(
        "GET", f"{_SESSION}/groups", "listGroups", "Letters by what they have in common.",
        _list_groups, Role.OPERATOR, query=GroupQuery, answer=GroupList,
    ),
)  # fmt: skip
"""The rows."""
