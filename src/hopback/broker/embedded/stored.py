"""A message inside the broker: its content, its place in a queue, and its delivery."""

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
"""The most frequent types. They need no copy."""


def copy_value(value: FieldValue) -> FieldValue:
    """Copy a value deeply, with the types that a client would decode."""
    if isinstance(value, Mapping):
        return copy_table(value)
    if isinstance(value, list | tuple):
        return [copy_value(inner) for inner in value]
    return value


def copy_table(table: Headers) -> dict[str, FieldValue]:
    """The same for a whole table."""
    return {
        key: value if type(value) in _PLAIN else copy_value(value) for key, value in table.items()
    }


def remove_header(
    headers: dict[str, FieldValue], further: FurtherHeaders, name: str
) -> FurtherHeaders:
    """Remove the first header of that name. The next one of that name replaces it.

    Return the remaining `further` headers.
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
    """Return the properties with other headers. Explicit, because `replace` takes three times as
    long.
    """
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
    """The immutable content of a message, shared by all its copies.

    `keys` are the routing key and then those of `CC` and `BCC`. `headers` are the broker's copy and
    replace those of `properties`. `deaths` are the deaths that the broker recorded (since 3.13 not
    in the header). `failed` and `acquired` are the counts that quorum queues of 4.x pass on with a
    dead letter. 4.3 also passes on `redelivered`. `origin` numbers the original publish.
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
        """The copy that died and became this one, or 0 for a published message."""
        self.buried_at: float = 0.0
        self.hops: int = 0
        """Number of deaths at the time of the last one."""


class Entry:
    """One copy of a message in one queue. `number` is unique in the node and gives its place."""

    __slots__ = ("acquired", "content", "expires", "failed", "number", "redelivered")

    def __init__(self, content: StoredContent, number: int, expires: float | None) -> None:
        self.content: StoredContent = content
        self.number: int = number
        self.expires: float | None = expires
        self.redelivered: bool = content.redelivered
        self.acquired: int = 0
        """Number of returns to this queue."""
        self.failed: int = 0
        """Number of failed deliveries, here or (on 4.x) in earlier quorum queues."""


class UnackedDelivery:
    """An unsettled delivery of a copy to a client."""

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
        """Its queue has requeued it or was deleted. Settling it has no effect."""
        self.counts: dict[str, FieldValue] | None = None
        self._properties: Properties | None = None

    session_ended: Event
    """Unset until a consumer sets it."""

    def __repr__(self) -> str:
        return f"<delivery {self.tag} from {self.queue!r}: {self.body[:40]!r}>"

    @property
    def queue(self) -> str:
        return self.source.name

    @property
    def exchange(self) -> str:
        """The exchange it was last published or dead-lettered to."""
        return self.content.exchange

    @property
    def routing_key(self) -> str:
        """The routing key of that publish."""
        return self.content.keys[0]

    @property
    def body(self) -> bytes:
        return self.content.body

    @property
    def properties(self) -> Properties:
        """The properties, with headers that are not shared."""
        found = self._properties
        if found is None:
            found = self.content.properties
            if self.counts is not None or found.headers:
                headers = copy_table(self.content.headers)
                if self.counts is not None:
                    # The broker sorts headers when it adds one.
                    headers = dict(sorted((headers | self.counts).items()))
                found = with_headers(found, headers)
            self._properties = found
        return found
