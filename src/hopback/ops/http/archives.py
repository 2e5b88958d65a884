"""Download exports and upload imports, in the API and on the page. All content is streamed."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from hopback.errors import BadLine
from hopback.ops.contract import endpoints
from hopback.ops.contract.endpoints import NDJSON, Empty
from hopback.ops.contract.queue_rules import JOB_QUEUE, PATH_QUEUE, SESSION_QUEUE
from hopback.ops.contract.requests import ExportRequest, ImportQuery, Selection
from hopback.ops.contract.roles import Role
from hopback.ops.http.api import ApiTable, Call
from hopback.ops.http.events import StreamedResponse
from hopback.ops.http.problems import Refused
from hopback.ops.messages.archive import read_files, run_files
from hopback.ops.page.pages import Pages, Visit, release_look

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from hopback.ops.contract.values import Imported
    from hopback.ops.http.services import CallerRequest

ARCHIVES = ApiTable()

ARCHIVE_PAGES = Pages()

IMPORT_PATH = re.compile(r"(/brokers/[^/]+)?(/admin/dlq)?/queues/[^/]+/import")
"""Paths for which the larger size limit of imports applies."""


async def _download(lines: AsyncGenerator[bytes, None], name: str) -> Response:
    """Return the lines as a file with this name.

    The first line is awaited, because the status of the response can no longer change after it.
    """
    first = await anext(lines, b"")

    async def content() -> AsyncIterator[bytes]:
        async with aclosing(lines):
            yield first
            async for line in lines:
                yield line

    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return StreamedResponse(
        content(),
        media_type=NDJSON,
        headers={"Content-Disposition": f'attachment; filename="{plain}"'},
    )


@ARCHIVES.answer(endpoints.EXPORT)
async def _export_queue(call: Call[Empty, ExportRequest]) -> Response:
    """Export messages of a queue as lines of JSON, without removing them."""
    request, queue = call.body, call.path["queue"]
    lines = call.operations.export(queue, request.selection, force=request.force)
    return await _download(lines, f"{queue}.ndjson")


@ARCHIVES.row(
    "GET", "/admin/dlq/jobs/{job}/export", Role.OPERATOR, JOB_QUEUE, media=(NDJSON,), errors=(404,)
)
@ARCHIVE_PAGES.get("/jobs/{job}/export", Role.OPERATOR, JOB_QUEUE)
async def _export_of_job(call: CallerRequest) -> Response:
    """Download the file with the messages that a discard removed."""
    job, operations = await call.job(), call.operations
    path = Path(job.export_to)
    # A discard from the command line can write to any file. Only files in the export folder are
    # served.
    is_served = bool(job.export_to) and path.parent == operations.settings.exports
    files = run_files(job.export_to, job.run) if is_served else []
    if not files:
        raise Refused(404, "not-found", f"This service does not have the file of job {job.id!r}.")
    details = {"file": path.name}
    await operations.note("messages.download", queue=job.queue, job=job.id, details=details)
    if len(files) == 1:
        return FileResponse(files[0], media_type=NDJSON, filename=path.name)
    return await _download(read_files(files), path.name)


@ARCHIVES.answer(endpoints.IMPORT)
async def _import_lines(call: Call[ImportQuery, None]) -> Imported:
    """Publish exported messages to this queue. The body contains lines of JSON."""
    return await _import(call, lines_in(call.request.stream()), call.query.reason)


async def _import(asked: CallerRequest, lines: AsyncIterator[bytes], reason: str) -> Imported:
    queue, operations = asked.path["queue"], asked.operations
    await operations.dead_letter_queue(queue)  # raises NoSuch for other queues
    return await operations.import_lines(lines, queue=queue, reason=reason or "import")


@ARCHIVE_PAGES.get("/sessions/{session}/export", Role.OPERATOR, SESSION_QUEUE, is_heavy=True)
async def _export_session_page(visit: Visit) -> Response:
    view, ids = visit.session, tuple(visit.all("ids"))
    selection = Selection(session=view.id, ids=ids, filter="" if ids else visit.field("filter"))
    lines = visit.operations.export(view.queue, selection)
    return await _download(lines, f"{view.queue}.ndjson")


@ARCHIVE_PAGES.post("/queues/{queue}/export", Role.OPERATOR, PATH_QUEUE, is_heavy=True)
async def _export_queue_page(visit: Visit) -> Response:
    queue = visit.path["queue"]
    selection = visit.read(Selection)
    await release_look(visit, queue)
    return await _download(visit.operations.export(queue, selection), f"{queue}.ndjson")


@ARCHIVE_PAGES.post(
    "/queues/{queue}/import", Role.OPERATOR, PATH_QUEUE, reads_form=False, is_heavy=True
)
async def _import_page(visit: Visit) -> Response:
    queue = visit.path["queue"]
    request = visit.request
    form = FormUpload(request.headers.get("content-type", ""), request.stream())
    file = form.file()
    first = await anext(file, b"")  # check the form before the first message is published

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in file:
            yield piece

    found = await _import(visit, lines_in(pieces()), "import on the page")
    way = f"/queues/{quote(queue, safe='')}"
    return visit.page("imported.html", queue=queue, found=found, way=way)


# Uploaded files are read in pieces and never held in memory as a whole. The page sends them as
# multipart/form-data (RFC 7578), with some small fields before the file.

# Bytes. A line with a message of 16 MiB, the default limit of RabbitMQ, in base64 and with its
# headers is shorter. Longer lines are refused, because parsing them would block the service for
# over 100 ms.
_LONGEST_LINE = 32 * 1024 * 1024
# bytes. Limits a field, such as a reason or a name, and the headers of a part.
_LONGEST_FIELD = 8192
_MOST_FIELDS = 10  # fields in a form, of which the page sends three
_BOUNDARY = re.compile(
    r'multipart/form-data *;.*?boundary="?([\w\'()+,./:=?-]{1,70})"?', re.IGNORECASE
)
_NAME = re.compile(rb'content-disposition:[^\r\n]*?[; ]name="([^"\r\n]*)"', re.IGNORECASE)
_FILE = re.compile(rb'content-disposition:[^\r\n]*?[; ]filename="([^"\r\n]*)"', re.IGNORECASE)


async def lines_in(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split an upload into lines.

    Raises BadLine if a line is too long, and OSError if the upload is interrupted.
    """
    begun = bytearray()  # an incomplete line
    try:
        async for piece in pieces:
            first, *others = piece.split(b"\n")
            begun += first
            if len(begun) > _LONGEST_LINE:
                raise BadLine(
                    f"expected lines of at most {_LONGEST_LINE:,} bytes, got a longer one"
                )
            for following in others:
                yield bytes(begun)
                begun = bytearray(following)
    except ClientDisconnect:
        raise OSError("the upload was interrupted") from None
    if begun:
        yield bytes(begun)


