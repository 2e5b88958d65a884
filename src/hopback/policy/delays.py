"""A message on its way through the queues of delays: what it is, kept in one header until it is due.

While it waits, nothing of it may mean anything to the broker: an expiration would end the wait early, CC
and BCC would route it elsewhere, deaths of an earlier time would make a broker up to 3.12 take the way
for a cycle. So all of that, and where it is to go, travels inside one table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.headers.names import DELAY, is_broker_count, is_death
from hopback.message import Message
from hopback.topology.delays import way_in

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.message import Delivery

__all__ = ["Delayed", "delay", "delay_until_due", "read_delayed"]


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message that waited, as it is to go on, and the moment it was to go (milliseconds, 1970)."""

    message: Message
    due_ms: int


def delay(message: Message, delay_ms: int, due_ms: int) -> Message:
    """The message so that it waits `delay_ms` in the broker; `due_ms` is for those who look at it."""
    properties = message.properties
    kept: dict[str, FieldValue] = {
        name: value
        for name, value in properties.headers.items()
        if not (is_death(name) or is_broker_count(name))
    }
    waiting: dict[str, FieldValue] = {
        "exchange": message.exchange,
        "routing-key": message.routing_key,
        "mandatory": message.mandatory,
        "due": due_ms,
        "headers": kept,
    }
    if properties.expiration is not None:
        waiting["expiration"] = properties.expiration
    exchange, routing_key = way_in(delay_ms)
    plain = replace(properties, headers={DELAY: waiting}, expiration=None, delivery_mode=2)
    return Message(exchange, routing_key, message.body, plain)


def delay_until_due(message: Message, now: float) -> Message:
    """A message that `delay` made and that nobody has published yet, with the wait that is left now."""
    delayed = read_delayed(message)
    if delayed is None:
        return message
    left_ms = max(0, delayed.due_ms - math.floor(now * 1000))
    return delay(delayed.message, left_ms, delayed.due_ms)


def read_delayed(delivery: Delivery | Message) -> Delayed | None:
    """What it is that waits or waited; None if it is no message that was delayed by `delay`."""
    found = delivery.properties.headers.get(DELAY)
    if not isinstance(found, Mapping):
        return None
    exchange, routing_key = found.get("exchange"), found.get("routing-key")
    mandatory, due_ms = found.get("mandatory"), found.get("due")
    headers, expiration = found.get("headers"), found.get("expiration")
    if not (
        isinstance(exchange, str)
        and isinstance(routing_key, str)
        and isinstance(mandatory, bool)
        and isinstance(due_ms, int)
        and isinstance(headers, Mapping)
        and isinstance(expiration, str | None)
    ):
        return None
    properties = replace(delivery.properties, headers=headers, expiration=expiration)
    return Delayed(Message(exchange, routing_key, delivery.body, properties, mandatory), due_ms)
