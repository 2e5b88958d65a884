"""Messages inside the broker: their content, their copies in queues, and deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hopback.message import Properties

if TYPE_CHECKING:
    from asyncio import Event

    from hopback.broker.embedded.consumers import QueueConsumer
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.fields import FieldValue, FurtherHeaders, Headers

_PLAIN = frozenset({str, int, bool, float, type(None)})
"""Common types that don't have to be copied."""


def copy_value(value: FieldValue) -> FieldValue:
    """Return a deep copy of a value, with the types that a client would decode."""
    if isinstance(value, Mapping):
        return copy_table(value)
    if isinstance(value, list | tuple):
        return [copy_value(inner) for inner in value]
    return value


def copy_table(table: Headers) -> dict[str, FieldValue]:
    """Return a deep copy of a header table."""
    return {
        key: value if type(value) in _PLAIN else copy_value(value) for key, value in table.items()
    }


def remove_header(
    headers: dict[str, FieldValue], further: FurtherHeaders, name: str
) -> FurtherHeaders:
    """Remove the first header with this name. If there is another one, it takes its place.

    Returns the remaining `further` headers.
    """
    headers.pop(name, None)
    for place, (other, value) in enumerate(further):
        if other == name.encode():
            headers[name] = value
            return further[:place] + further[place + 1 :]
    return further


def with_headers(
    properties: Properties,
    headers: Headers,
    *,
    keep_expiration: bool = True,
    further: FurtherHeaders | None = None,
) -> Properties:
    """Replace the headers. This is three times as fast as `dataclasses.replace`."""
    return Properties(
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        headers=headers,
        delivery_mode=properties.delivery_mode,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        expiration=properties.expiration if keep_expiration else None,
        message_id=properties.message_id,
        timestamp=properties.timestamp,
        type=properties.type,
        user_id=properties.user_id,
        app_id=properties.app_id,
        cluster_id=properties.cluster_id,
        further_headers=properties.further_headers if further is None else further,
    )


class StoredContent:
    """The content of a message. It is immutable and shared by all copies.

    `keys` contains the routing key, followed by those of `CC` and `BCC`. `headers` are the broker's
    copy and replace the ones in `properties`. `deaths` are recorded by the broker and not part of
    the header since 3.13. `failed` and `acquired` are the counts that quorum queues pass on with a
    dead letter since 4.0. The same applies to `redelivered` since 4.3. `origin` identifies the
    publish.
    """

    __slots__ = (
        "acquired",
        "body",
        "buried_at",
        "deaths",
        "exchange",
        "failed",
        "headers",
        "hops",
        "keys",
        "origin",
        "parent",
        "properties",
        "redelivered",
    )

    def __init__(
        self,
        body: bytes,
        properties: Properties,
        headers: dict[str, FieldValue],
        exchange: str,
        keys: tuple[str, ...],
        origin: int,
        deaths: tuple[dict[str, FieldValue], ...] = (),
    ) -> None:
        self.body: bytes = body
        self.properties: Properties = properties
        self.headers: dict[str, FieldValue] = headers
        self.exchange: str = exchange
        self.keys: tuple[str, ...] = keys
        self.origin: int = origin
        self.deaths: tuple[dict[str, FieldValue], ...] = deaths
        self.failed: int = 0
        self.acquired: int = 0
        self.redelivered: bool = False
        self.parent: int = 0
        """The copy this one was dead-lettered from. 0 if the message was published."""
        self.buried_at: float = 0.0
        self.hops: int = 0
        """How many times the message had died at the time of its last death."""


class Entry:
    """A copy of a message in a queue. `number` is unique and determines its position."""

    __slots__ = ("acquired", "content", "expires", "failed", "number", "redelivered")

    def __init__(self, content: StoredContent, number: int, expires: float | None) -> None:
        self.content: StoredContent = content
        self.number: int = number
        self.expires: float | None = expires
        self.redelivered: bool = content.redelivered
        self.acquired: int = 0
        """How often the message was returned to this queue."""
        self.failed: int = 0
        """How often a delivery has failed, including in earlier quorum queues since 4.0."""


class UnackedDelivery:
    """An unsettled delivery."""

    __slots__ = (
        "_properties",
        "at",
        "consumer",
        "content",
        "counts",
        "entry",
        "redelivered",
        "session_ended",
        "source",
        "tag",
        "void",
    )

    def __init__(
        self,
        tag: int,
        source: LiveQueue,
        entry: Entry,
        consumer: QueueConsumer | None,
        at: float,
    ) -> None:
        self.tag: int = tag
        self.source: LiveQueue = source
        self.entry: Entry = entry
        self.content: StoredContent = entry.content
        self.consumer: QueueConsumer | None = consumer
        self.at: float = at
        self.redelivered: bool = entry.redelivered
        self.void: bool = False
        """Set if the delivery was requeued or its queue deleted. Settling it has no effect then."""
        self.counts: dict[str, FieldValue] | None = None
        self._properties: Properties | None = None

    session_ended: Event
    """A consumer sets this. Before that, the attribute is missing."""

    def __repr__(self) -> str:
        return f"<delivery {self.tag} from {self.queue!r}: {self.body[:40]!r}>"

    @property
    def queue(self) -> str:
        return self.source.name

    @property
    def exchange(self) -> str:
        """The exchange the message was last published or dead-lettered to."""
        return self.content.exchange

    @property
    def routing_key(self) -> str:
        """The routing key used with this exchange."""
        return self.content.keys[0]

    @property
    def body(self) -> bytes:
        return self.content.body

    @property
    def properties(self) -> Properties:
        """The properties with headers that are not shared with other copies."""
        found = self._properties
        if found is None:
            found = self.content.properties
            if self.counts is not None or found.headers:
                headers = copy_table(self.content.headers)
                if self.counts is not None:
                    # The broker sorts the headers if it adds one.
                    headers = dict(sorted((headers | self.counts).items()))
                found = with_headers(found, headers)
            self._properties = found
        return found
