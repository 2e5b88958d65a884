"""What the API answers about browse sessions and the messages in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hopback.admin.answers import CostAnswer, Moment, cost_answer, moment
from hopback.admin.content import amqp_type, shown_text
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.deadletters.browsing import MessageView, SessionView
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.sessions import Group
    from hopback.fields import FieldValue

__all__ = [
    "EventAnswer",
    "FailureRecord",
    "GroupAnswer",
    "GroupList",
    "HeaderAnswer",
    "LetterAnswer",
    "LetterList",
    "MessageAnswer",
    "SessionAnswer",
    "WayAnswer",
    "camel",
    "group_answer",
    "letter_answer",
    "message_answer",
    "plain_value",
    "session_answer",
]

_PARSED_BYTES = 256 * 1024


class SessionAnswer(Struct, frozen=True, rename="camel"):
    """A browse session; `complete` says that it holds everything that was ready."""

    id: str
    url: str
    queue: str
    held: int
    held_bytes: int
    complete: bool
    opened_at: Moment
    expires_at: Moment
    by: str
    cost: CostAnswer


class LetterAnswer(Struct, frozen=True, rename="camel"):
    """A dead letter without its body."""

    id: str
    place: int
    digest: str
    queue: str
    reason: str
    origin: str
    type: str
    message_id: str
    error: str
    error_message: str
    fingerprint: str
    recorded_by: str
    attempts: int
    redrives: int
    redrive_job: str
    first_failed_at: Moment | None
    last_failed_at: Moment | None
    size: int
    delivery_count: int
    exchange: str
    routing_key: str
    redelivered: bool


class LetterList(Struct, frozen=True, rename="camel"):
    """Some letters of a session; `cursor` asks for what comes after them, null at the end."""

    items: list[LetterAnswer]
    matching: int
    cursor: str | None


class GroupAnswer(Struct, frozen=True, rename="camel"):
    """Letters that have something in common."""

    key: str
    count: int
    first_at: Moment | None
    last_at: Moment | None
    sample: LetterAnswer


class GroupList(Struct, frozen=True, rename="camel"):
    """The groups of a session, the largest first."""

    by: str
    items: list[GroupAnswer]


class HeaderAnswer(Struct, frozen=True, rename="camel"):
    """A header with its AMQP type; what JSON cannot hold is written as text."""

    name: str
    type: str
    value: Any


class EventAnswer(Struct, frozen=True, rename="camel"):
    """One thing that happened to a message."""

    at: Moment | None
    what: str


class FailureRecord(Struct, frozen=True, rename="camel"):
    """What the consumer wrote down when it gave up."""

    type: str
    message: str
    frame: str
    stack: str
    host: str


class WayAnswer(Struct, frozen=True, rename="camel"):
    """Where a re-drive would send it by default."""

    exchange: str
    routing_key: str
    flaw: str | None


class MessageAnswer(Struct, frozen=True, rename="camel"):
    """One message with everything about it. `payload` is parsed where it is JSON and not too large."""

    letter: LetterAnswer
    sentence: str
    timeline: list[EventAnswer]
    failure: FailureRecord | None
    way: WayAnswer | None
    no_way: str
    properties: dict[str, Any]
    headers: list[HeaderAnswer]
    payload: Any
    payload_encoding: str
    payload_bytes: int
    body_url: str


def session_answer(view: SessionView) -> SessionAnswer:
    """A session."""
    return SessionAnswer(
        view.id,
        f"/admin/dlq/sessions/{view.id}",
        view.queue,
        view.held,
        view.held_bytes,
        view.complete,
        timestamp(view.opened_at),
        timestamp(view.expires_at),
        view.by.name,
        cost_answer(view.cost),
    )


def letter_answer(letter: Letter) -> LetterAnswer:
    """A letter; texts of unknown origin are made fit for JSON."""
    return LetterAnswer(
        id=letter.id,
        place=letter.place,
        digest=letter.digest,
        queue=letter.queue,
        reason=shown_text(letter.reason),
        origin=shown_text(letter.origin),
        type=shown_text(letter.type),
        message_id=shown_text(letter.message_id),
        error=shown_text(letter.error),
        error_message=shown_text(letter.error_message),
        fingerprint=shown_text(letter.fingerprint),
        recorded_by=letter.recorded_by,
        attempts=letter.attempts,
        redrives=letter.redrives,
        redrive_job=shown_text(letter.redrive_job),
        first_failed_at=moment(letter.first_failed),
        last_failed_at=moment(letter.last_failed),
        size=letter.size,
        delivery_count=letter.delivery_count,
        exchange=shown_text(letter.exchange),
        routing_key=shown_text(letter.routing_key),
        redelivered=letter.redelivered,
    )


def group_answer(group: Group) -> GroupAnswer:
    """A group."""
    return GroupAnswer(
        shown_text(group.key),
        group.count,
        moment(group.first),
        moment(group.last),
        letter_answer(group.sample),
    )


def message_answer(view: MessageView, session: str) -> MessageAnswer:
    """A message."""
    delivery, failure = view.delivery, view.failure
    payload, encoding = _payload(delivery.body)
    plain = {
        name: value
        for name in _PROPERTIES
        if (value := getattr(delivery.properties, name)) is not None
    }
    return MessageAnswer(
        letter=letter_answer(view.letter),
        sentence=shown_text(view.sentence),
        timeline=[EventAnswer(moment(each.time), shown_text(each.what)) for each in view.timeline],
        failure=None
        if failure is None
        else FailureRecord(*(shown_text(getattr(failure, name)) for name in _FAILURE)),
        way=None
        if view.way is None
        else WayAnswer(view.way.exchange, view.way.routing_key, view.way.flaw),
        no_way=view.no_way,
        properties={camel(name): plain_value(value) for name, value in plain.items()},
        headers=[
            HeaderAnswer(shown_text(name), amqp_type(value), plain_value(value))
            for name, value in delivery.properties.headers.items()
        ],
        payload=payload,
        payload_encoding=encoding,
        payload_bytes=len(delivery.body),
        body_url=f"/admin/dlq/sessions/{session}/messages/{view.letter.id}/body",
    )


_PROPERTIES = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
_FAILURE = ("type", "message", "frame", "stack", "host")


def camel(name: str) -> str:
    """`content_type` as `contentType`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _payload(body: bytes) -> tuple[Any, str]:
    """The payload for JSON: parsed, or text; a large or binary one stays behind its URL."""
    if len(body) > _PARSED_BYTES:
        return None, "omitted"
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None, "binary"
    try:
        return json.loads(text, parse_constant=_no_constant), "json"
    except (ValueError, RecursionError):
        return text, "string"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def plain_value(value: FieldValue) -> Any:
    """A value of AMQP as JSON can hold it."""
    match value:
        case None | bool() | str():
            return shown_text(value) if isinstance(value, str) else value
        case int():
            return int(value) if abs(value) < 2**53 else str(int(value))
        case float():
            return float(value) if value - value == 0 else str(float(value))
        case Decimal():
            return str(value)
        case Mapping():
            return {shown_text(key): plain_value(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain_value(inner) for inner in value]
        case bytes():
            return shown_text(value.decode("utf-8", "backslashreplace"))
    return shown_text(str(value))
