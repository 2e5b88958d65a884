"""The short form of a queue: its delays, and Hopback's recommended pattern does the rest."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from hopback.topology.arguments import decode_table
from hopback.topology.durations import format_duration
from hopback.topology.expand import DELIVERY_LIMIT, hardened_queues, recommended_plan
from hopback.topology.model import Queue, QueueType
from hopback.topology.places import Place

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.topology.places import Table
    from hopback.topology.plan import Plan

__all__ = ["Pattern", "read_recommended"]


class Pattern(StrEnum):
    """What is made of a queue in a file."""

    RECOMMENDED = "recommended"
    """The queue, its retry queues, its dead-letter queue and its plan; all quorum."""
    NONE = "none"
    """The queue as it is written, and nothing else."""


def read_recommended(name: str, table: Table) -> tuple[tuple[Queue, ...], Plan | None]:
    """The queues and the plan of a queue in short form; no plan if its delays cannot be read."""
    tiers_ms = _tiers_ms(table)
    attempts = table.read("attempts", Place.positive, None)
    delivery_limit = table.read("delivery_limit", Place.positive, DELIVERY_LIMIT)
    arguments: dict[str, FieldValue] = table.read("arguments", decode_table, {})
    _only_quorum(table)
    if tiers_ms is None or not name:
        return (Queue(name, QueueType.QUORUM, arguments=arguments),), None
    plan = recommended_plan(name, tiers_ms=tiers_ms, attempts=attempts)
    main, *others = hardened_queues(plan, delivery_limit=delivery_limit)
    _no_overriding(table, main, arguments)
    together = {**main.arguments, **arguments}
    return (replace(main, arguments=together), *others), plan


def _tiers_ms(table: Table) -> tuple[int, ...] | None:
    """The delays, or None if any of them cannot be used."""
    place = table.get("retry")
    if place is None:
        table.place.wrong(
            'what happens when its handler fails: `retry = [{ delay = "30s" }]`, or'
            " `consumers = false` if nothing of ours consumes it",
            "neither",
        )
        return None
    known = len(place.problems)
    tiers_ms = tuple(_delay_ms(item) for item in place.items())
    if not tiers_ms and len(place.problems) == known:
        place.wrong('at least one tier: `[{ delay = "30s" }]`')
    for at, (before, after) in enumerate(pairwise(tiers_ms)):
        _longer(place, at + 1, before, after)
    return tiers_ms if len(place.problems) == known else None


def _delay_ms(place: Place) -> int:
    table = place.table()
    known = len(place.problems)
    delay_ms = table.need("delay", Place.duration_ms, 0, "a duration like 30s")
    if delay_ms == 0 and len(place.problems) == known:
        place.inner("delay", "0s").wrong("a delay longer than nothing", "0s")
    table.close()
    return delay_ms


def _longer(place: Place, at: int, before: int, after: int) -> None:
    if 0 < after <= before:
        longer = f"a delay longer than the tier before it ({format_duration(before)})"
        place.inner(at, None).inner("delay", None).wrong(longer, format_duration(after))


def _only_quorum(table: Table) -> None:
    place = table.get("type")
    if place is not None and place.option(QueueType) is not QueueType.QUORUM:
        place.wrong('"quorum", the type of the recommended pattern (or `pattern = "none"`)')
    for key, only in (("durable", True), ("exclusive", False), ("auto_delete", False)):
        flag = table.get(key)
        if flag is not None and flag.value is not only:
            flag.wrong(f"{str(only).lower()}, as in every recommended queue")


def _no_overriding(table: Table, main: Queue, arguments: dict[str, FieldValue]) -> None:
    """The pattern's own arguments are what keeps messages safe, so they are not up for change."""
    place = table.get("arguments")
    for key in main.arguments.keys() & arguments.keys():
        if place is not None:
            hint = " (use `delivery_limit`)" if key == "x-delivery-limit" else ""
            place.inner(key, arguments[key]).wrong(f"this argument left to the pattern{hint}")
