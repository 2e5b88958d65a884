"""A file that somebody sends: read as it comes, never held whole.

A form of the page sends it as multipart/form-data (RFC 7578); of that, small fields and then one file are
read, in pieces of whatever size they come.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hopback.admin.problems import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["FormUpload", "lines_in"]

_LONGEST_LINE = (
    64 * 1024 * 1024
)  # a message of 16 MiB, RabbitMQ's default limit, in base64 and more
_LONGEST_FIELD = 8192  # a reason, a name; and the heads of parts
_MOST_FIELDS = 10  # the form has three
_BOUNDARY = re.compile(
    r'multipart/form-data *;.*?boundary="?([\w\'()+,./:=?-]{1,70})"?', re.IGNORECASE
)
_NAME = re.compile(rb'content-disposition:[^\r\n]*?[; ]name="([^"\r\n]*)"', re.IGNORECASE)
_FILE = re.compile(rb'content-disposition:[^\r\n]*?[; ]filename="([^"\r\n]*)"', re.IGNORECASE)


async def lines_in(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a file; Refused for one that is longer than any message."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > _LONGEST_LINE:
            raise Refused(413, "too-large", f"A line is longer than {_LONGEST_LINE} bytes.")
    if rest:
        yield rest


def _bad(what: str) -> Refused:
    return Refused(400, "bad-form", f"The form: {what}.")


class FormUpload:
    """The fields and the file of a form, in the order in which they are sent: the file is the last."""

    def __init__(self, content_type: str, pieces: AsyncIterator[bytes]) -> None:
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise Refused(415, "not-a-form", "Expected a form with a file (multipart/form-data).")
        self._mark = b"\r\n--" + found[1].encode()
        self._pieces = pieces
        self._buffer = b"\r\n"  # the first mark stands at the beginning of the body
        self.fields: dict[str, str] = {}

    async def file(self) -> AsyncIterator[bytes]:
        """The content of the file; before its first piece, `fields` has what was sent before it."""
        await self._until(self._mark, _LONGEST_FIELD)
        for _ in range(_MOST_FIELDS):
            if (await self._take(2)) != b"\r\n":
                break
            head = await self._until(b"\r\n\r\n", _LONGEST_FIELD)
            name = _NAME.search(head)
            if name is None:
                raise _bad("expected parts with names")
            if _FILE.search(head) is not None:
                async for piece in self._content():
                    yield piece
                return
            value = await self._until(self._mark, _LONGEST_FIELD)
            self.fields[name[1].decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        raise _bad("expected a file, found none")

    async def _content(self) -> AsyncIterator[bytes]:
        while True:
            end = self._buffer.find(self._mark)
            if end >= 0:
                yield self._buffer[:end]
                return
            # A mark may have come in half.
            keep = len(self._mark) - 1
            if len(self._buffer) > keep:
                yield self._buffer[:-keep]
                self._buffer = self._buffer[-keep:]
            await self._more()

    async def _until(self, mark: bytes, most: int) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > most:
                raise _bad("a field is too long")
            await self._more()
        found, self._buffer = self._buffer[:end], self._buffer[end + len(mark) :]
        return found

    async def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    async def _more(self) -> None:
        async for piece in self._pieces:
            if piece:
                self._buffer += piece
                return
        raise _bad("it ends too early")
