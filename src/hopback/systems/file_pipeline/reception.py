"""Receive an uploaded file. Its size, duration and type are limited."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from hopback.systems.file_pipeline.contents import TYPES
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.web import RequestRefused

_LONGEST_NAME = 200
"""The maximum number of characters in a file name. In most scripts, this is less than 255 bytes."""
_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_FORM_BYTES = 64 * 1024
"""How many bytes a form may have in addition to its file, for boundaries, headers and other fields.
"""
_MOST_FIELDS = 100
"""How many fields a form may have in addition to its file. They are ignored."""


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A received file. Large ones are in a temporary file."""

    file_id: str
    name: str
    declared_type: str
    size: int
    content: BinaryIO


@asynccontextmanager
async def receive(request: Request, settings: PipelineSettings) -> AsyncIterator[ReceivedFile]:
    """Receive a file from a form. Raises RequestRefused if it is not accepted."""
    most = settings.max_bytes + _FORM_BYTES

    async def limited() -> AsyncGenerator[bytes, None]:
        total = 0
        async for chunk in request.stream():
            total += len(chunk)
            if total > most:
                raise _too_large(settings.max_bytes)
            yield chunk

    announced = request.headers.get("content-length", "")
    # Converting thousands of digits with int() would be slow. A valid size has at most 18.
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > most):
        raise _too_large(settings.max_bytes)
    try:
        async with asyncio.timeout(settings.upload_s):
            file = await parse_form(request.headers, limited())
    except TimeoutError:
        raise RequestRefused(
            f"the upload took longer than {settings.upload_s} s",
            f"o envio demorou mais de {settings.upload_s} s",
            status=408,
        ) from None
    try:
        name, declared_type = _check_type(file)
        if not file.size:
            raise RequestRefused("the file is empty", "o arquivo está vazio")
        if file.size > settings.max_bytes:
            raise _too_large(settings.max_bytes)
        yield ReceivedFile(str(uuid.uuid4()), name, declared_type, file.size, file.file)
    finally:
        await file.close()


class _FormParser(MultiPartParser):
    """A form parser that remembers if it has read the closing boundary."""

    is_complete = False

    def on_end(self) -> None:
        self.is_complete = True


async def parse_form(headers: Headers, chunks: AsyncGenerator[bytes, None]) -> UploadFile:
    """Return the field `file` of a `multipart/form-data` body. Raises RequestRefused if there is
    none.
    """
    kind, options = parse_options_header(headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise RequestRefused(
            "expected multipart/form-data with a field `file`",
            "esperado multipart/form-data com um campo `file`",
            status=415,
        )

    async def complete() -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            yield chunk
        if not parser.is_complete:
            raise RequestRefused(
                "the form is incomplete: expected its closing boundary",
                "o formulário está incompleto: esperado o boundary final",
            )

    parser = _FormParser(headers, complete(), max_files=1, max_fields=_MOST_FIELDS)
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError):
        raise RequestRefused(
            "the form is broken: expected well-formed multipart/form-data with one file",
            "o formulário é inválido: esperado multipart/form-data bem formado com um arquivo",
        ) from None
    found = form.get("file")
    if not isinstance(found, UploadFile):
        await form.close()
        raise RequestRefused(
            "expected a file in the field `file`", "esperado um arquivo no campo `file`"
        )
    return found


def _check_type(file: UploadFile) -> tuple[str, str]:
    """Return the name and the declared type of a file. Raises RequestRefused if the type is not
    accepted.
    """
    name = shown_name(file.filename or "")
    if not name:
        raise RequestRefused("expected a file with a name", "esperado um arquivo com nome")
    declared = (file.content_type or "").partition(";")[0].strip().lower()
    ending = PurePath(name).suffix.lower()
    known = {one for endings in TYPES.values() for one in endings}
    if declared not in TYPES or ending not in known:
        raise RequestRefused(
            f"expected a file of type {', '.join(TYPES)} with an ending that fits,"
            f" got {declared[:80] or 'no type'!r} and {ending[:20]!r}",
            f"esperado um arquivo do tipo {', '.join(TYPES)} com extensão adequada,"
            f" recebido {declared[:80] or 'sem tipo'!r} e {ending[:20]!r}",
            status=415,
        )
    return name, declared


def shown_name(given: str) -> str:
    """Remove folders and control characters from a file name and limit its length."""
    last = re.split(r"[/\\]", given)[-1]
    plain = _UNFIT.sub("", last).strip().strip(".").strip()
    if len(plain) > _LONGEST_NAME:
        stem, dot, ending = plain.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) <= 10 else ""
        plain = plain[: _LONGEST_NAME - len(kept)] + kept
    return plain


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        f"expected a file of at most {max_bytes} bytes",
        f"esperado um arquivo de no máximo {max_bytes} bytes",
        status=413,
    )
