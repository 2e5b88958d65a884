"""What a team writes down, in the API and on the page: notes on groups, saved filters, what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct

from hopback.ops.contract.codec import convert
from hopback.ops.contract.queue_rules import PATH_QUEUE
from hopback.ops.contract.roles import Principal, Role
from hopback.ops.contract.values import AuditList
from hopback.ops.http.api import ApiTable, Call, Empty
from hopback.ops.http.auth import forbidden
from hopback.ops.notes.values import (
    FilterList,
    GroupNote,
    GroupNotes,
    NewFilter,
    NewNote,
    NoteList,
    SavedFilter,
)
from hopback.ops.page.pages import Pages, see_other

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.ops.page.pages import Visit

NOTES = ApiTable()
"""The rows of this part, each above what answers it."""

_QUEUE = "/admin/dlq/queues/{queue}"


async def _queue_of(call: Call[Any, Any]) -> str:
    """The queue in the path; NoSuch if it holds no dead letters."""
    return (await call.operations.dead_letter_queue(call.path["queue"])).name


class NotesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Of which group; all if none is named."""

    group: Annotated[str, Meta(max_length=64)] = ""


@NOTES.row("GET", f"{_QUEUE}/notes", Role.VIEWER, PATH_QUEUE, query=NotesQuery, answer=NoteList)
async def _list_notes(call: Call[NotesQuery, None]) -> NoteList:
    """What was written about the groups of a queue, the newest first."""
    return NoteList(await call.operations.notes.of(await _queue_of(call), call.query.group))


@NOTES.row(
    "POST",
    f"{_QUEUE}/notes",
    Role.OPERATOR,
    PATH_QUEUE,
    body=NewNote,
    answer=GroupNote,
    status=201,
    errors=(404,),
)
async def _add_note(call: Call[Empty, NewNote]) -> GroupNote:
    """Write about a group: known, fixed in 2.3."""
    return await call.operations.notes.add(await _queue_of(call), call.body)


@NOTES.row(
    "DELETE", f"{_QUEUE}/notes/{{note}}", Role.OPERATOR, PATH_QUEUE, status=204, errors=(404,)
)
async def _remove_note(call: Call[Empty, None]) -> None:
    """Take a note of one's own away; an admin takes away any."""
    queue, note = await _queue_of(call), call.path["note"]
    await may_remove(call.operations.notes, call.principal, queue, note)
    await call.operations.notes.remove(queue, note)


async def may_remove(notes: GroupNotes, principal: Principal, queue: str, note: str) -> None:
    """Refuse somebody who would take away what another wrote."""
    found = next((one for one in await notes.of(queue) if one.id == note), None)
    own = found is None or found.by_id == principal.id
    if not own and not principal.allows(Role.ADMIN, queue):
        raise forbidden("This note is somebody else's: expected its writer, or an admin.")


@NOTES.row(
    "GET",
    f"{_QUEUE}/history",
    Role.OPERATOR,
    PATH_QUEUE,
    query=NotesQuery,
    answer=AuditList,
    errors=(404,),
)
async def _history(call: Call[NotesQuery, None]) -> AuditList:
    """What was done to a group or a queue, the newest first."""
    entries = await call.operations.notes.history(await _queue_of(call), call.query.group)
    return AuditList(entries, None)


@NOTES.row("GET", f"{_QUEUE}/filters", Role.VIEWER, PATH_QUEUE, answer=FilterList, errors=(404,))
async def _list_filters(call: Call[Empty, None]) -> FilterList:
    """The filters that somebody saved for a queue."""
    return FilterList(await call.operations.notes.filters(await _queue_of(call)))


@NOTES.row(
    "POST",
    f"{_QUEUE}/filters",
    Role.OPERATOR,
    PATH_QUEUE,
    body=NewFilter,
    answer=SavedFilter,
    status=201,
    errors=(400, 404),
)
async def _save_filter(call: Call[Empty, NewFilter]) -> SavedFilter:
    """Save a filter under a name, in the place of one of the same name."""
    return await call.operations.notes.save_filter(await _queue_of(call), call.body)


@NOTES.row(
    "DELETE", f"{_QUEUE}/filters/{{name}}", Role.OPERATOR, PATH_QUEUE, status=204, errors=(404,)
)
async def _remove_filter(call: Call[Empty, None]) -> None:
    """Take a saved filter away."""
    await call.operations.notes.remove_filter(await _queue_of(call), call.path["name"])


#
# Its notes and what was done to it. Its address can be shared.

NOTE_PAGES = Pages()
"""The rows of this part."""


def _here(visit: Visit) -> str:
    queue, group = quote(visit.path["queue"], safe=""), quote(visit.path["group"], safe="")
    return f"/queues/{queue}/groups/{group}"


@NOTE_PAGES.get("/queues/{queue}/groups/{group}", Role.VIEWER, PATH_QUEUE)
async def _group(visit: Visit) -> Response:
    queue, group, notes = visit.path["queue"], visit.path["group"], visit.operations.notes
    await visit.operations.dead_letter_queue(queue)
    is_operator = visit.principal.allows(Role.OPERATOR, queue)
    return visit.page(
        "group.html",
        queue=queue,
        group=group,
        notes=await notes.of(queue, group),
        history=await notes.history(queue, group) if is_operator else (),
        operator=is_operator,
        admin=visit.principal.allows(Role.ADMIN, queue),
    )


@NOTE_PAGES.post("/queues/{queue}/groups/{group}/notes", Role.OPERATOR, PATH_QUEUE)
async def _add_note_by_page(visit: Visit) -> Response:
    queue, group = visit.path["queue"], visit.path["group"]
    await visit.operations.dead_letter_queue(queue)
    said = convert(NewNote, {"group": group, "text": visit.field("text").strip()})
    await visit.operations.notes.add(queue, said)
    return see_other(_here(visit))


@NOTE_PAGES.post("/queues/{queue}/groups/{group}/notes/{note}/remove", Role.OPERATOR, PATH_QUEUE)
async def _remove_note_by_page(visit: Visit) -> Response:
    queue, note, notes = visit.path["queue"], visit.path["note"], visit.operations.notes
    await may_remove(notes, visit.principal, queue, note)
    await notes.remove(queue, note)
    return see_other(_here(visit))


@NOTE_PAGES.post("/queues/{queue}/filters", Role.OPERATOR, PATH_QUEUE)
async def _save_filter_by_page(visit: Visit) -> Response:
    queue = visit.path["queue"]
    await visit.operations.dead_letter_queue(queue)
    said = {"name": visit.field("name").strip(), "filter": visit.field("filter").strip()}
    await visit.operations.notes.save_filter(queue, convert(NewFilter, said))
    return see_other(f"/queues/{quote(queue, safe='')}?told=filter-saved")


@NOTE_PAGES.post("/queues/{queue}/filters/remove", Role.OPERATOR, PATH_QUEUE)
async def _remove_filter_by_page(visit: Visit) -> Response:
    queue = visit.path["queue"]
    await visit.operations.notes.remove_filter(queue, visit.field("name"))
    return see_other(f"/queues/{quote(queue, safe='')}")
