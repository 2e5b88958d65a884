"""Measure the memory that a delivered message occupies.

The size of the body alone would not bound it: 25,000 headers of a few bytes fit into one frame and take
several megabytes once they are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.message import Delivery

# Bytes, measured with CPython 3.11 on 64 bits and rounded up.
_MESSAGE = 2048
_TABLE = 250
_ENTRY = 160
_ITEM = 8
_TEXT = 56
_NUMBER = 64
_SPREAD = 8
"""Factor from the wire to memory. A header takes 3 to 60 times its size on the wire, a short one the most."""


def measure_memory(delivery: Delivery) -> int:
    """Return the approximate number of bytes of a message, with its decoded headers."""
    properties = delivery.properties
    headers = _size(properties.headers) + _size(properties.further_headers)
    return _MESSAGE + len(delivery.body) + len(properties.opaque_headers) + headers


def estimate_memory(delivery: Delivery) -> int:
    """Estimate a message's memory in bytes from its size on the wire, without decoding its headers.

    This is for jobs and walks, which read thousands of messages per second.
    """
    raw = getattr(delivery, "raw_properties", None)
    if not isinstance(raw, bytes):
        return measure_memory(delivery)
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
