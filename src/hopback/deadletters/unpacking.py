"""Bodies as text that can be searched: unpacked within bounds, whatever they are. Total."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hopback.message import Delivery

__all__ = ["UnpackedBody", "unpacked"]

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_WINDOW = 8 * 1024 * 1024
"""Bytes of a zstd window: the most that its specification asks every decoder to support."""


class UnpackedBody(NamedTuple):
    """The beginning of a body, and whether it is all of it."""

    data: bytes
    is_whole: bool


def unpacked(delivery: Delivery, most: int) -> UnpackedBody:
    """At most so many bytes of the body, after gzip, deflate or zstd; what is damaged as it stands."""
    body = delivery.body
    how = (delivery.properties.content_encoding or "").strip().lower()
    if body[:2] == _GZIP or how == "deflate":
        found = _inflated(body, most)
    elif body[:4] == _ZSTD:
        found = _from_zstd(body, most)
    else:
        found = None
    if found is None:
        return UnpackedBody(body[:most], len(body) <= most)
    return UnpackedBody(found[:most], len(found) <= most)


def _inflated(body: bytes, most: int) -> bytes | None:
    try:
        # 32 more than the window: the header says whether it is gzip or zlib.
        return zlib.decompressobj(zlib.MAX_WBITS + 32).decompress(body, most + 1)
    except zlib.error:
        return None


def _from_zstd(body: bytes, most: int) -> bytes | None:
    try:
        import zstandard
    except ImportError:
        return None
    try:
        opening = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        return bytes(opening.stream_reader(body).read(most + 1))
    except (zstandard.ZstdError, MemoryError):
        return None
