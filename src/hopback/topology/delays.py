"""Queues for delayed messages.

There is one delay queue for each power of two seconds. A message with a delay of 13 seconds (8 + 4
+ 1) passes through the queues with 8, 4 and 1 seconds. Its routing key is the delay in binary,
least significant digit first (`1.0.1.1`). Each level has a topic exchange. If the digit of the
level is 1, the exchange routes the message to the queue of the level. Otherwise the alternate
exchange passes the message to the next lower level.

All messages in a queue have the same TTL, so they never have to wait for each other.

The queues use at-least-once dead-lettering. A message enters each queue only once, so RabbitMQ does
not detect a cycle unless the message has earlier deaths.
"""

from __future__ import annotations

from dataclasses import replace

from hopback.durations import Duration, parse_wait_ms
from hopback.topology.expand import (
    NO_DELIVERY_LIMIT,
    at_least_once,
    dead_lettering,
    harden_queues,
    recommend_plan,
)
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, QueueType, Topology

DUE = "hopback.delay.due"
"""The queue of messages that are due. Applications publish them to their destinations."""

LONGEST_DELAY = "30d"
"""The default maximum delay. It needs 22 queues."""

_LEVEL = "hopback.delay.level-"

_MOST_LEVELS = 28
"""Maximum number of levels. 28 levels are more than eight years. RabbitMQ's limit of ten years
would need another level.
"""

_RETRY_MS = (1_000, 30_000, 300_000, 1_800_000)
"""Retry delays for due messages that could not be published. The first one is short, because the
queue may be declared soon. After the last one the message is dead-lettered.
"""


def level_count(longest: Duration = LONGEST_DELAY) -> int:
    """Return the number of levels for a maximum delay. Raises ValueError if it is too long."""
    return max(1, -(-parse_wait_ms(longest) // 1000)).bit_length()


def delay_topology(longest: Duration = LONGEST_DELAY) -> Topology:
    """Return the exchanges and queues for delays up to `longest`.

    Increasing `longest` only adds exchanges and queues.
    """
    levels = range(level_count(longest))
    plan = recommend_plan(DUE, tiers_ms=_RETRY_MS)
    waiting = (
        at_least_once(_name(level), dead_lettering(_name(level - 1), "", ttl_ms=1000 << level))
        for level in levels
    )
    # Each level either routes a message or passes it on, so no message is unroutable.
    ways = (
        Exchange(
            _name(level), ExchangeType.TOPIC, arguments={"alternate-exchange": _name(level - 1)}
        )
        for level in levels
    )
    return Topology(
        name="delays",
        exchanges=(Exchange(DUE, ExchangeType.FANOUT), *ways),
        queues=(*waiting, *harden_queues(plan)),
        bindings=(
            Binding(DUE, DUE),
            *(Binding(_name(level), _name(level), "*." * level + "1.#") for level in levels),
        ),
        plans=(plan,),
        unconsumed=frozenset(map(_name, levels)),
    )


def way_in(delay_ms: int) -> tuple[str, str]:
    """Return the exchange and routing key for a delay. The delay is rounded up to full seconds."""
    seconds = -(-delay_ms // 1000)
    if seconds <= 0:
        return "", DUE
    digits = f"{seconds:b}"
    return _name(len(digits) - 1), ".".join(reversed(digits))


def levels_of(routing_key: str) -> dict[str, int]:
    """Return the delay queues for a routing key, with their TTL in milliseconds."""
    return {
        _name(level): 1000 << level
        for level, digit in enumerate(routing_key.split("."))
        if digit == "1"
    }


def is_from_level(exchange: str) -> bool:
    """Return True if a due message came from a delay queue and not from a retry queue."""
    return exchange == DUE or is_delay_level(exchange)


def longest_delay_ms(topology: Topology) -> int:
    """Return the longest delay supported by the topology, or 0 if it does not have delay queues."""
    levels = sum(is_delay_level(exchange.name) for exchange in topology.exchanges)
    return ((1 << levels) - 1) * 1000


def without_delay_levels(topology: Topology) -> Topology:
    """Remove the delay queues. Diagrams show them as a single node."""
    return replace(
        topology,
        exchanges=tuple(each for each in topology.exchanges if not is_delay_level(each.name)),
        queues=tuple(each for each in topology.queues if not is_delay_level(each.name)),
        bindings=tuple(each for each in topology.bindings if not is_delay_level(each.source)),
    )


def is_delay_queue(name: str) -> bool:
    """Return True if the queue is used for delays, including retries of due messages."""
    return is_delay_level(name) or name == DUE or name.startswith(f"{DUE}.")


def is_delay_level(name: str) -> bool:
    return name.startswith(_LEVEL)


def delay_level_names(highest: str) -> tuple[str, ...]:
    """Return the names of all levels up to `highest`, or an empty tuple if it is not a level."""
    number = highest.removeprefix(_LEVEL)
    if not is_delay_level(highest) or not (number.isascii() and number.isdecimal()):
        return ()
    return tuple(map(_name, range(min(int(number), _MOST_LEVELS - 1) + 1)))


def _name(level: int) -> str:
    return f"{_LEVEL}{level:02}" if level >= 0 else DUE


_SCHEDULE = ".schedule"


def schedule_queue_name(queue: str) -> str:
    """Return the name of the queue that stores the state of periodic messages."""
    return queue + _SCHEDULE


def queue_of_schedule(name: str) -> str | None:
    """Return the queue that a schedule queue belongs to, or None if it is not a schedule queue."""
    return name.removesuffix(_SCHEDULE) if name.endswith(_SCHEDULE) else None


def schedule_queue(queue: str) -> Queue:
    """Return the queue that stores the state of periodic messages.

    Its delivery limit is so high that RabbitMQ never drops the state.
    """
    return Queue(
        schedule_queue_name(queue),
        QueueType.QUORUM,
        arguments={
            "x-single-active-consumer": True,
            "x-delivery-limit": NO_DELIVERY_LIMIT,
        },
    )
