"""The form of an upload, however it is cut into pieces and whatever it is made of."""

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
from tests.systems.file_pipeline.front_door import part

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
def test_the_file_is_the_same_however_the_form_is_cut(content: bytes, cuts: list[int]) -> None:
    """Bytes that look like boundaries, pieces of one byte: what went in comes out."""
    note = b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    body = note + part("file", "a.png", "image/png", content) + note + _END
    file, found = _parse(body, cuts)
    assert (file.filename, file.content_type, found) == ("a.png", "image/png", content)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_random_bytes_as_form_are_refused(body: bytes, cuts: list[int]) -> None:
    """Nothing but Refused comes out of noise."""
    with pytest.raises(RequestRefused):
        _parse(body, cuts)


@given(st.data())
def test_a_form_with_a_broken_byte_is_a_file_or_refused(data: st.DataObject) -> None:
    """One byte of a good form is changed: it is still a form, or it is refused in words."""
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
    """415, before a byte is read."""
    with pytest.raises(RequestRefused) as refused:
        _parse(b"", content_type=content_type)
    assert refused.value.status_code == 415


def test_too_long_boundary_returns_400() -> None:
    """10,000 characters where a form has at most 70: 400, not an error of ours."""
    with pytest.raises(RequestRefused) as refused:
        _parse(b"", content_type=f"multipart/form-data; boundary={'b' * 10_000}")
    assert refused.value.status_code == 400
