"""Publishing and getting messages over HTTP, as RabbitMQ's management API lets operators do."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.broker.embedded.journal import EventKind
from hopback.broker.embedded.rights import DEFAULT_EXCHANGE
from hopback.broker.server.json_values import plain, table
from hopback.message import Message, Properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.broker.embedded.stored import Taken
    from hopback.broker.server.api_caller import VhostAccess

__all__ = ["get", "publish"]

_Json: TypeAlias = "Mapping[str, Any]"

_MOST_MESSAGES = 10_000
"""What one answer holds is built in memory, while no other client is served."""
_ACK_MODES = {
    "ack_requeue_true": True,
    "ack_requeue_false": False,
    "reject_requeue_true": True,
    "reject_requeue_false": False,
}
_TEXTS = (
    "app_id",
    "cluster_id",
    "content_encoding",
    "content_type",
    "correlation_id",
    "expiration",
    "message_id",
    "reply_to",
    "type",
    "user_id",
)
_NUMBERS = ("delivery_mode", "priority", "timestamp")


def publish(access: VhostAccess, exchange: str, asked: _Json) -> dict[str, object]:
    """`POST /api/exchanges/{vhost}/{name}/publish`; ValueError for what cannot be published."""
    key, payload = asked.get("routing_key"), asked.get("payload")
    encoding = asked.get("payload_encoding")
    if not isinstance(key, str) or not isinstance(payload, str):
        raise ValueError("expected routing_key and payload, both text")
    if encoding == "base64":
        try:
            body = base64.b64decode(payload, validate=True)
        except binascii.Error as error:
            raise ValueError(f"expected a payload in base64: {error}") from error
    elif encoding == "string":
        body = payload.encode()
    else:
        raise ValueError(f"expected payload_encoding string or base64, got {encoding!r}")
    name = "" if exchange == DEFAULT_EXCHANGE else exchange
    with access.channel() as channel:
        fate = channel.publish(
            Message(name, key, body),
            mandatory=True,
            properties=_properties(asked.get("properties")),
        )
    return {"routed": fate is not EventKind.RETURNED}


def _properties(asked: object) -> Properties:
    """The properties of a request; an empty list is an empty table, as PHP writes it."""
    given = {} if asked in (None, []) else asked
    if not isinstance(given, dict):
        raise ValueError(f"expected properties as an object, got {asked!r}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TEXTS:
            if not isinstance(value, str):
                raise ValueError(f"expected {name} as text, got {value!r}")
            found[name] = value
        elif name in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"expected {name} as a number, got {value!r}")
            found[name] = value
        elif name == "headers":
            if not isinstance(value, dict):
                raise ValueError(f"expected headers as an object, got {value!r}")
            found["headers"] = value
        else:
            raise ValueError(f"expected a property of AMQP, got {name!r}")
    return Properties(**found)


def get(access: VhostAccess, queue: str, asked: _Json) -> list[dict[str, object]]:
    """`POST /api/queues/{vhost}/{name}/get`; ValueError for what cannot be asked."""
    count = asked.get("count")
    count = int(count) if isinstance(count, str) and count.isdecimal() and len(count) < 9 else count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST_MESSAGES:
        raise ValueError(f"expected a count from 0 to {_MOST_MESSAGES}, got {count!r}")
    mode, encoding = asked.get("ackmode"), asked.get("encoding")
    if mode not in _ACK_MODES:
        raise ValueError(f"expected ackmode as one of {', '.join(_ACK_MODES)}, got {mode!r}")
    if encoding not in ("auto", "base64"):
        raise ValueError(f"expected encoding auto or base64, got {encoding!r}")
    most = asked.get("truncate")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise ValueError(f"expected truncate as a number, got {most!r}")
    found: list[dict[str, object]] = []
    with access.channel() as channel:
        for _ in range(count):
            taken = channel.get(queue)
            if taken is None:
                break
            found.append(_message(taken, encoding, most))
            if not _ACK_MODES[mode]:
                if mode.startswith("ack"):
                    channel.ack(taken.tag)
                else:
                    channel.reject(taken.tag, requeue=False)
        if _ACK_MODES[mode]:
            # All at once and at the end, so that none is got twice.
            for tag in reversed(tuple(channel.unacked)):
                channel.nack(tag, requeue=True)
    return found


def _message(taken: Taken, encoding: str, most: int | None) -> dict[str, object]:
    body = taken.body[:most]
    try:
        text = None if encoding == "base64" else body.decode()
    except UnicodeDecodeError:
        text = None
    told = {
        name: plain(value)
        for name, value in vars(taken.properties).items()
        if value is not None and name in (*_TEXTS, *_NUMBERS)
    }
    if taken.properties.headers:
        told["headers"] = table(taken.properties.headers)
    return {
        "exchange": taken.exchange,
        "routing_key": plain(taken.routing_key),
        "redelivered": taken.redelivered,
        "message_count": len(taken.source.ready),
        "properties": told,
        "payload_bytes": len(taken.body),
        "payload": base64.b64encode(body).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }
