"""A message as the documented peek shows it: RabbitMQ's own names, values that JSON can carry."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopback.deadletters.browsing import MessageView
    from hopback.message import Properties

__all__ = ["PARSED_BYTES", "message_item"]


PARSED_BYTES = 1024 * 1024
"""How much of a peek is shown as parsed JSON; larger payloads are shown as text."""


def message_item(view: MessageView, hint: int, room: int = PARSED_BYTES) -> dict[str, Any]:
    """The message; `hint` is how many were behind it, `room` the largest payload to be parsed."""
    delivery = view.delivery
    payload, encoding = _payload(delivery.body, room)
    return {
        "messageCountHint": hint,
        "redelivered": delivery.redelivered,
        "exchange": delivery.exchange,
        "routingKey": delivery.routing_key,
        "payload": payload,
        "payloadEncoding": encoding,
        "properties": _properties(delivery.properties),
    }


def _payload(body: bytes, room: int) -> tuple[Any, str]:
    """Parsed where it is JSON and not too large, else as text, else as base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
    if len(body) > room:
        return text, "string"
    try:
        parsed = json.loads(text, parse_constant=_refuse)
        json.dumps(parsed)  # what cannot be written again is shown as it came
    except (ValueError, RecursionError):
        return text, "string"
    return parsed, "string"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _properties(properties: Properties) -> dict[str, Any]:
    found = ((field.name, getattr(properties, field.name)) for field in fields(properties))
    shown = {name: value for name, value in found if value is not None}
    for bare in ("further_headers", "opaque_headers"):
        shown.pop(bare, None)
    return {name: _plain(value) for name, value in shown.items()}


def _plain(value: Any) -> Any:
    """A value that JSON has; bytes as text where they are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "items"):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)
