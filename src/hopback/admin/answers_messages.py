"""What the API answers about browse sessions and the messages in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hopback.admin.answers import CostAnswer, Moment, cost_answer, moment
from hopback.deadletters.plain import (
    amqp_type,
    plain_headers,
    plain_payload,
    plain_properties,
    plain_text,
    plain_value,
)
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.deadletters.browsing import MessageView, SessionView
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.sessions import Group

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
    "group_answer",
    "letter_answer",
    "message_answer",
    "session_answer",
]

_FAILURE = ("type", "message", "frame", "stack", "host")


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
    """Some letters of a session; `cursor` asks for what comes after them, null at the end.

    `notLookedInto` have bodies too large or too deeply nested for `payload.` terms: they may match.
    """

    items: list[LetterAnswer]
    matching: int
    cursor: str | None
    not_looked_into: int


class GroupAnswer(Struct, frozen=True, rename="camel"):
    """Letters that have something in common."""

    key: str
    count: int
    first_at: Moment | None
    last_at: Moment | None
    sample: LetterAnswer


class GroupList(Struct, frozen=True, rename="camel"):
    """The groups of a session, the largest first; `more` of them are left out.

    `notLookedInto` have bodies too large or too deeply nested for `payload.` terms: they may match.
    """

    by: str
    items: list[GroupAnswer]
    more: int
    matching: int
    not_looked_into: int


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
    """One message with everything about it. `payload` is parsed where it is JSON and not too large.

    Of very many headers some are shown; `moreHeaders` are left out here and stand in an export.
    """

    letter: LetterAnswer
    sentence: str
    timeline: list[EventAnswer]
    failure: FailureRecord | None
    way: WayAnswer | None
    no_way: str
    properties: dict[str, Any]
    headers: list[HeaderAnswer]
    more_headers: int
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
        reason=plain_text(letter.reason),
        origin=plain_text(letter.origin),
        type=plain_text(letter.type),
        message_id=plain_text(letter.message_id),
        error=plain_text(letter.error),
        error_message=plain_text(letter.error_message),
        fingerprint=plain_text(letter.fingerprint),
        recorded_by=letter.recorded_by,
        attempts=letter.attempts,
        redrives=letter.redrives,
        redrive_job=plain_text(letter.redrive_job),
        first_failed_at=moment(letter.first_failed),
        last_failed_at=moment(letter.last_failed),
        size=letter.size,
        delivery_count=letter.delivery_count,
        exchange=plain_text(letter.exchange),
        routing_key=plain_text(letter.routing_key),
        redelivered=letter.redelivered,
    )


def group_answer(group: Group) -> GroupAnswer:
    """A group."""
    return GroupAnswer(
        plain_text(group.key),
        group.count,
        moment(group.first),
        moment(group.last),
        letter_answer(group.sample),
    )


def message_answer(view: MessageView, session: str) -> MessageAnswer:
    """A message."""
    delivery, failure = view.delivery, view.failure
    payload, encoding = plain_payload(delivery.body)
    headers, more_headers = plain_headers(delivery.properties.headers)
    return MessageAnswer(
        letter=letter_answer(view.letter),
        sentence=plain_text(view.sentence),
        timeline=[EventAnswer(moment(each.time), plain_text(each.what)) for each in view.timeline],
        failure=None
        if failure is None
        else FailureRecord(*(plain_text(getattr(failure, name)) for name in _FAILURE)),
        way=None
        if view.way is None
        else WayAnswer(view.way.exchange, view.way.routing_key, view.way.flaw),
        no_way=view.no_way,
        properties=plain_properties(delivery.properties),
        headers=[
            HeaderAnswer(plain_text(name), amqp_type(value), plain_value(value))
            for name, value in headers
        ],
        more_headers=more_headers,
        payload=payload,
        payload_encoding=encoding,
        payload_bytes=len(delivery.body),
        body_url=f"/admin/dlq/sessions/{session}/messages/{view.letter.id}/body",
    )
