"""Convert AMQP values, headers and payloads to values that JSON supports.

The functions are pure and accept any input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from hopback import fields as amqp
from hopback.headers.names import is_protected
from hopback.ops.messages.body import is_msgpack, parse_content, unpack_body

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.message import Delivery, Properties


SHOWN_HEADERS = 500
"""Number of headers to show. Messages normally have fewer than a hundred, but a frame can contain 25,000."""
_PARSED_BYTES = 256 * 1024  # bytes of a payload to show. Larger payloads can only be downloaded.
_LARGEST_EXACT = 2**53
"""Larger integers are converted to text, because some JSON parsers would round them."""
_PROPERTIES = {
    "content_type": "contentType", "content_encoding": "contentEncoding",
    "delivery_mode": "deliveryMode", "priority": "priority", "correlation_id": "correlationId",
    "reply_to": "replyTo", "expiration": "expiration", "message_id": "messageId",
    "timestamp": "timestamp", "type": "type", "user_id": "userId", "app_id": "appId",
    "cluster_id": "clusterId",
}  # fmt: skip
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "bool"), (amqp.Timestamp, "timestamp"), (amqp.Int8, "int8"),
    (amqp.UInt8, "uint8"), (amqp.Int16, "int16"), (amqp.UInt16, "uint16"),
    (amqp.Int32, "int32"), (amqp.UInt32, "uint32"), (amqp.UInt64, "uint64"), (int, "int64"),
    (amqp.Float32, "float"), (float, "double"), (Decimal, "decimal"), (str, "text"),
    (amqp.LongStr, "bytes as text"), (amqp.RawValue, "not decoded"), (bytes, "bytes"),
    (list, "array"), (tuple, "array"),
    (type(None), "void"),
)  # fmt: skip


def amqp_type(value: object) -> str:
    """Return the name of the AMQP type of a header value."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "table")


def plain_text(text: str) -> str:
    """Escape characters that UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain_value(value: object) -> Any:
    """Convert an AMQP value to a JSON value."""
    match value:
        case str():
            return plain_text(value)
        case None | bool():
            return value
        case int():
            return int(value) if abs(value) < _LARGEST_EXACT else str(int(value))
        case float():
            return float(value) if value - value == 0 else str(float(value))
        case bytes():
            return plain_text(value.decode("utf-8", "backslashreplace"))
        case Mapping():
            return {plain_text(str(key)): plain_value(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain_value(inner) for inner in value]
    return plain_text(str(value))


def plain_properties(properties: Properties) -> dict[str, Any]:
    """Return all properties that are set by their JSON names, except for the headers."""
    found = ((shown, getattr(properties, name)) for name, shown in _PROPERTIES.items())
    return {shown: plain_value(value) for shown, value in found if value is not None}


def plain_headers(headers: Headers) -> tuple[list[tuple[str, FieldValue]], int]:
    """Return the headers to show, and the number of headers that are omitted.

    If there are too many, headers of the broker and of Hopback take precedence.
    """
    if len(headers) <= SHOWN_HEADERS:
        return list(headers.items()), 0
    known = [name for name in headers if is_protected(name)][:SHOWN_HEADERS]
    others = islice((name for name in headers if not is_protected(name)), SHOWN_HEADERS)
    shown = [*known, *others][:SHOWN_HEADERS]
    return [(name, headers[name]) for name in shown], len(headers) - len(shown)


def plain_payload(delivery: Delivery) -> tuple[Any, str]:
    """Return the decompressed payload and its form. It can be parsed JSON or MessagePack, or text.

    If the payload is large or binary, it is None.
    """
    body, is_whole, _ = unpack_body(delivery, _PARSED_BYTES)
    if not is_whole:
        return None, "omitted"
    if is_msgpack(delivery.properties.content_type):
        try:
            parsed = parse_content(delivery, _PARSED_BYTES)
            return (None, "binary") if parsed is None else (plain_value(parsed), "msgpack")
        except RecursionError:
            return None, "binary"
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None, "binary"
    try:
        return json.loads(text, parse_constant=_refuse_constant), "json"
    except (ValueError, RecursionError):
        return text, "string"


def pretty_json(data: str | bytes, most: int) -> tuple[str, bool] | None:
    """Return up to `most` characters of indented JSON, and whether it was truncated.

    Returns None if `data` is not JSON. The rest is never generated, because indentation can make
    deeply nested JSON a thousand times larger.
    """
    if data.lstrip()[:1] not in ("{", "[", b"{", b"["):
        return None
    try:
        chunks, length = list[str](), 0
        for chunk in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(data)):
            chunks.append(chunk)
            length += len(chunk)
            if length > most:
                break
    except (ValueError, RecursionError):
        return None
    return "".join(chunks)[:most], length > most


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_HEX_ROW = 16  # bytes per row, as in hexdump


def hex_rows(body: bytes) -> str:
    """Format bytes as rows of hex and ASCII."""
    rows = []
    for start in range(0, len(body), _HEX_ROW):
        row = body[start : start + _HEX_ROW]
        characters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{_HEX_ROW * 3 - 1}}  {characters}")
    return "\n".join(rows)
