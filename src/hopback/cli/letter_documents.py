"""Messages and groups of them as documents: the same names and values as the HTTP API has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback.deadletters.plain import (
    amqp_type,
    plain_headers,
    plain_payload,
    plain_properties,
    plain_text,
    plain_value,
)
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.deadletters.browsing import MessageView
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.sessions import Group

__all__ = ["group_document", "letter_document", "message_document", "moment"]

_FAILURE = ("type", "message", "frame", "stack", "host")


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
        "reason": plain_text(letter.reason),
        "origin": plain_text(letter.origin),
        "type": plain_text(letter.type),
        "messageId": plain_text(letter.message_id),
        "error": plain_text(letter.error),
        "errorMessage": plain_text(letter.error_message),
        "fingerprint": plain_text(letter.fingerprint),
        "recordedBy": letter.recorded_by,
        "attempts": letter.attempts,
        "redrives": letter.redrives,
        "redriveJob": plain_text(letter.redrive_job),
        "firstFailedAt": moment(letter.first_failed),
        "lastFailedAt": moment(letter.last_failed),
        "size": letter.size,
        "deliveryCount": letter.delivery_count,
        "exchange": plain_text(letter.exchange),
        "routingKey": plain_text(letter.routing_key),
        "redelivered": letter.redelivered,
    }


def group_document(group: Group) -> dict[str, Any]:
    """Letters that have something in common."""
    return {
        "key": plain_text(group.key),
        "count": group.count,
        "firstAt": moment(group.first),
        "lastAt": moment(group.last),
        "sample": letter_document(group.sample),
    }


def message_document(view: MessageView) -> dict[str, Any]:
    """One message with everything about it; a large or binary payload is left out."""
    delivery, failure = view.delivery, view.failure
    payload, encoding = plain_payload(delivery.body)
    headers, more_headers = plain_headers(delivery.properties.headers)
    return {
        "letter": letter_document(view.letter),
        "sentence": plain_text(view.sentence),
        "timeline": [
            {"at": moment(event.time), "what": plain_text(event.what)} for event in view.timeline
        ],
        "failure": None
        if failure is None
        else {name: plain_text(getattr(failure, name)) for name in _FAILURE},
        "way": None
        if view.way is None
        else {
            "exchange": view.way.exchange,
            "routingKey": view.way.routing_key,
            "flaw": view.way.flaw,
        },
        "noWay": view.no_way,
        "properties": plain_properties(delivery.properties),
        "headers": [
            {"name": plain_text(name), "type": amqp_type(value), "value": plain_value(value)}
            for name, value in headers
        ],
        "moreHeaders": more_headers,
        "payload": payload,
        "payloadEncoding": encoding,
        "payloadBytes": len(delivery.body),
    }
