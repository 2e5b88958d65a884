"""Messages and groups of them as documents: the same names and values as the HTTP API has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hopback import fields
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.deadletters.browsing import MessageView
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.sessions import Group
    from hopback.message import Properties

__all__ = ["group_document", "letter_document", "message_document", "moment"]

_PARSED_BYTES = 256 * 1024
_LARGEST_EXACT = 2**53
"""Beyond it, readers of JSON that know only floating point would change the number."""
_PROPERTIES = {
    "content_type": "contentType", "content_encoding": "contentEncoding",
    "delivery_mode": "deliveryMode", "priority": "priority", "correlation_id": "correlationId",
    "reply_to": "replyTo", "expiration": "expiration", "message_id": "messageId",
    "timestamp": "timestamp", "type": "type", "user_id": "userId", "app_id": "appId",
    "cluster_id": "clusterId",
}  # fmt: skip
_FAILURE = ("type", "message", "frame", "stack", "host")
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "bool"), (fields.Timestamp, "timestamp"), (fields.Int8, "int8"),
    (fields.UInt8, "uint8"), (fields.Int16, "int16"), (fields.UInt16, "uint16"),
    (fields.Int32, "int32"), (fields.UInt32, "uint32"), (fields.UInt64, "uint64"), (int, "int64"),
    (fields.Float32, "float"), (float, "double"), (Decimal, "decimal"), (str, "text"),
    (fields.LongStr, "bytes as text"), (bytes, "bytes"), (list, "array"), (tuple, "array"),
    (type(None), "void"),
)  # fmt: skip


def moment(seconds: float | None) -> str | None:
    """A moment in RFC 3339, None where nobody knows it."""
    return None if seconds is None else timestamp(seconds)


def letter_document(letter: Letter) -> dict[str, Any]:
    """A dead letter without its body."""
    return {
        "id": letter.id,
        "place": letter.place,
        "digest": letter.digest,
        "queue": letter.queue,
        "reason": _sound(letter.reason),
        "origin": _sound(letter.origin),
        "type": _sound(letter.type),
        "messageId": _sound(letter.message_id),
        "error": _sound(letter.error),
        "errorMessage": _sound(letter.error_message),
        "fingerprint": _sound(letter.fingerprint),
        "recordedBy": letter.recorded_by,
        "attempts": letter.attempts,
        "redrives": letter.redrives,
        "redriveJob": _sound(letter.redrive_job),
        "firstFailedAt": moment(letter.first_failed),
        "lastFailedAt": moment(letter.last_failed),
        "size": letter.size,
        "deliveryCount": letter.delivery_count,
        "exchange": _sound(letter.exchange),
        "routingKey": _sound(letter.routing_key),
        "redelivered": letter.redelivered,
    }


def group_document(group: Group) -> dict[str, Any]:
    """Letters that have something in common."""
    return {
        "key": _sound(group.key),
        "count": group.count,
        "firstAt": moment(group.first),
        "lastAt": moment(group.last),
        "sample": letter_document(group.sample),
    }


def message_document(view: MessageView) -> dict[str, Any]:
    """One message with everything about it; a large or binary payload is left out."""
    delivery, failure = view.delivery, view.failure
    payload, encoding = _payload(delivery.body)
    return {
        "letter": letter_document(view.letter),
        "sentence": _sound(view.sentence),
        "timeline": [
            {"at": moment(event.time), "what": _sound(event.what)} for event in view.timeline
        ],
        "failure": None
        if failure is None
        else {name: _sound(getattr(failure, name)) for name in _FAILURE},
        "way": None
        if view.way is None
        else {
            "exchange": view.way.exchange,
            "routingKey": view.way.routing_key,
            "flaw": view.way.flaw,
        },
        "noWay": view.no_way,
        "properties": _properties(delivery.properties),
        "headers": [
            {"name": _sound(name), "type": _amqp_type(value), "value": _plain(value)}
            for name, value in delivery.properties.headers.items()
        ],
        "payload": payload,
        "payloadEncoding": encoding,
        "payloadBytes": len(delivery.body),
    }


def _properties(properties: Properties) -> dict[str, Any]:
    found = ((shown, getattr(properties, name)) for name, shown in _PROPERTIES.items())
    return {shown: _plain(value) for shown, value in found if value is not None}


def _payload(body: bytes) -> tuple[Any, str]:
    """The payload for JSON: parsed, or text."""
    if len(body) > _PARSED_BYTES:
        return None, "omitted"
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None, "binary"
    try:
        return json.loads(text, parse_constant=_no_constant), "json"
    except (ValueError, RecursionError):
        return text, "string"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _amqp_type(value: object) -> str:
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "table")


def _sound(text: str) -> str:
    """The text without what UTF-8 cannot carry."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: object) -> Any:
    """A value of AMQP as JSON can hold it."""
    match value:
        case str():
            return _sound(value)
        case None | bool():
            return value
        case int():
            return int(value) if abs(value) < _LARGEST_EXACT else str(int(value))
        case float():
            return float(value) if value - value == 0 else str(float(value))
        case bytes():
            return _sound(value.decode("utf-8", "backslashreplace"))
        case Mapping():
            return {_sound(str(key)): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
    return str(value)
