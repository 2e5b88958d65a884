"""Validate outgoing messages.

A message is checked before any of its frames is written, because a later error would close the
connection. The embedded broker uses the same checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import InvalidMessage
from hopback.fields import text_bytes
from hopback.wire.frames import too_large
from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from hopback.message import Message

_NAME_BYTES = 255  # maximum length of a short string in AMQP 0-9-1


def unsendable(exchange: object, routing_key: object, problem: object) -> InvalidMessage:
    """Return the error for a message that cannot be sent."""
    where = f"exchange {exchange!r}, routing key {routing_key!r}"
    return InvalidMessage(f"message not sent to {where}: {problem}")


def check_route(exchange: object, routing_key: object) -> None:
    """Raise InvalidMessage if the exchange or routing key is invalid."""
    for part, text in (("exchange", exchange), ("routing key", routing_key)):
        try:
            fits = isinstance(text, str) and text_bytes(text) <= _NAME_BYTES
        except UnicodeEncodeError:
            fits = False
        if not fits:
            problem = f"{part}: expected text of at most {_NAME_BYTES} bytes"
            raise unsendable(exchange, routing_key, problem)


def check_body(message: Message) -> None:
    """Raise InvalidMessage if the body is not bytes."""
    body: object = message.body
    if not isinstance(body, bytes | bytearray | memoryview):
        problem = f"body: expected bytes, got {type(body).__name__}"
        raise unsendable(message.exchange, message.routing_key, problem)


def encode_message(message: Message, frame_max: int, default_mode: int) -> bytes:
    """Validate a message and return its encoded properties."""
    check_route(message.exchange, message.routing_key)
    check_body(message)
    try:
        raw = encode_properties(message.properties, default_mode=default_mode)
        if len(raw) + 12 > frame_max:
            raise too_large(len(raw), frame_max)
    except Exception as error:
        raise unsendable(message.exchange, message.routing_key, error) from None
    return raw
