"""Estimate the memory that a delivered message occupies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.message import Delivery


# Measured with CPython 3.11 on 64 bits, rounded up.
_MESSAGE = 2048
_TABLE = 250
_ENTRY = 160
_ITEM = 8
_TEXT = 56
_NUMBER = 64
_SPREAD = 8
"""A header takes 3 to 60 times what it has on the wire; the shorter, the more."""


def held_size(delivery: Delivery) -> int:
    """About how many bytes it takes: body, headers, and what goes with every message."""
    properties = delivery.properties
    headers = _size(properties.headers) + _size(properties.further_headers)
    return _MESSAGE + len(delivery.body) + len(properties.opaque_headers) + headers


def rough_size(delivery: Delivery) -> int:
    """The same at a glance, for a caller that moves thousands in a second: by the bytes on the wire."""
    raw = getattr(delivery, "raw_properties", None)
    if not isinstance(raw, bytes):
        return held_size(delivery)
    return _MESSAGE + len(delivery.body) + _SPREAD * len(raw)


def _size(value: object) -> int:
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, str | bytes):
        return _TEXT + len(value)
    if isinstance(value, Mapping):
        return _TABLE + sum(_ENTRY + len(name) + _size(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return _TABLE + sum(_ITEM + _size(inner) for inner in value)
    return _NUMBER
