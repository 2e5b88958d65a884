"""Messages and deliveries."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from hopback.fields import FurtherHeaders, Headers

NO_HEADERS: Headers = MappingProxyType({})
"""The value of `headers` if a message has no header table, which is not the same as an empty table.
"""


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The AMQP message properties.

    Missing properties are None, and missing headers are `NO_HEADERS`. `further_headers` contains
    headers with a duplicate name or a name that is not UTF-8. `opaque_headers` contains the part of
    the header table that could not be decoded. It is not published as headers (see
    `hopback.headers`).
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
        """Create `Properties(**present)` without calling the generated `__init__`.

        This is faster because missing fields fall back to the class defaults.
        """
        made = object.__new__(cls)
        state = made.__dict__
        state["headers"] = NO_HEADERS
        state.update(present)
        return made

    @property
    def has_headers(self) -> bool:
        """Return True if the message has a header table, including an empty one."""
        return self.headers is not NO_HEADERS or bool(self.further_headers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Properties):
            return NotImplemented
        if self.has_headers != other.has_headers:
            return False
        return all(getattr(self, name) == getattr(other, name) for name in _NAMES)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # headers are a mapping

    def with_changes(self, **changes: Any) -> Properties:
        """Do the same as `dataclasses.replace`, but faster."""
        return Properties.of({**self.__dict__, **changes})


_NAMES = tuple(each.name for each in fields(Properties))


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish.

    If `mandatory` is False, the broker silently drops the message when it is unroutable. `delay` is
    a number of milliseconds or a datetime with a time zone. The message is held in the broker until
    then.
    """

    exchange: str
    routing_key: str
    body: bytes = b""
    properties: Properties = Properties()
    mandatory: bool = True
    delay: int | datetime | None = None


def require_message(message: Message) -> Message:
    """Return `message`, or raise TypeError if it is not a Message."""
    if isinstance(message, Message):
        return message
    raise TypeError(
        f"expected a Message, got {type(message).__name__}. `publish(queue, payload)` publishes a "
        "payload, and `compose(queue, payload)` creates a Message from it"
    )


class Delivery(Protocol):
    """A delivered message that has not been settled yet.

    `properties` may be decoded lazily. Accessing it never raises an error.
    """

    @property
    def queue(self) -> str:
        """The queue the message was consumed from."""

    @property
    def exchange(self) -> str:
        """The exchange the message was last published or dead-lettered to."""

    @property
    def routing_key(self) -> str:
        """The routing key the message was last published with."""

    @property
    def body(self) -> bytes:
        """The message body."""

    @property
    def properties(self) -> Properties:
        """The message properties."""

    @property
    def redelivered(self) -> bool:
        """The redelivered flag."""

    @property
    def tag(self) -> int:
        """The delivery tag."""


@dataclass(frozen=True, slots=True)
class Received:
    """A simple implementation of `Delivery`, for tests and for the embedded broker."""

    queue: str
    exchange: str
    routing_key: str
    body: bytes = b""
    properties: Properties = Properties()
    redelivered: bool = False
    tag: int = 0
