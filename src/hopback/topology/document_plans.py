"""Reading failure plans that are written out in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.durations import format_duration
from hopback.topology.located import Located
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Stamp,
    Tier,
)

if TYPE_CHECKING:
    from hopback.topology.located import Table

__all__ = ["read_plan"]


def read_plan(queue: str, place: Located) -> Plan:
    """The plan of this queue."""
    table = place.table()
    parking = table.need("parking", _parking, Parking("", Leave.PUBLISH, "", ""), "a table")
    plan = Plan(
        queue=queue,
        attempts=table.need("attempts", Located.positive, 1, "how often the handler may run"),
        tiers=tuple(_tier(item) for item in table.items("tiers")),
        leave=table.read("leave", _leave, Leave.PUBLISH),
        returns=table.read("returns", lambda inner: inner.option(Return), Return.QUEUE),
        parking=parking,
        count=table.read("count", lambda inner: inner.option(Count), Count.HEADER),
        redrive=table.read("redrive", lambda inner: _redrive(inner, queue), Redrive("", queue)),
        count_header=table.read("count_header", Located.text, None),
        snooze=table.read("snooze", _snooze, None),
        snooze_exhausts=table.read("snooze_exhausts", Located.flag, False),
        retry_stamps=_stamps(table, "retry_stamps"),
        park_stamps=_stamps(table, "park_stamps"),
    )
    table.close()
    return plan


def _leave(place: Located) -> Leave:
    return place.option(Leave)


def _parking(place: Located) -> Parking:
    table = place.table()
    queue = table.need("queue", Located.text, "", "the name of the dead-letter queue")
    parking = Parking(
        queue,
        table.read("by", _leave, Leave.PUBLISH),
        table.read("exchange", Located.text, ""),
        table.read("key", Located.text, queue),
    )
    table.close()
    return parking


def _redrive(place: Located, queue: str) -> Redrive:
    table = place.table()
    redrive = Redrive(
        table.read("exchange", Located.text, ""),
        table.read("key", Located.text, queue),
        table.read("reset", Located.flag, True),
        table.read("keep_deaths", Located.flag, False),
    )
    table.close()
    return redrive


def _snooze(place: Located) -> LocalWait | None:
    table = place.table()
    usual = LocalWait()
    wait = LocalWait(
        table.read("min", Located.duration_ms, usual.min_ms),
        table.read("max", Located.duration_ms, usual.max_ms),
    )
    table.close()
    return wait


def _tier(place: Located) -> Tier:
    table = place.table()
    delay_ms = table.need("delay", Located.duration_ms, 0, "a duration like 30s")
    tier = Tier(
        table.read("name", Located.text, format_duration(delay_ms)),
        delay_ms,
        tuple(_route(item) for item in table.items("routes")),
    )
    table.close()
    return tier


def _route(place: Located) -> Route:
    table = place.table()
    queue = table.need("queue", Located.text, "", "the name of the retry queue")
    route = Route(
        table.read("exchange", Located.text, ""),
        table.read("key", Located.text, queue),
        queue,
        table.read("pattern", Located.text, "#"),
    )
    table.close()
    return route


def _stamps(table: Table, key: str) -> tuple[Stamp, ...]:
    return tuple(_stamp(item) for item in table.items(key))


def _stamp(place: Located) -> Stamp:
    table = place.table()
    facts = ", ".join(Fact)
    stamp = Stamp(
        table.need("header", Located.text, "", "the name of a header"),
        table.need("fact", lambda inner: inner.option(Fact), Fact.NOW, f"one of {facts}"),
        table.read("once", Located.flag, False),
    )
    table.close()
    return stamp