def _bad(what: str) -> Refused:
    return Refused(400, "bad-form", f"The form: {what}.")


class FormUpload:
    """A form whose last part is a file."""

    def __init__(self, content_type: str, pieces: AsyncIterator[bytes]) -> None:
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise Refused(415, "not-a-form", "Expected a form with a file (multipart/form-data).")
        self._boundary = b"\r\n--" + found[1].encode()
        self._pieces = pieces
        # makes the first boundary, which has no preceding line break, match too
        self._buffer = b"\r\n"

    async def file(self) -> AsyncIterator[bytes]:
        """Yield the content of the file in pieces."""
        await self._until(self._boundary, _LONGEST_FIELD)
        for _ in range(_MOST_FIELDS):
            while len(self._buffer) < 2:
                await self._more()
            end, self._buffer = self._buffer[:2], self._buffer[2:]
            if end != b"\r\n":
                break
            head = await self._until(b"\r\n\r\n", _LONGEST_FIELD)
            if _NAME.search(head) is None:
                raise _bad("expected parts with names")
            if _FILE.search(head) is not None:
                async for piece in self._content():
                    yield piece
                return
            await self._until(self._boundary, _LONGEST_FIELD)
        raise _bad("expected a file, found none")

    async def _content(self) -> AsyncIterator[bytes]:
        while True:
            end = self._buffer.find(self._boundary)
            if end >= 0:
                yield self._buffer[:end]
                return
            # The buffer may end with the beginning of a boundary.
            keep = len(self._boundary) - 1
            if len(self._buffer) > keep:
                yield self._buffer[:-keep]
                self._buffer = self._buffer[-keep:]
            await self._more()

    async def _until(self, end_text: bytes, most: int) -> bytes:
        while (end := self._buffer.find(end_text)) < 0:
            if len(self._buffer) > most:
                raise _bad("a field is too long")
            await self._more()
        found, self._buffer = self._buffer[:end], self._buffer[end + len(end_text) :]
        return found

    async def _more(self) -> None:
        async for piece in self._pieces:
            if piece:
                self._buffer += piece
                return
        raise _bad("it is incomplete")
