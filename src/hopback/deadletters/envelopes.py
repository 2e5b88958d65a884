"""What a message says it is: type, id and time, from CloudEvents and other common envelopes. Pure.

Headers and properties are asked first; a body only if it is short and may be JSON. Whatever is in
it, nothing here raises.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers import clipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hopback.message import Delivery

__all__ = ["BODY_BYTES", "Envelope", "envelope_of", "parsed_body"]

BODY_BYTES = 64 * 1024
"""The largest body that is read to find out what a message is."""

_TEXT_BYTES = 255
_TYPE_HEADERS = (
    "cloudEvents:type", "cloudEvents_type", "ce-type", "ce_type", "NServiceBus.EnclosedMessageTypes",
    "__TypeId__", "type", "x-message-type", "message-type", "event-type", "eventType",
)  # fmt: skip
_ID_HEADERS = (
    "cloudEvents:id", "cloudEvents_id", "ce-id", "ce_id", "NServiceBus.MessageId", "MT-MessageId",
)  # fmt: skip
_TIME_HEADERS = ("cloudEvents:time", "cloudEvents_time", "ce-time", "ce_time")
_TYPE_FIELDS = (
    "type", "eventType", "event_type", "messageType", "message_type", "eventName", "event", "name",
)  # fmt: skip
_ID_FIELDS = ("id", "eventId", "event_id", "messageId", "message_id", "uuid")
_TIME_FIELDS = (
    "time", "occurredAt", "occurred_at", "timestamp", "sentTime", "createdAt", "created_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Envelope:
    """Type, id and time as the message itself gives them; empty where it does not."""

    type: str = ""
    id: str = ""
    time: str = ""


def envelope_of(delivery: Delivery) -> Envelope:
    """What the message says it is, by its properties, its headers, then its body."""
    properties = delivery.properties
    headers = properties.headers
    body = _object(parsed_body(delivery.body))
    return Envelope(
        _shortened(
            _first((properties.type, *_of(headers, _TYPE_HEADERS), *_of(body, _TYPE_FIELDS)))
        ),
        _first((properties.message_id, *_of(headers, _ID_HEADERS), *_of(body, _ID_FIELDS))),
        _first((*_of(headers, _TIME_HEADERS), *_of(body, _TIME_FIELDS))),
    )


def parsed_body(body: bytes, limit: int = BODY_BYTES, *, too_deep: object = None) -> object:
    """The body as JSON; None if it is none, or too large to be read for this.

    `too_deep` stands for one that is nested more deeply than Python reads.
    """
    if len(body) > limit or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        found: object = json.loads(body)
    except ValueError:
        return None
    except RecursionError:
        return too_deep
    return found


def _object(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {}


def _of(values: Mapping[str, object], names: Iterable[str]) -> Iterator[object]:
    return (values.get(name) for name in names)


def _first(candidates: Iterable[object]) -> str:
    """The first text; of a list of texts (MassTransit names every type it implements) the first."""
    for value in candidates:
        found = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(found, str) and found:
            return clipped(found, _TEXT_BYTES)
    return ""


def _shortened(name: str) -> str:
    """A .NET type without its assembly, a MassTransit URN without its scheme."""
    return name.split(";")[0].split(",")[0].removeprefix("urn:message:").strip()
