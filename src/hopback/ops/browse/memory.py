"""Measure how much memory a message needs.

It is not enough to limit the size of bodies. A frame can contain 25,000 short headers, which need
several megabytes after they are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.message import Delivery

# In bytes, measured with CPython 3.11 (64 bit) and rounded up.
_MESSAGE = 2048
_TABLE = 250
_ENTRY = 160
_ITEM = 8
_TEXT = 56
_NUMBER = 64
_SPREAD = 8
"""Memory of headers as a multiple of their encoded size. The actual factor is from 3 to 60, and
largest for short headers.
"""


def measure_memory(delivery: Delivery) -> int:
    """Return the approximate memory of a message with decoded headers, in bytes."""
    properties = delivery.properties
    headers = _size(properties.headers) + _size(properties.further_headers)
    return _MESSAGE + len(delivery.body) + len(properties.opaque_headers) + headers


def estimate_memory(delivery: Delivery) -> int:
    """Estimate the memory of a message in bytes from its encoded size. Its headers are not decoded.

    Jobs and walks use this, because they read thousands of messages per second.
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
