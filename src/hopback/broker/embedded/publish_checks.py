"""What the broker looks at before it takes a publish."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.embedded.arguments import check_expiration
from hopback.broker.embedded.deaths import published_deaths
from hopback.broker.embedded.refusal import (
    access_refused,
    frame_error,
    no_such,
    precondition_failed,
    type_name,
    where,
)
from hopback.broker.embedded.stored import StoredContent, copied_table, taken_off, with_headers
from hopback.fields import RawValue, further_size, table_size
from hopback.renamed import OldNameLookup, old_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.broker.embedded.profile import Profile
    from hopback.fields import FieldValue, FurtherHeaders
    from hopback.message import Message, Properties
    from hopback.topology.model import Exchange

__all__ = ["FRAME_PAYLOAD", "PublishChecker"]

FRAME_PAYLOAD = 131_064
"""The bytes that properties and headers may take together: one frame without its frame."""

_ALL_OTHERS = 4096
"""More than all properties but the headers can take."""
_NOTHING: dict[str, FieldValue] = {}
_STRINGS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class PublishChecker:
    """Checks publishes and makes the broker's own copy of them."""

    __slots__ = ("_count", "_exchanges", "_max_body", "_profile", "_vhost")

    def __init__(
        self, exchanges: Mapping[str, Exchange], profile: Profile, max_body: int | None, vhost: str
    ) -> None:
        self._exchanges = exchanges
        self._vhost = vhost
        self._profile = profile
        self._max_body = profile.max_body_bytes if max_body is None else max_body
        self._count = 0

    def take(self, message: Message, properties: Properties, user: str) -> StoredContent:
        """The message as the broker keeps it; Refusal if it does not take it."""
        self._check(message, properties, user)
        if properties.opaque_headers:
            # No client sends what it could not read: it would not get over the wire either.
            properties = replace(properties, opaque_headers=b"")
        headers = self._headers(properties) if properties.headers else _NOTHING
        keys: tuple[str, ...] = (message.routing_key,)
        if headers and ("CC" in headers or "BCC" in headers):
            keys += (*_copies(headers, "CC"), *_copies(headers, "BCC"))
            further = taken_off(headers, properties.further_headers, "BCC")
            properties = with_headers(properties, headers, further=further)
        if properties.further_headers and self._profile.sorts_headers:
            properties = with_headers(properties, headers, further=_each_once(properties))
        self._count += 1
        deaths = published_deaths(headers, self._profile) if "x-death" in headers else ()
        return StoredContent(
            message.body, properties, headers, message.exchange, keys, self._count, deaths
        )

    def _check(self, message: Message, properties: Properties, user: str) -> None:
        if len(message.body) > self._max_body:
            raise precondition_failed(
                f"message size {len(message.body)} is larger than"
                f" configured max size {self._max_body}"
            )
        if message.exchange:
            exchange = self._exchanges.get(message.exchange)
            if exchange is None:
                raise no_such(where("exchange", message.exchange, self._vhost))
            if exchange.internal:
                place = where("exchange", message.exchange, self._vhost)
                raise access_refused(f"cannot publish to internal {place}")
        if properties.user_id is not None and properties.user_id != user:
            raise precondition_failed(
                f"user_id property set to '{properties.user_id}'"
                f" but authenticated user was '{user}'"
            )
        if properties.expiration is not None:
            check_expiration(properties.expiration)
        mode = properties.delivery_mode
        if mode is not None and mode not in (1, 2) and self._profile.checks_delivery_mode:
            raise precondition_failed(f"invalid message: {{delivery_mode_unknown,{mode}}}")

    def _headers(self, properties: Properties) -> dict[str, FieldValue]:
        """The broker's own copy of the headers, in the order in which it hands them out."""
        table = table_size(properties.headers) + further_size(properties.further_headers)
        if table > FRAME_PAYLOAD - _ALL_OTHERS:
            # Refuse what does not fit: class, weight, body size, flags, and then the properties.
            given = (getattr(properties, name) for name in _STRINGS)
            strings = sum(1 + len(text.encode()) for text in given if text is not None)
            octets = sum(
                value is not None for value in (properties.delivery_mode, properties.priority)
            )
            size = 14 + strings + octets + 8 * (properties.timestamp is not None) + table
            if size > FRAME_PAYLOAD:
                raise frame_error(size, FRAME_PAYLOAD)
        headers = copied_table(properties.headers)
        return dict(sorted(headers.items())) if self._profile.sorts_headers else headers


def _each_once(properties: Properties) -> FurtherHeaders:
    """What is left of further headers where the broker keeps the first of each name only."""
    once: dict[bytes, FieldValue] = {}
    for name, value in properties.further_headers:
        once.setdefault(name, value)
    return tuple(
        (name, value)
        for name, value in once.items()
        if name.decode("utf-8", "surrogateescape") not in properties.headers
    )


def _copies(headers: dict[str, FieldValue], name: str) -> tuple[str, ...]:
    """The further routing keys that a header asks for."""
    found = headers.get(name, [])
    if isinstance(found, RawValue):
        texts = found.texts()
        found = {} if texts is None else texts
    if not isinstance(found, list):
        kind = type_name(found)
        raise precondition_failed(
            f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
        )
    return tuple(key for key in found if isinstance(key, str))


__getattr__: OldNameLookup = old_names(__name__, {"Intake": "PublishChecker"})
