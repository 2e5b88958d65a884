"""The queues in which delayed messages wait: one for each power of two seconds, largest first.

A message that is due in 13 seconds (8 + 4 + 1) waits in the queues of 8, of 4 and of 1 second. Its
routing key is the number of seconds in binary, `1.0.1.1`, the ones first: every level has an exchange
that sends a message into the level's queue if its digit is 1; what is not wanted there goes on to its
alternate exchange, the next lower level.
A queue holds messages of one wait alone, so none waits behind another, and whatever the delay, the
broker keeps one time to live for each queue and no timer for each message.

The broker moves a message from queue to queue at least once. It meets each queue at most once, which
no broker takes for a cycle, as long as it enters without deaths of an earlier time.
"""

from __future__ import annotations

from dataclasses import replace

from hopback.topology.durations import Duration, parse_wait_ms
from hopback.topology.expand import (
    NO_DELIVERY_LIMIT,
    at_least_once,
    dead_lettering,
    hardened_queues,
    recommended_plan,
)
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, QueueType, Topology

DUE = "hopback.delay.due"
"""The queue of what is due: applications with delays send it on from there."""

LONGEST_DELAY = "30d"
"""What can wait unless more is asked for: reminders of a month, in 22 queues."""

_LEVEL = "hopback.delay.level-"

_MOST_LEVELS = 28
"""Of so many seconds in binary the largest is more than four years; ten years need one more."""

_RETRY_MS = (1_000, 30_000, 300_000, 1_800_000)
"""When a message that is due cannot be sent on: soon, for a queue that is being made just now; then as
failed messages of any queue do, until half an hour after which somebody has to look."""


def level_count(longest: Duration = LONGEST_DELAY) -> int:
    """How many levels hold a delay of this length; ValueError for one that RabbitMQ has no time for."""
    return max(1, -(-parse_wait_ms(longest) // 1000)).bit_length()


def delay_topology(longest: Duration = LONGEST_DELAY) -> Topology:
    """Exchanges and queues that hold messages for up to `longest`, and the queue of what is due.

    A longer one later only adds levels.
    """
    levels = range(level_count(longest))
    plan = recommended_plan(DUE, tiers_ms=_RETRY_MS)
    waiting = (
        at_least_once(_name(level), dead_lettering(_name(level - 1), "", ttl_ms=1000 << level))
        for level in levels
    )
    # Whatever a level does not want goes on below, down to what is due: nothing is ever unroutable here.
    ways = (
        Exchange(
            _name(level), ExchangeType.TOPIC, arguments={"alternate-exchange": _name(level - 1)}
        )
        for level in levels
    )
    return Topology(
        name="delays",
        exchanges=(Exchange(DUE, ExchangeType.FANOUT), *ways),
        queues=(*waiting, *hardened_queues(plan)),
        bindings=(
            Binding(DUE, DUE),
            *(Binding(_name(level), _name(level), "*." * level + "1.#") for level in levels),
        ),
        plans=(plan,),
        unconsumed=frozenset(map(_name, levels)),
    )


def way_in(delay_ms: int) -> tuple[str, str]:
    """The exchange and the routing key that make a message wait so long, never less."""
    seconds = -(-delay_ms // 1000)
    if seconds <= 0:
        return "", DUE
    digits = f"{seconds:b}"
    return _name(len(digits) - 1), ".".join(reversed(digits))


def asked_levels(routing_key: str) -> dict[str, int]:
    """The queues in which a message with this routing key waits, each with its milliseconds."""
    return {
        _name(level): 1000 << level
        for level, digit in enumerate(routing_key.split("."))
        if digit == "1"
    }


def came_by_ladder(exchange: str) -> bool:
    """Whether a message in the queue of due messages came there by the levels, not by a retry queue."""
    return exchange == DUE or is_delay_level(exchange)


def longest_delay_ms(topology: Topology) -> int:
    """How long the queues of delays of a topology can hold a message; 0 if it has none."""
    levels = sum(is_delay_level(exchange.name) for exchange in topology.exchanges)
    return ((1 << levels) - 1) * 1000


def without_delay_levels(topology: Topology) -> Topology:
    """The topology as a map shows it, where the levels would stand between everything else."""
    return replace(
        topology,
        exchanges=tuple(each for each in topology.exchanges if not is_delay_level(each.name)),
        queues=tuple(each for each in topology.queues if not is_delay_level(each.name)),
        bindings=tuple(each for each in topology.bindings if not is_delay_level(each.source)),
    )


def is_delay_level(name: str) -> bool:
    """Whether an exchange or a queue of this name is one of a level."""
    return name.startswith(_LEVEL)


def delay_level_names(highest: str) -> tuple[str, ...]:
    """The names of all levels up to that one, the shortest first; none if it is no level."""
    number = highest.removeprefix(_LEVEL)
    if not is_delay_level(highest) or not (number.isascii() and number.isdecimal()):
        return ()
    return tuple(map(_name, range(min(int(number), _MOST_LEVELS - 1) + 1)))


def _name(level: int) -> str:
    return f"{_LEVEL}{level:02}" if level >= 0 else DUE


_SCHEDULE = ".schedule"


def schedule_queue_name(queue: str) -> str:
    """The name of the queue that keeps what the periodic messages for `queue` have reached."""
    return queue + _SCHEDULE


def scheduled_queue(name: str) -> str | None:
    """The queue whose periodic messages a queue of this name may keep; None if by its name it is none."""
    return name.removesuffix(_SCHEDULE) if name.endswith(_SCHEDULE) else None


def schedule_queue(queue: str) -> Queue:
    """The queue itself. Processes may die as often as they like: nothing removes its message."""
    return Queue(
        schedule_queue_name(queue),
        QueueType.QUORUM,
        arguments={
            "x-single-active-consumer": True,
            "x-delivery-limit": NO_DELIVERY_LIMIT,
        },
    )
