"""Find the type, id and time of a message in its properties, headers and body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers import clip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.message import Properties


_NAME_BYTES = 255  # bytes of type, id and time, as in AMQP properties. The rest is cut off.
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
    """The type, id and time of a message. Unknown values are empty."""

    type: str = ""
    id: str = ""
    time: str = ""


def read_envelope(properties: Properties, parsed: object) -> Envelope:
    """Read the envelope from the properties, the headers and the parsed body, in this order."""
    headers = properties.headers
    body = parsed if isinstance(parsed, dict) else {}
    kind = _first((properties.type, *_of(headers, _TYPE_HEADERS), *_of(body, _TYPE_FIELDS)))
    return Envelope(
        # remove the assembly of .NET types and the scheme of MassTransit URNs
        kind.split(";")[0].split(",")[0].removeprefix("urn:message:").strip(),
        _first((properties.message_id, *_of(headers, _ID_HEADERS), *_of(body, _ID_FIELDS))),
        _first((*_of(headers, _TIME_HEADERS), *_of(body, _TIME_FIELDS))),
    )


def _of(values: Mapping[str, object], names: Iterable[str]) -> Iterable[object]:
    return map(values.get, names) if values else ()


def _first(candidates: Iterable[object]) -> str:
    """Return the first text. MassTransit has a list of all types of a message, whose first item is used."""
    for value in candidates:
        found = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(found, str) and found:
            return clip(found, _NAME_BYTES)
    return ""
