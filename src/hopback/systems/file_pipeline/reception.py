"""Receive one uploaded file: stream it to the storage, with limits of size, time and type."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import PurePath

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from hopback.systems.file_pipeline.contents import TYPES
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.storage import FileStorage, shown_name
from hopback.systems.web import RequestRefused

_FORM_BYTES = 64 * 1024
"""Bytes of a form in addition to its file: boundaries, headers, other fields."""


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A received file."""

    file_id: str
    name: str
    declared_type: str
    size: int


class FileForm:
    """Parses `multipart/form-data` in pieces and returns the bytes of its field `file`."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise RequestRefused(
                "expected multipart/form-data with a field `file`",
                "esperado multipart/form-data com um campo `file`",
                status=415,
            )
        self.name: str = ""
        self.declared_type: str = ""
        self.found: bool = False
        self._ended = False
        self._inside = False
        self._headers: dict[bytes, bytes] = {}
        self._field = self._value = b""
        self._file: list[bytes] = []
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": self._on_field,
                    "on_header_value": self._on_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": self._on_data,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:  # a boundary that is too long: RFC 2046 allows 70 characters
            raise RequestRefused(
                "the boundary of the form is too long: expected 70 characters",
                "o boundary do formulário é longo demais: esperados 70 caracteres",
            ) from None

    def feed(self, chunk: bytes) -> bytes:
        """Parse a piece of the form. Return the bytes of the file in it."""
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise RequestRefused(
                "the form is broken: expected well-formed multipart/form-data",
                "o formulário é inválido: esperado multipart/form-data bem formado",
            ) from None
        taken, self._file = b"".join(self._file), []
        return taken

    def finish(self) -> None:
        """Raise RequestRefused if the form is incomplete or has no file."""
        if not self._ended:
            raise RequestRefused(
                "the form is cut off: expected its closing boundary",
                "o formulário está incompleto: esperado o boundary final",
            )
        if not self.found:
            raise RequestRefused(
                "expected a file in the field `file`", "esperado um arquivo no campo `file`"
            )

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._inside = options.get(b"name") == b"file" and b"filename" in options
        if not self._inside:
            return
        if self.found:
            raise RequestRefused(
                "expected one file, got a second one", "esperado um arquivo, recebido um segundo"
            )
        self.found = True
        self.name = shown_name(options[b"filename"].decode("utf-8", "replace"))
        declared = self._headers.get(b"content-type", b"").partition(b";")[0]
        self.declared_type = declared.strip().lower().decode("latin-1")
        if not self.name:
            raise RequestRefused("expected a file with a name", "esperado um arquivo com nome")
        ending = PurePath(self.name).suffix.lower()
        known = {one for taken in TYPES.values() for one in taken.endings}
        if self.declared_type not in TYPES or ending not in known:
            raise RequestRefused(
                f"expected a file of type {', '.join(TYPES)} with an ending that fits,"
                f" got {self.declared_type[:80] or 'no type'!r} and {ending[:20]!r}",
                f"esperado um arquivo do tipo {', '.join(TYPES)} com extensão adequada,"
                f" recebido {self.declared_type[:80] or 'sem tipo'!r} e {ending[:20]!r}",
                status=415,
            )

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            self._file.append(data[start:end])

    def _on_end(self) -> None:
        self._ended = True


async def receive(
    request: Request, storage: FileStorage, settings: PipelineSettings
) -> ReceivedFile:
    """Receive the file of a form. After RequestRefused no data is left."""
    announced = request.headers.get("content-length", "")
    # int() of thousands of digits is slow, and no size has so many.
    if announced.isdecimal() and (
        len(announced) > 18 or int(announced) > settings.max_bytes + _FORM_BYTES
    ):
        raise _too_large(settings.max_bytes)
    form = FileForm(request.headers.get("content-type", ""))
    file_id = str(uuid.uuid4())
    incoming = await asyncio.to_thread(storage.receive, file_id)
    try:
        size = total = 0
        async with asyncio.timeout(settings.upload_s):
            async for chunk in request.stream():
                taken = form.feed(chunk)
                total, size = total + len(chunk), size + len(taken)
                if size > settings.max_bytes or total > settings.max_bytes + _FORM_BYTES:
                    raise _too_large(settings.max_bytes)
                if taken:
                    await asyncio.to_thread(incoming.write, taken)
        form.finish()
        if not size:
            raise RequestRefused("the file is empty", "o arquivo está vazio")
        await asyncio.to_thread(incoming.keep)
    except TimeoutError:
        raise RequestRefused(
            f"the upload took longer than {settings.upload_s} s",
            f"o envio demorou mais de {settings.upload_s} s",
            status=408,
        ) from None
    finally:
        await asyncio.to_thread(incoming.drop)
    return ReceivedFile(file_id, form.name, form.declared_type, size)


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        f"expected a file of at most {max_bytes} bytes",
        f"esperado um arquivo de no máximo {max_bytes} bytes",
        status=413,
    )
