"""Identify messages by message id or by a hash."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hopback.fields import Headers, canonical
from hopback.headers.names import is_protected
from hopback.headers.rewrite import unread_headers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hopback.message import Delivery, Properties

# Prefixes of headers that are added by designs and must not affect the hash.
_DESIGNS = ("x-original-", "x-retry-", "x-parked-", "x-final-", "x-redriven-", "x-redrive-")


def identity(
    delivery: Delivery, *, origin: tuple[str, str] = ("", ""), ignoring: Collection[str] = ()
) -> str:
    """Return the message id, or a hash of the message if it does not have an id.

    The hash ignores headers that change between retries. These are the headers of Hopback, the
    broker and the designs.

    Args:
        delivery: The message.
        origin: The exchange and routing key the message was originally published with.
        ignoring: Names of additional headers to ignore.
    """
    properties = delivery.properties
    if properties.message_id:
        return properties.message_id
    digest = hashlib.sha256()
    published = (part.encode("utf-8", "surrogatepass") for part in origin)
    parts = (*published, *_stable_properties(properties), *_headers(properties.headers, ignoring))
    for part in (delivery.body, *parts, unread_headers(properties)):
        digest.update(len(part).to_bytes(8, "big") + part)
    return f"sha256-{digest.hexdigest()[:32]}"


def _stable_properties(properties: Properties) -> Iterator[bytes]:
    """Yield the properties that do not change between retries."""
    for value in (
        properties.content_type,
        properties.content_encoding,
        properties.priority,
        properties.correlation_id,
        properties.reply_to,
        properties.timestamp,
        properties.type,
        properties.app_id,
        properties.cluster_id,
    ):
        yield repr(value).encode("utf-8", "backslashreplace")


def _headers(headers: Headers, ignoring: Collection[str]) -> Iterator[bytes]:
    """Yield the headers of the producer.

    They are sorted, because some versions of RabbitMQ sort headers.
    """
    for name in sorted(headers):
        if not (is_protected(name) or name in ignoring or _is_of_a_design(name)):
            yield repr((name, canonical(headers[name]))).encode("utf-8", "backslashreplace")


def _is_of_a_design(name: str) -> bool:
    return name == "x-retries" or name.startswith(_DESIGNS)
