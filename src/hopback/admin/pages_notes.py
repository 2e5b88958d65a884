"""The page of a group: its notes and what was done to it. Its address can be shared."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from hopback.admin.api_notes import may_remove
from hopback.admin.pages import Pages, see_other
from hopback.admin.roles import Role
from hopback.deadletters.codec import convert
from hopback.deadletters.notes import NewFilter, NewNote

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.admin.pages import Visit

__all__ = ["NOTE_PAGES"]

NOTE_PAGES = Pages()
"""The rows of this part."""


def _here(visit: Visit) -> str:
    queue, group = quote(visit.path["queue"], safe=""), quote(visit.path["group"], safe="")
    return f"/queues/{queue}/groups/{group}"


@NOTE_PAGES.get("/queues/{queue}/groups/{group}")
async def _group(visit: Visit) -> Response:
    queue, group, notes = visit.path["queue"], visit.path["group"], visit.operations.notes
    visit.need(Role.VIEWER, queue)
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


@NOTE_PAGES.post("/queues/{queue}/groups/{group}/notes")
async def _add_note(visit: Visit) -> Response:
    queue, group = visit.path["queue"], visit.path["group"]
    visit.need(Role.OPERATOR, queue)
    await visit.operations.dead_letter_queue(queue)
    said = convert(NewNote, {"group": group, "text": visit.field("text").strip()})
    await visit.operations.notes.add(queue, said)
    return see_other(_here(visit))


@NOTE_PAGES.post("/queues/{queue}/groups/{group}/notes/{note}/remove")
async def _remove_note(visit: Visit) -> Response:
    queue, note, notes = visit.path["queue"], visit.path["note"], visit.operations.notes
    visit.need(Role.OPERATOR, queue)
    await may_remove(notes, visit.principal, queue, note)
    await notes.remove(queue, note)
    return see_other(_here(visit))


@NOTE_PAGES.post("/queues/{queue}/filters")
async def _save_filter(visit: Visit) -> Response:
    queue = visit.path["queue"]
    visit.need(Role.OPERATOR, queue)
    await visit.operations.dead_letter_queue(queue)
    said = {"name": visit.field("name").strip(), "filter": visit.field("filter").strip()}
    await visit.operations.notes.save_filter(queue, convert(NewFilter, said))
    return see_other(f"/queues/{quote(queue, safe='')}?told=filter-saved")


@NOTE_PAGES.post("/queues/{queue}/filters/remove")
async def _remove_filter(visit: Visit) -> Response:
    queue = visit.path["queue"]
    visit.need(Role.OPERATOR, queue)
    await visit.operations.notes.remove_filter(queue, visit.field("name"))
    return see_other(f"/queues/{quote(queue, safe='')}")
