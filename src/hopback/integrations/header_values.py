"""Convert header tables that other client libraries have decoded."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from hopback.fields import FieldValue, Headers, LongStr, Timestamp, UInt64
from hopback.message import NO_HEADERS

if TYPE_CHECKING:
    from collections.abc import Mapping


_MOST_SIGNED = 2**63 - 1  # larger values need an unsigned type


def header_values(headers: Mapping[str, object] | None, *, text_type: type = bytes) -> Headers:
    """Convert a decoded header table.

    Values without an AMQP type are omitted.

    Args:
        headers: The decoded headers.
        text_type: The type of `bytes` values. Use LongStr if the client decodes invalid UTF-8
            strings to bytes and byte arrays to a different type.
    """
    if headers is None:
        return NO_HEADERS
    found = {name: _value(value, text_type) for name, value in headers.items()}
    return {name: value for name, value in found.items() if not isinstance(value, _Unknown)}


class _Unknown:
    """Marks a value without an AMQP type."""


def _value(value: object, text_type: type) -> FieldValue | _Unknown:
    match value:
        case None | bool() | float() | str() | Decimal():
            return value
        case int():
            # pika uses a subclass of int for 64-bit values.
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
