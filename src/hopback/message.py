"""Messages as values: published messages and deliveries."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from hopback.fields import FurtherHeaders, Headers

NO_HEADERS: Headers = MappingProxyType({})
"""The headers of a message without a header table. An empty table is a different value: some
clients pass `{}` for it and no table for a message without one.
"""


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The fourteen AMQP message properties. Absent ones are None, absent headers are `NO_HEADERS`.

    `further_headers` are entries of the header table that cannot be in `headers`, because their
    name is a duplicate or not UTF-8. `opaque_headers` is the undecodable part of the table. It is
    never published as headers, see `hopback.headers`.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers = field(default_factory=lambda: NO_HEADERS)
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None
    further_headers: FurtherHeaders = ()
    opaque_headers: bytes = b""

    @classmethod
    def of(cls, present: dict[str, Any]) -> Properties:
        """Create `Properties(**present)` faster, for reading thousands per second.

        A frozen dataclass sets every field. Here absent fields stay class defaults.
        """
        made = object.__new__(cls)
        state = made.__dict__
        state["headers"] = NO_HEADERS
        state.update(present)
        return made

    @property
    def has_headers(self) -> bool:
        """Whether the message has a header table, even an empty one."""
        return self.headers is not NO_HEADERS or bool(self.further_headers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Properties):
            return NotImplemented
        if self.has_headers != other.has_headers:
            return False
        return all(getattr(self, name) == getattr(other, name) for name in _NAMES)

    __hash__ = None  # type: ignore[assignment]  # headers are a mapping

    def with_changes(self, **changes: Any) -> Properties:
        """The same as `dataclasses.replace(properties, **changes)`, at a fraction of its price."""
        return Properties.of({**self.__dict__, **changes})


_NAMES = tuple(each.name for each in fields(Properties))


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish.

    With `mandatory` False an unroutable message is dropped silently, for replies and expendable
    messages. With `delay` (milliseconds, or a time with its time zone) an application holds the
    message in the broker until then.
    """

    exchange: str
    routing_key: str
    body: bytes = b""
    properties: Properties = Properties()
    mandatory: bool = True
    delay: int | datetime | None = None


def require_message(message: Message) -> Message:
    """Return the message. Raise TypeError if it is another object, such as a payload."""
    if isinstance(message, Message):
        return message
    raise TypeError(
        f"expected a Message, got {type(message).__name__}: `publish(queue, payload)` publishes a "
        "payload, `compose(queue, payload)` makes a Message of it"
    )


class Delivery(Protocol):
    """An unsettled message from a broker.

    `tag` identifies it on its channel for settlement. `queue` is the queue it was consumed from.
    `properties` may be decoded on first use and never raises.
    """

    @property
    def queue(self) -> str:
        """The queue it was consumed from."""

    @property
    def exchange(self) -> str:
        """The exchange it was last published or dead-lettered to."""

    @property
    def routing_key(self) -> str:
        """The routing key of that publish."""

    @property
    def body(self) -> bytes:
        """The bytes of the message."""

    @property
    def properties(self) -> Properties:
        """Its properties and headers."""

    @property
    def redelivered(self) -> bool:
        """Whether the broker may have delivered it before."""

    @property
    def tag(self) -> int:
        """The delivery tag on its channel."""


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery as plain data, for tests, the embedded broker and pure code."""

    queue: str
    exchange: str
    routing_key: str
    body: bytes = b""
    properties: Properties = Properties()
    redelivered: bool = False
    tag: int = 0
