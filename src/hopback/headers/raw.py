"""Split and join encoded properties without decoding the headers.

This is used for moving messages, because decoding the headers would take most of the time.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from hopback.fields import value_end

_EARLY = (1 << 15, 1 << 14)
"""Flags of content type and content encoding, which come before the headers."""
_HEADERS, _MODE = 1 << 13, 1 << 12
_EXPIRATION, _MESSAGE_ID, _USER_ID = 1 << 8, 1 << 7, 1 << 4
_PRIORITY, _TIMESTAMP = 1 << 11, 1 << 6
_LATE = tuple(1 << bit for bit in range(11, 1, -1))
_WIDTHS = {_PRIORITY: 1, _TIMESTAMP: 8}
"""Sizes of properties in bytes. All others are short strings."""
_UNKNOWN = 0b11  # flags that are not used by AMQP 0-9-1
_PERSISTENT = b"\x02"
_TEXT = ord("S")
_pack = struct.Struct(">H").pack
_pack_u32 = struct.Struct(">I").pack
_unpack_u32 = struct.Struct(">I").unpack_from


class CutProperties(NamedTuple):
    """Encoded properties, split at the header table.

    `after` does not contain the delivery mode and the expiration, because a moved message is
    persistent and must not expire.
    """

    flags: int
    before: bytes
    entries: bytes
    after: bytes

    @property
    def has_user(self) -> bool:
        return self.flags & _USER_ID != 0

    def join(self, entries: bytes) -> bytes:
        """Return the encoded properties with other headers.

        The message is persistent and does not expire.
        """
        flags = (self.flags | _HEADERS | _MODE) & ~_EXPIRATION
        size = _pack_u32(len(entries))
        return b"".join((_pack(flags), self.before, size, entries, _PERSISTENT, self.after))


def cut_properties(raw: bytes) -> CutProperties | None:
    """Split encoded properties. Returns None if they are invalid."""
    try:
        return _cut(raw)
    except (IndexError, struct.error):
        return None


def message_id_in(raw: bytes) -> str | None:
    """Return the message id, or None if it is missing or the properties are invalid."""
    try:
        flags, at = (raw[0] << 8) | raw[1], 2
        layout = _layout(flags)
        if layout is None or layout.message_id is None:
            return None
        for _ in range(layout.texts):
            at += 1 + raw[at]
        if flags & _HEADERS:
            at += 4 + _unpack_u32(raw, at)[0]
        if flags & _MODE:
            at += 1
        for width in layout.widths[: layout.message_id]:
            at += width or 1 + raw[at]
        begin = at + 1
        at = end = begin + raw[at]
        for width in layout.widths[layout.message_id + 1 :]:
            at += width or 1 + raw[at]
    except (IndexError, struct.error):
        return None
    return None if at != len(raw) else raw[begin:end].decode("utf-8", "surrogateescape")


def priority_in(raw: bytes) -> int | None:
    """Return the priority, or None if it is missing or the properties are invalid."""
    try:
        flags, at = (raw[0] << 8) | raw[1], 2
        if not flags & _PRIORITY:
            return None
        for _ in range(sum(1 for flag in _EARLY if flags & flag)):
            at += 1 + raw[at]
        if flags & _HEADERS:
            at += 4 + _unpack_u32(raw, at)[0]
        return raw[at + 1 if flags & _MODE else at]
    except (IndexError, struct.error):
        return None


def text_header_in(raw: bytes, name: bytes) -> str | None:
    """Return the value of a string header. Returns None if it is missing, if it is not a string, or if
    the table is invalid.
    """
    cut = cut_properties(raw)
    if cut is None:
        return None
    entries, at, size = cut.entries, 0, len(cut.entries)
    try:
        while at < size:
            value_at = at + 1 + entries[at]
            # Strings are decoded here, because a function call would take twice as long.
            if entries[value_at] == _TEXT:
                end = value_at + 5 + _unpack_u32(entries, value_at + 1)[0]
            else:
                end = value_end(entries, value_at, size) or size + 1
            if end > size:
                return None
            if entries[at + 1 : value_at] == name:
                return entries[value_at + 5 : end].decode() if entries[value_at] == _TEXT else None
            at = end
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    return None


class _Layout(NamedTuple):
    """The structure of encoded properties.

    `texts` is the number of short strings before the headers. `widths` contains the size of each
    property after the delivery mode, or 0 for a short string. The other fields are indexes of
    `widths`, or None if the property is missing.
    """

    texts: int
    widths: tuple[int, ...]
    expiration: int | None
    message_id: int | None


# The result is cached, because messages of a queue usually have the same flags.
@lru_cache(maxsize=256)
def _layout(flags: int) -> _Layout | None:
    if flags & _UNKNOWN:
        return None
    late = [flag for flag in _LATE if flags & flag]
    return _Layout(
        sum(flags & flag != 0 for flag in _EARLY),
        tuple(_WIDTHS.get(flag, 0) for flag in late),
        late.index(_EXPIRATION) if _EXPIRATION in late else None,
        late.index(_MESSAGE_ID) if _MESSAGE_ID in late else None,
    )


def _cut(raw: bytes) -> CutProperties | None:
    flags, at = (raw[0] << 8) | raw[1], 2
    layout = _layout(flags)
    if layout is None:
        return None
    for _ in range(layout.texts):
        at += 1 + raw[at]
    before, entries = raw[2:at], b""
    if flags & _HEADERS:
        begin = at + 4
        at = begin + _unpack_u32(raw, at)[0]
        entries = raw[begin:at]
    if flags & _MODE:
        at += 1
    after_at = at
    for width in layout.widths:
        at += width or 1 + raw[at]
    if at != len(raw):
        return None
    after = raw[after_at:]
    if layout.expiration is not None:
        at = after_at
        for width in layout.widths[: layout.expiration]:
            at += width or 1 + raw[at]
        after = raw[after_at:at] + raw[at + 1 + raw[at] :]
    return CutProperties(flags, before, entries, after)
