"""Check messages for properties that would make RabbitMQ close the channel.

Messages that all versions refuse raise InvalidMessage. In some cases it depends on the broker, so
the message must not be sent on a shared channel: `user_id` may be allowed by the tags of the user,
an unknown `delivery_mode` by the version (3.10 refuses it), and keys in `CC` and `BCC` by topic
permissions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hopback.broker.port import REPLY_TO
from hopback.errors import (
    AccessRefused,
    InvalidMessage,
    NotFound,
    PreconditionFailed,
    PublishFailed,
    PublishInterrupted,
    PublishRefused,
)
from hopback.fields import FieldValue, RawValue, as_text

if TYPE_CHECKING:
    from hopback.message import Message, Properties

_LONGEST_MS = 315_360_000_000
"""The maximum `expiration` allowed by RabbitMQ: ten years in milliseconds."""
_COPIES = ("CC", "BCC")
_COPIES_RAW = frozenset(name.encode() for name in _COPIES)
_KNOWN_MODES = (2, None, 1)


def sole_failure(message: Message, error: PublishInterrupted) -> PublishFailed:
    """Convert the error of a publish that was the only one on its channel.

    If the broker has closed the channel, it was because of this message, so the message was not
    stored.
    """
    cause = error.__cause__
    if isinstance(cause, AccessRefused | NotFound | PreconditionFailed):
        return PublishRefused(message.exchange, message.routing_key, cause)
    return error


def is_plain(properties: Properties) -> bool:
    """Return True if the broker will not close the channel because of any property."""
    return (
        properties.expiration is None
        and properties.user_id is None
        and properties.reply_to is None
        and properties.delivery_mode in _KNOWN_MODES
        and not properties.further_headers
        and (
            not properties.headers
            or ("CC" not in properties.headers and "BCC" not in properties.headers)
        )
    )


def check_message(message: Message, *, may_ask: bool = False) -> bool:
    """Return True if the message may be sent on a shared channel. Raises InvalidMessage if no
    broker would accept it.

    If `may_ask` is True, the channel consumes direct replies, so `reply_to` may be the address for
    them.
    """
    properties = message.properties
    expiration = properties.expiration
    if expiration is not None and not _is_expiration(expiration):
        shown = repr(expiration if len(expiration) <= 40 else f"{expiration[:40]}…")
        expected = f"milliseconds as digits, from 0 to {_LONGEST_MS}"
        raise _invalid(message, "expiration", expected, shown)
    if properties.reply_to == REPLY_TO and not may_ask:
        raise _invalid(
            message,
            "reply_to",
            "the address of a channel that consumes direct replies",
            f"the literal {REPLY_TO!r}. Ask with `app.request` or a `RequestClient`",
        )
    if may_ask and not message.exchange and message.routing_key.startswith(f"{REPLY_TO}."):
        expected = "the routing key of a request"
        raise _invalid(message, "routing key", expected, "an address of direct replies")
    further, headers = properties.further_headers, properties.headers
    has_copies = bool(further) and any(name in _COPIES_RAW for name, _ in further)
    for name in _COPIES if headers else ():
        if name in headers:
            has_copies = True
            value = headers[name]
            if not _is_array(value):
                raise _invalid(message, f"header {name!r}", "a list of routing keys", repr(value))
    if has_copies and not message.exchange:
        _check_copies(message)
    return (
        not has_copies and properties.user_id is None and properties.delivery_mode in _KNOWN_MODES
    )


@lru_cache(maxsize=256)
def _is_expiration(text: str) -> bool:
    digits = text.removeprefix("+")
    return (
        digits.isascii() and digits.isdecimal() and len(digits) < 40 and int(digits) <= _LONGEST_MS
    )


def _check_copies(message: Message) -> None:
    """Raise InvalidMessage if a copy of the message would be sent to a direct reply address.

    If the address is forged, RabbitMQ 3.10 and 4.0 close the connection (541).
    """
    properties = message.properties
    further = [
        (name.decode("utf-8", "replace"), value) for name, value in properties.further_headers
    ]
    for name, value in (*properties.headers.items(), *further):
        if name in _COPIES and any(key.startswith(f"{REPLY_TO}.") for key in _routing_keys(value)):
            expected = "routing keys that are not direct reply addresses"
            raise _invalid(message, f"header {name!r}", expected, repr(value))


def _routing_keys(value: FieldValue) -> list[str]:
    """Return the strings in an array. RabbitMQ ignores all other values."""
    if isinstance(value, RawValue):
        return value.texts() or []
    if not isinstance(value, list | tuple):
        return []
    return [text for text in map(as_text, value) if text is not None]


def _is_array(value: FieldValue) -> bool:
    if isinstance(value, RawValue):
        return value.texts() is not None
    return isinstance(value, list | tuple)


def _invalid(message: Message, place: str, expected: str, got: str) -> InvalidMessage:
    where = f"exchange {message.exchange!r}, routing key {message.routing_key!r}"
    return InvalidMessage(f"message not sent to {where}: {place}: expected {expected}, got {got}")
