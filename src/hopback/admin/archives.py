"""Exports to download and imports to upload, by HTTP and on the page; both go through as they come."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from msgspec import Meta, Struct
from starlette.responses import FileResponse

from hopback.admin.api import ApiTable, Call, Empty, Reach
from hopback.admin.pages import Pages
from hopback.admin.problems import Refused
from hopback.admin.roles import Role
from hopback.admin.streaming import StreamedResponse
from hopback.admin.upload import FormUpload, lines_in
from hopback.deadletters.contract import Imported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from starlette.responses import Response

    from hopback.admin.pages import Visit
    from hopback.deadletters.contract import Job
    from hopback.deadletters.service import Operations

__all__ = [
    "ARCHIVES",
    "ARCHIVE_PAGES",
    "IMPORT_PATH",
    "ExportRequest",
    "ImportQuery",
    "SessionExportQuery",
]

ARCHIVES = ApiTable()
"""The rows of this part, each above what answers it."""

ARCHIVE_PAGES = Pages()
"""The pages of this part."""

IMPORT_PATH = re.compile(r"(/brokers/[^/]+)?(/admin/dlq)?/queues/[^/]+/import")
"""Where a request may be as large as an import."""

_NDJSON = "application/x-ndjson"
_Filter = Annotated[str, Meta(max_length=4096)]


class ExportRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages of a queue; `force` accepts the danger where looking could lose some."""

    filter: _Filter = ""
    limit: Annotated[int, Meta(ge=1)] | None = None
    force: bool = False


class SessionExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages of a session."""

    filter: _Filter = ""


class ImportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Why they are imported."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


async def _download(lines: AsyncGenerator[bytes, None], name: str) -> Response:
    """The lines as a file. The first is waited for: what stands in the way is an answer, not half a file."""
    first = await anext(lines, b"")

    async def content() -> AsyncIterator[bytes]:
        async with aclosing(lines):
            yield first
            async for line in lines:
                yield line

    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return StreamedResponse(
        content(),
        media_type=_NDJSON,
        headers={"Content-Disposition": f'attachment; filename="{plain}.ndjson"'},
    )


@ARCHIVES.row(
    "POST",
    "/admin/dlq/queues/{queue}/export",
    Role.OPERATOR,
    Reach.QUEUE,
    body=ExportRequest,
    body_optional=True,
    media=(_NDJSON,),
    errors=(400, 404, 409),
)
async def _export_queue(call: Call[Empty, ExportRequest]) -> Response:
    """Messages of a queue as lines of JSON, bytes and types exact; nothing is removed."""
    said, queue = call.body, call.path["queue"]
    lines = call.operations.export(queue, where=said.filter, limit=said.limit, forced=said.force)
    return await _download(lines, queue)


@ARCHIVES.row(
    "GET",
    "/admin/dlq/sessions/{session}/export",
    Role.OPERATOR,
    query=SessionExportQuery,
    media=(_NDJSON,),
    errors=(400, 404),
)
async def _export_session(call: Call[SessionExportQuery, None]) -> Response:
    """Messages that a session holds, as lines of JSON."""
    view = call.operations.session(call.path["session"])
    call.need(Role.OPERATOR, view.queue)
    lines = call.operations.export(view.queue, session=view.id, where=call.query.filter)
    return await _download(lines, view.queue)


@ARCHIVES.row("GET", "/admin/dlq/jobs/{job}/export", Role.OPERATOR, media=(_NDJSON,), errors=(404,))
async def _export_of_job(call: Call[Empty, None]) -> Response:
    """The file to which a discard wrote its messages before it removed them."""
    job = await call.operations.job(call.path["job"])
    call.need(Role.OPERATOR, job.queue)
    return await _written(call.operations, job)


async def _written(operations: Operations, job: Job) -> Response:
    folder, path = operations.settings.exports, Path(job.export_to or "/")
    # A discard by the command may name any file: only those of our own folder are given out.
    is_there = path.is_file()  # noqa: ASYNC240  one look at a local folder
    if folder is None or path.parent != folder or not is_there:
        raise Refused(404, "not-found", f"There is no file of job {job.id!r} here any more.")
    details = {"file": path.name}
    await operations.note("messages.download", queue=job.queue, job=job.id, details=details)
    return FileResponse(path, media_type=_NDJSON, filename=path.name)


@ARCHIVES.row(
    "POST",
    "/admin/dlq/queues/{queue}/import",
    Role.OPERATOR,
    Reach.QUEUE,
    query=ImportQuery,
    answer=Imported,
    errors=(404, 413),
)
async def _import_lines(call: Call[ImportQuery, None]) -> Imported:
    """Publish exported messages (lines of JSON in the body) into this queue, each confirmed."""
    lines = lines_in(call.request.stream())
    return await _imported(call.operations, call.path["queue"], lines, call.query.reason)


async def _imported(
    operations: Operations, queue: str, lines: AsyncIterator[bytes], reason: str
) -> Imported:
    await operations.dead_letter_queue(queue)  # NoSuch: only into dead-letter queues
    return await operations.import_lines(lines, queue=queue, reason=reason or "import")


# --- pages


@ARCHIVE_PAGES.get("/sessions/{session}/export")
async def _export_session_page(visit: Visit) -> Response:
    view = visit.operations.session(visit.path["session"])
    visit.need(Role.OPERATOR, view.queue)
    where = visit.field("filter")
    lines = visit.operations.export(view.queue, session=view.id, where=where)
    return await _download(lines, view.queue)


@ARCHIVE_PAGES.post("/queues/{queue}/export")
async def _export_queue_page(visit: Visit) -> Response:
    queue = visit.path["queue"]
    visit.need(Role.OPERATOR, queue)
    return await _download(visit.operations.export(queue), queue)


@ARCHIVE_PAGES.get("/jobs/{job}/export")
async def _export_of_job_page(visit: Visit) -> Response:
    job = await visit.operations.job(visit.path["job"])
    visit.need(Role.OPERATOR, job.queue)
    return await _written(visit.operations, job)


@ARCHIVE_PAGES.upload("/queues/{queue}/import")
async def _import_page(visit: Visit) -> Response:
    queue = visit.path["queue"]
    visit.need(Role.OPERATOR, queue)
    request = visit.request
    form = FormUpload(request.headers.get("content-type", ""), request.stream())
    file = form.file()
    first = await anext(file, b"")  # a form that is none is refused before anything is published

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in file:
            yield piece

    found = await _imported(visit.operations, queue, lines_in(pieces()), "import on the page")
    way = f"/queues/{quote(queue, safe='')}"
    return visit.page("imported.html", queue=queue, found=found, way=way)
