"""Parsing of upload forms for any chunk boundaries and content."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile

from hopback.systems.file_pipeline.reception import parse_form
from hopback.systems.web import RequestRefused
from tests.systems.file_pipeline.gateway_client import part

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

_TYPE = "multipart/form-data; boundary=b"
_END = b"--b--\r\n"


def _parse(
    body: bytes, cuts: Sequence[int] = (), content_type: str = _TYPE
) -> tuple[UploadFile, bytes]:
    """Parse a form that arrives in pieces. Return its file and the content."""
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start, end in pairwise(places):
            yield body[start:end]

    async def parse() -> tuple[UploadFile, bytes]:
        file = await parse_form(Headers({"content-type": content_type}), chunks())
        content = await file.read()
        await file.close()
        return file, content

    return asyncio.run(parse())


@given(
    st.binary(max_size=300).filter(lambda content: b"\r\n--b" not in content),
    st.lists(st.integers(0, 600), max_size=20),
)
def test_parsed_file_does_not_depend_on_chunk_boundaries(content: bytes, cuts: list[int]) -> None:
    """Also for content that resembles boundaries."""
    note = b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    body = note + part("file", "a.png", "image/png", content) + note + _END
    file, found = _parse(body, cuts)
    assert (file.filename, file.content_type, found) == ("a.png", "image/png", content)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_random_bytes_as_form_are_refused(body: bytes, cuts: list[int]) -> None:
    with pytest.raises(RequestRefused):
        _parse(body, cuts)


@given(st.data())
def test_form_with_a_changed_byte_is_parsed_or_refused(data: st.DataObject) -> None:
    """No other error is raised."""
    good = part("file", "a.png", "image/png", b"pixels") + _END
    place = data.draw(st.integers(0, len(good) - 1))
    value = data.draw(st.integers(0, 255))
    try:
        _parse(good[:place] + bytes([value]) + good[place + 1 :])
    except RequestRefused:
        return


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "multipart/form-data", "multipart/mixed; boundary=b", "\xff"]
)
def test_other_content_type_than_form_returns_415(content_type: str) -> None:
    """Before the body is read."""
    with pytest.raises(RequestRefused) as error:
        _parse(b"", content_type=content_type)
    assert error.value.status_code == 415


def test_too_long_boundary_returns_400() -> None:
    """10,000 characters. The limit is 70."""
    with pytest.raises(RequestRefused) as error:
        _parse(b"", content_type=f"multipart/form-data; boundary={'b' * 10_000}")
    assert error.value.status_code == 400
