"""Delayed messages.

While a message is delayed, its destination and some of its properties are stored in a header,
because the broker would act on them: an expiration would end the delay early, CC and BCC would send
the message to other queues, and older deaths would make RabbitMQ up to 3.12 drop the message as a
cycle.

If a delay queue is missing, messages arrive too early. To detect this, `remaining_wait_ms` compares
the levels in the routing key with those in `x-death`. If the message has an absolute time (`at=`),
it uses the clock instead. A policy may also shorten the TTL of a delay queue. `is_shortened`
detects this on all levels but the first.
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
    may_repeat,
)
from hopback.message import NO_HEADERS, Delivery, Message
from hopback.topology.delays import is_from_level, levels_of, way_in


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message that is delayed. `due_ms` is in milliseconds since the epoch."""

    message: Message
    due_ms: int
    by_clock: bool = False
    """Whether to use the clock. True for absolute times, and if the delay was shortened before."""
    laps: int = 0
    """How often the message has arrived too early."""
    paused_ms: int = 0
    """The delay that was left before a pause outside of the delay queues."""
    paused_at_ms: int = 0
    """The time when the last pause started."""


def delay(message: Message, delay_ms: int, due_ms: int, *, by_clock: bool = False) -> Message:
    """Return the message for the delay queues. `delay_ms` is the delay.

    If `by_clock` is True, it is due at `due_ms`.
    """
    return _delayed_copy(Delayed(message, due_ms, by_clock), *way_in(delay_ms))


def wait_again(delayed: Delayed, wait_ms: int) -> Message:
    """Return a message that is delayed again. Its previous deaths in the delay queues are removed."""
    return _delayed_copy(replace(delayed, paused_ms=0), *way_in(wait_ms))


def without_user(delayed: Delayed) -> Delayed:
    """Return a message for a publisher with a different user. The user id is stored in a header."""
    properties = delayed.message.properties
    if properties.user_id is None:
        return delayed
    headers = {**properties.headers, ORIGIN_USER: field_text(properties.user_id)}
    changed = properties.with_changes(headers=headers, user_id=None)
    return replace(delayed, message=replace(delayed.message, properties=changed))


def pause(delayed: Delayed, exchange: str, routing_key: str) -> Message:
    """Return a message that waits outside of the delay queues."""
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
    further = [entry for entry in properties.further_headers if may_repeat(entry[0])]
    if shallow := [entry for entry in further if not _is_deep(entry[1])]:
        # A table cannot contain the same name twice, so store names and values in an array.
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
    """Return True if a value is nested so deeply that it cannot be stored inside of the header."""
    return nests_deeper(value, MAX_DEPTH - 2)


def _deep_headers(headers: Headers) -> dict[str, FieldValue]:
    """Return the headers that are nested too deeply to be stored inside of the header."""
    return {
        name: value for name, value in headers.items() if _is_deep(value) and not is_protected(name)
    }


def _further_in(value: FieldValue) -> FurtherHeaders:
    """Read an array of names and values. Returns an empty tuple if it is invalid."""
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
    """Update the delay of a message that has not been published yet to the time that is left."""
    delayed = read_delayed(message)
    if delayed is None:
        return message
    left_ms = max(0, delayed.due_ms - math.floor(now * 1000))
    return wait_again(delayed, left_ms)


def read_delayed(delivery: Delivery | Message) -> Delayed | None:
    """Parse a delayed message. Returns None if it was not created by `delay`."""
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
    """Return the rest of the delay in milliseconds. 0 means that the message is due.

    A message that comes from a retry queue was already due before, unless it was paused by this
    module.
    """
    if delayed.by_clock:
        return max(0, delayed.due_ms - now_ms)
    if not is_from_level(delivery.exchange):
        return delayed.paused_ms
    passed = _passed_queues(delivery)
    asked = levels_of(delivery.routing_key)
    return sum(wait_ms for queue, wait_ms in asked.items() if queue not in passed)


def is_shortened(delivery: Delivery) -> bool:
    """Return True if a level other than the first has released the message too early.

    The times in `x-death` are only accurate to the second.
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
    """Return the delay queues that the message has passed, and when it left each of them."""
    return {
        death.queue: death.time
        for death in deaths(delivery.properties.headers)
        if death.reason == "expired"
    }
