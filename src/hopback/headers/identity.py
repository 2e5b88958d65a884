"""The identity of a message: its id, or a hash that is the same at every hop."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hopback.fields import Headers, canonical
from hopback.headers.names import is_protected
from hopback.headers.rewrite import unread_headers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hopback.message import Delivery, Properties

# Prefixes of headers that the documented designs add. They do not change the identity.
_DESIGNS = ("x-original-", "x-retry-", "x-parked-", "x-final-", "x-redriven-", "x-redrive-")


def identity(
    delivery: Delivery, *, origin: tuple[str, str] = ("", ""), ignoring: Collection[str] = ()
) -> str:
    """Return the message id, or else a stable hash of body, properties, headers and origin.

    `origin` is the exchange and the routing key of the producer's publish (`Reading.origin`).
    Headers that change from hop to hop are excluded: Hopback's, the broker's, those of the
    documented designs, and those that a custom plan writes (`ignoring`).
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
    """The properties that every hop keeps."""
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
    """The producer's headers, sorted: some brokers sort them, some do not."""
    for name in sorted(headers):
        if not (is_protected(name) or name in ignoring or _is_of_a_design(name)):
            yield repr((name, canonical(headers[name]))).encode("utf-8", "backslashreplace")


def _is_of_a_design(name: str) -> bool:
    return name == "x-retries" or name.startswith(_DESIGNS)
