"""The queues in which delayed messages wait: one for each power of two seconds, largest first.

A message that is due in 13 seconds (8 + 4 + 1) waits in the queues of 8, 4 and 1 seconds. Its routing
key is the number of seconds in binary, `1.0.1.1`, least significant digit first. Each level has a topic
exchange. It routes a message into the level's queue if the level's digit is 1. Otherwise the message
takes the alternate exchange to the next lower level.
All messages of a queue have the same wait, so none waits behind another. The broker needs one time to
live per queue and no timer per message.

The broker moves a message from queue to queue at least once. A message enters each queue at most once.
The broker therefore does not detect a cycle, provided that the message enters without earlier deaths.
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
"""The queue of due messages. Applications with delays publish them to their destinations."""

LONGEST_DELAY = "30d"
"""The default maximum: reminders of a month, in 22 queues."""

_LEVEL = "hopback.delay.level-"

_MOST_LEVELS = 28
"""28 binary digits of seconds are more than eight years. RabbitMQ's maximum of ten years needs one more."""

_RETRY_MS = (1_000, 30_000, 300_000, 1_800_000)
"""Waits before a due message is published again after a failure. The first is short, because its queue
may be about to be declared. After 30 minutes the message is parked for an operator."""


def level_count(longest: Duration = LONGEST_DELAY) -> int:
    """Number of levels for a delay of this length. ValueError if RabbitMQ has no such time to live."""
    return max(1, -(-parse_wait_ms(longest) // 1000)).bit_length()


def delay_topology(longest: Duration = LONGEST_DELAY) -> Topology:
    """Exchanges and queues that hold messages for up to `longest`, and the queue of due messages.

    A larger `longest` only adds levels.
    """
    levels = range(level_count(longest))
    plan = recommend_plan(DUE, tiers_ms=_RETRY_MS)
    waiting = (
        at_least_once(_name(level), dead_lettering(_name(level - 1), "", ttl_ms=1000 << level))
        for level in levels
    )
    # Each level routes or passes on every message, so none is unroutable.
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
    """Exchange and routing key for a delay of at least `delay_ms`, rounded up to seconds."""
    seconds = -(-delay_ms // 1000)
    if seconds <= 0:
        return "", DUE
    digits = f"{seconds:b}"
    return _name(len(digits) - 1), ".".join(reversed(digits))


def levels_of(routing_key: str) -> dict[str, int]:
    """The queues in which a message with this routing key waits, each with its milliseconds."""
    return {
        _name(level): 1000 << level
        for level, digit in enumerate(routing_key.split("."))
        if digit == "1"
    }


def is_from_level(exchange: str) -> bool:
    """Whether a message in the queue of due messages came there by the levels, not by a retry queue."""
    return exchange == DUE or is_delay_level(exchange)


def longest_delay_ms(topology: Topology) -> int:
    """The longest delay that the topology's delay queues can hold, 0 without delay queues."""
    levels = sum(is_delay_level(exchange.name) for exchange in topology.exchanges)
    return ((1 << levels) - 1) * 1000


def without_delay_levels(topology: Topology) -> Topology:
    """The topology without delay levels, which would fill a diagram."""
    return replace(
        topology,
        exchanges=tuple(each for each in topology.exchanges if not is_delay_level(each.name)),
        queues=tuple(each for each in topology.queues if not is_delay_level(each.name)),
        bindings=tuple(each for each in topology.bindings if not is_delay_level(each.source)),
    )


def is_delay_queue(name: str) -> bool:
    """Whether a queue belongs to the delays: a level, the due messages, or their retries."""
    return is_delay_level(name) or name == DUE or name.startswith(f"{DUE}.")


def is_delay_level(name: str) -> bool:
    """Whether an exchange or a queue of this name is one of a level."""
    return name.startswith(_LEVEL)


def delay_level_names(highest: str) -> tuple[str, ...]:
    """The names of all levels up to `highest`, shortest first. Empty if `highest` is not a level."""
    number = highest.removeprefix(_LEVEL)
    if not is_delay_level(highest) or not (number.isascii() and number.isdecimal()):
        return ()
    return tuple(map(_name, range(min(int(number), _MOST_LEVELS - 1) + 1)))


def _name(level: int) -> str:
    return f"{_LEVEL}{level:02}" if level >= 0 else DUE


_SCHEDULE = ".schedule"


def schedule_queue_name(queue: str) -> str:
    """The name of the queue that stores the state of the periodic messages of `queue`."""
    return queue + _SCHEDULE


def queue_of_schedule(name: str) -> str | None:
    """The queue that a schedule queue of this name belongs to. None if the name is not one."""
    return name.removesuffix(_SCHEDULE) if name.endswith(_SCHEDULE) else None


def schedule_queue(queue: str) -> Queue:
    """The schedule queue. It keeps its message however often a consumer dies."""
    return Queue(
        schedule_queue_name(queue),
        QueueType.QUORUM,
        arguments={
            "x-single-active-consumer": True,
            "x-delivery-limit": NO_DELIVERY_LIMIT,
        },
    )
