"""Delayed messages.

While a message is in the delay queues, its destination and some of its properties are stored in a
header, because the broker would interpret them: an expiration would end the delay early, CC and BCC
would route the message elsewhere, and RabbitMQ up to 3.12 would drop it as a cycle because of
earlier deaths.

If a delay queue is missing, the message arrives early. `remaining_wait_ms` detects this. For a
relative delay it compares the levels in the routing key with the ones in `x-death`. For an absolute
time (`at=`) it uses the clock. A policy can also shorten the TTL of a delay queue. `is_shortened`
detects this for all levels except the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hopback.fields import (
    MAX_DEPTH,
    FieldValue,
    FurtherHeaders,
    Headers,
    as_text,
    field_text,
    nests_deeper,
)
from hopback.headers import deaths
from hopback.headers.names import (
    DELAY,
    ORIGIN_USER,
    is_broker_count,
    is_death,
    is_protected,
    may_stand_twice,
)
from hopback.message import NO_HEADERS, Delivery, Message
from hopback.topology.delays import is_from_level, levels_of, way_in


@dataclass(frozen=True, slots=True)
class Delayed:
    """A delayed message. `due_ms` is in milliseconds since the epoch."""

    message: Message
    due_ms: int
    by_clock: bool = False
    """True if the message was published with an absolute time, or if its delay was shortened."""
    laps: int = 0
    """The number of times the message arrived early."""
    paused_ms: int = 0
    """The remaining delay after a pause outside of the delay queues."""
    paused_at_ms: int = 0
    """The start of the last pause."""


def delay(message: Message, delay_ms: int, due_ms: int, *, by_clock: bool = False) -> Message:
    """Return a message that is delayed by `delay_ms`.

    If `by_clock` is True, it is due at `due_ms`.
    """
    return _delayed_copy(Delayed(message, due_ms, by_clock), *way_in(delay_ms))


def wait_again(delayed: Delayed, wait_ms: int) -> Message:
    """Return a message that is delayed again, without its earlier deaths in the delay queues."""
    return _delayed_copy(replace(delayed, paused_ms=0), *way_in(wait_ms))


def without_user(delayed: Delayed) -> Delayed:
    """Return the message for a publisher with another user, with the user id in a header."""
    properties = delayed.message.properties
    if properties.user_id is None:
        return delayed
    headers = {**properties.headers, ORIGIN_USER: field_text(properties.user_id)}
    changed = properties.with_changes(headers=headers, user_id=None)
    return replace(delayed, message=replace(delayed.message, properties=changed))


def pause(delayed: Delayed, exchange: str, routing_key: str) -> Message:
    """Return a message that waits in a queue other than the delay queues."""
    return _delayed_copy(delayed, exchange, routing_key)


def _delayed_copy(delayed: Delayed, exchange: str, routing_key: str) -> Message:
    message = delayed.message
    properties = message.properties
    waiting: dict[str, FieldValue] = {
        "exchange": field_text(message.exchange),
        "routing-key": field_text(message.routing_key),
        "mandatory": message.mandatory,
        "due": delayed.due_ms,
    }
    if delayed.by_clock:
        waiting["by-clock"] = True
    if properties.has_headers:
        waiting["headers"] = {
            name: value
            for name, value in properties.headers.items()
            if not (is_death(name) or is_broker_count(name) or _is_deep(value))
        }
    if properties.expiration is not None:
        waiting["expiration"] = field_text(properties.expiration)
    waiting.update({name: value for name, value in _counts(delayed).items() if value})
    further = [entry for entry in properties.further_headers if may_stand_twice(entry[0])]
    if shallow := [entry for entry in further if not _is_deep(entry[1])]:
        # Store names and values one after another, since a table cannot contain duplicate names.
        waiting["further"] = [part for entry in shallow for part in entry]
    plain = replace(
        properties,
        headers={**_deep_headers(properties.headers), DELAY: waiting},
        further_headers=tuple(entry for entry in further if _is_deep(entry[1])),
        expiration=None,
        delivery_mode=2,
    )
    return Message(exchange, routing_key, message.body, plain)


def _is_deep(value: FieldValue) -> bool:
    """Return True if the value cannot be nested two levels deeper in the header."""
    return nests_deeper(value, MAX_DEPTH - 2)


def _deep_headers(headers: Headers) -> dict[str, FieldValue]:
    """Return the headers that are too deep to be stored in the header."""
    return {
        name: value for name, value in headers.items() if _is_deep(value) and not is_protected(name)
    }


def _further_in(value: FieldValue) -> FurtherHeaders:
    """Read alternating names and values. Returns an empty tuple if the value is invalid."""
    if not isinstance(value, list) or not all(type(name) is bytes for name in value[::2]):
        return ()
    return tuple(zip(value[::2], value[1::2], strict=False))


def _counts(delayed: Delayed) -> dict[str, int]:
    return {
        "laps": delayed.laps,
        "paused": delayed.paused_ms,
        "paused-at": delayed.paused_at_ms,
    }


def delay_until_due(message: Message, now: float) -> Message:
    """Return an unpublished message with its remaining delay."""
    delayed = read_delayed(message)
    if delayed is None:
        return message
    left_ms = max(0, delayed.due_ms - math.floor(now * 1000))
    return wait_again(delayed, left_ms)


def read_delayed(delivery: Delivery | Message) -> Delayed | None:
    """Return the delayed message, or None if it was not delayed by `delay`."""
    present = delivery.properties.headers
    found = present.get(DELAY)
    if not isinstance(found, Mapping):
        return None
    exchange, routing_key = as_text(found.get("exchange")), as_text(found.get("routing-key"))
    mandatory, due_ms = found.get("mandatory"), found.get("due")
    headers, expiration = found.get("headers", NO_HEADERS), found.get("expiration")
    if not (
        exchange is not None
        and routing_key is not None
        and isinstance(mandatory, bool)
        and isinstance(due_ms, int)
        and isinstance(headers, Mapping)
        and (expiration is None or as_text(expiration) is not None)
    ):
        return None
    further = _further_in(found.get("further"))
    if deep := _deep_headers(present):
        further += tuple((name.encode(), value) for name, value in deep.items() if name in headers)
        headers = {**deep, **headers}
    properties = replace(
        delivery.properties,
        headers=headers,
        further_headers=further + delivery.properties.further_headers,
        expiration=as_text(expiration),
    )
    message = Message(exchange, routing_key, delivery.body, properties, mandatory)
    laps, paused_ms, paused_at_ms = (
        value if isinstance(value := found.get(name), int) and value > 0 else 0
        for name in ("laps", "paused", "paused-at")
    )
    by_clock = found.get("by-clock") is True
    return Delayed(message, due_ms, by_clock, laps, paused_ms, paused_at_ms)


def remaining_wait_ms(delivery: Delivery, delayed: Delayed, now_ms: int) -> int:
    """Return the remaining delay in milliseconds, or 0 if the message is due.

    A message from a retry queue has already been due, unless this module paused it.
    """
    if delayed.by_clock:
        return max(0, delayed.due_ms - now_ms)
    if not is_from_level(delivery.exchange):
        return delayed.paused_ms
    passed = _passed_queues(delivery)
    asked = levels_of(delivery.routing_key)
    return sum(wait_ms for queue, wait_ms in asked.items() if queue not in passed)


def is_shortened(delivery: Delivery) -> bool:
    """Return True if the broker released the message early in a level other than the first.

    The times in `x-death` only have a resolution of one second.
    """
    passed = _passed_queues(delivery)
    waits = [
        (wait_ms, moment)
        for queue, wait_ms in levels_of(delivery.routing_key).items()
        if (moment := passed.get(queue)) is not None
    ]
    if not is_from_level(delivery.exchange) or len(waits) < 2:
        return False
    waits.sort()
    (_, last), (_, first) = waits[0], waits[-1]
    wanted_s = sum(wait_ms for wait_ms, _ in waits[:-1]) // 1000
    return last - first <= wanted_s - 1


def _passed_queues(delivery: Delivery) -> dict[str, int | None]:
    """Return the delay queues the message has passed through, with the time it left each of them."""
    return {
        death.queue: death.time
        for death in deaths(delivery.properties.headers)
        if death.reason == "expired"
    }
