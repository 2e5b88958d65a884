"""Header tables as other client libraries decode them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from hopback.fields import FieldValue, Headers, LongStr, Timestamp, UInt64
from hopback.message import NO_HEADERS

if TYPE_CHECKING:
    from collections.abc import Mapping


_MOST_SIGNED = 2**63 - 1  # the largest number that fits the usual type of 64 bits


def header_values(headers: Mapping[str, object] | None, *, text_type: type = bytes) -> Headers:
    """A header table as another client has decoded it.

    `text_type` is what its bytes are in its decoding: LongStr for clients that give texts which are
    not UTF-8 as bytes, and arrays of bytes as something else. What has no type in AMQP cannot have
    come from a broker, and is left out.
    """
    if headers is None:
        return NO_HEADERS
    found = {name: _value(value, text_type) for name, value in headers.items()}
    return {name: value for name, value in found.items() if not isinstance(value, _Unknown)}


class _Unknown:
    """Stands for a value that no broker can have sent."""


def _value(value: object, text_type: type) -> FieldValue | _Unknown:
    match value:
        case None | bool() | float() | str() | Decimal():
            return value
        case int():
            # Of subclasses too: pika has one for numbers of 64 bits.
            return UInt64(value) if value > _MOST_SIGNED else int(value)
        case bytes():
            return LongStr(value) if text_type is LongStr else value
        case bytearray() | memoryview():
            return bytes(value)
        case datetime():
            return Timestamp(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp()))
        case dict():
            return header_values(value, text_type=text_type)
        case list() | tuple():
            found = [_value(each, text_type) for each in value]
            return [each for each in found if not isinstance(each, _Unknown)]
    return _Unknown()
