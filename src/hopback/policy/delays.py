"""A delayed message on its way through the delay queues, stored in one header until it is due.

While the message waits, the broker must not interpret any of its properties. An expiration would
end the wait early, CC and BCC would route it elsewhere, and earlier deaths would make a broker up
to 3.12 treat the route as a cycle. These properties and the destination are therefore stored in one
table.

A missing level is skipped, and the message arrives early. `remaining_wait_ms` detects that. For a
delay it compares the levels that the routing key names with those in `x-death`, which needs no
clock. For a moment (`at=`) it compares the clock. A policy of the broker can shorten the waits
without leaving a level out. The times in `x-death` show that for all levels but the first
(`is_shortened`).
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
    is_broker_count,
    is_death,
    is_protected,
    may_stand_twice,
)
from hopback.message import NO_HEADERS, Delivery, Message
from hopback.topology.delays import is_from_level, levels_of, way_in


@dataclass(frozen=True, slots=True)
class Delayed:
    """A delayed message, and the time when it is due (milliseconds since 1970)."""

    message: Message
    due_ms: int
    by_clock: bool = False
    """Whether the clock decides when it is due, because it was published with a time or its waits
    were shortened.
    """
    laps: int = 0
    """How often it arrived early and waited again."""
    paused_ms: int = 0
    """Remaining wait after a pause outside the delay queues."""
    paused_at_ms: int = 0
    """When the last pause began."""


def delay(message: Message, delay_ms: int, due_ms: int, *, by_clock: bool = False) -> Message:
    """Return the message that waits `delay_ms` in the broker. With `by_clock` it is due at `due_ms`."""
    return _delayed_copy(Delayed(message, due_ms, by_clock), *way_in(delay_ms))


def wait_again(delayed: Delayed, wait_ms: int) -> Message:
    """Return the message that waits in the delay queues for this time, without earlier deaths there."""
    return _delayed_copy(replace(delayed, paused_ms=0), *way_in(wait_ms))


def pause(delayed: Delayed, exchange: str, routing_key: str) -> Message:
    """Return the message that waits in a queue other than the delay queues."""
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
        # Add them one after another. Next to the table, the second header of a name would replace
        # the first.
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
    """Whether the value cannot be nested two levels deeper, as the table of `DELAY` requires."""
    return nests_deeper(value, MAX_DEPTH - 2)


def _deep_headers(headers: Headers) -> dict[str, FieldValue]:
    """A producer's headers that wait beside `DELAY`."""
    return {
        name: value for name, value in headers.items() if _is_deep(value) and not is_protected(name)
    }


def _further_in(value: FieldValue) -> FurtherHeaders:
    """Read alternating names and values, as `_waiting` writes them. Other values give an empty
    result.
    """
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
    """Return an unpublished message of `delay` with the wait that remains now."""
    delayed = read_delayed(message)
    if delayed is None:
        return message
    left_ms = max(0, delayed.due_ms - math.floor(now * 1000))
    return wait_again(delayed, left_ms)


def read_delayed(delivery: Delivery | Message) -> Delayed | None:
    """Return the delayed message, or None if the message was not delayed by `delay`."""
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
    """Return the remaining wait of a message in the queue of due messages in ms, or 0 if it is due.

    A message from a retry queue was due before, unless it was paused by this module.
    """
    if delayed.by_clock:
        return max(0, delayed.due_ms - now_ms)
    if not is_from_level(delivery.exchange):
        return delayed.paused_ms
    passed = _passed_queues(delivery)
    asked = levels_of(delivery.routing_key)
    return sum(wait_ms for queue, wait_ms in asked.items() if queue not in passed)


def is_shortened(delivery: Delivery) -> bool:
    """Whether the broker released the message early in one of the levels after the first.

    The times in `x-death` are whole seconds of the broker's clock.
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
    """Return the delay queues of the message, each with the second in which the message left it."""
    return {
        death.queue: death.time
        for death in deaths(delivery.properties.headers)
        if death.reason == "expired"
    }
