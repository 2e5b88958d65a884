"""The API and pages for notes, saved filters and the history of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from hopback.ops.contract import endpoints
from hopback.ops.contract.codec import convert
from hopback.ops.contract.queue_rules import PATH_QUEUE
from hopback.ops.contract.roles import Role
from hopback.ops.http.api import ApiTable
from hopback.ops.http.auth import forbidden
from hopback.ops.messages.filters import write_term
from hopback.ops.notes.values import NewFilter, NewNote
from hopback.ops.page.pages import Pages, Visit, see_other

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.ops.http.services import CallerRequest

NOTES = ApiTable()
"""The API endpoints for notes."""


@NOTES.answer(endpoints.REMOVE_NOTE)
async def _remove_note(call: CallerRequest) -> None:
    """Remove a note. This is only allowed for its author and for admins."""
    queue, note, notes = call.path["queue"], call.path["note"], call.operations.notes
    found = next((one for one in await notes.of(queue) if one.id == note), None)
    is_own = found is None or found.by_id == call.principal.id
    if not is_own and not call.principal.allows(Role.ADMIN, queue):
        raise forbidden("Only its author and admins may remove this note.")
    await notes.remove(queue, note)


NOTE_PAGES = Pages()
"""The pages for groups."""


def _group_url(visit: Visit) -> str:
    queue, group = quote(visit.path["queue"], safe=""), quote(visit.path["group"], safe="")
    return f"/queues/{queue}/groups/{group}"


@NOTE_PAGES.get("/queues/{queue}/groups/{group}", Role.VIEWER, PATH_QUEUE, reads_broker=True)
async def _group(visit: Visit) -> Response:
    queue, group, notes = visit.path["queue"], visit.path["group"], visit.operations.notes
    await visit.operations.dead_letter_queue(queue)
    is_operator = visit.principal.allows(Role.OPERATOR, queue)
    return visit.page(
        "group.html",
        queue=queue,
        group=group,
        filter=write_term("group", group),
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
    return see_other(_group_url(visit))


@NOTE_PAGES.post("/queues/{queue}/groups/{group}/notes/{note}/remove", Role.OPERATOR, PATH_QUEUE)
async def _remove_note_by_page(visit: Visit) -> Response:
    await _remove_note(visit)
    return see_other(_group_url(visit))


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
