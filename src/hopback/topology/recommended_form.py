"""The short form of a queue: its delays, and Hopback's recommended pattern does the rest."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology
from hopback.topology.arguments import decode_table, encode_table
from hopback.topology.durations import format_duration
from hopback.topology.expand import DELIVERY_LIMIT, hardened_queues, recommended_plan
from hopback.topology.located import Located
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.topology.located import Table
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["Pattern", "read_recommended", "write_recommended"]


class Pattern(StrEnum):
    """What is made of a queue in a file."""

    RECOMMENDED = "recommended"
    """The queue, its retry queues, its dead-letter queue and its plan; all quorum."""
    NONE = "none"
    """The queue as it is written, and nothing else."""


def read_recommended(name: str, table: Table) -> tuple[tuple[Queue, ...], Plan | None]:
    """The queues and the plan of a queue in short form; no plan if its delays cannot be read."""
    tiers_ms = _tiers_ms(table)
    attempts = table.read("attempts", Located.positive, None)
    delivery_limit = table.read("delivery_limit", Located.positive, DELIVERY_LIMIT)
    arguments: dict[str, FieldValue] = table.read("arguments", decode_table, {})
    place = table.get("type")
    if place is not None and place.option(QueueType) is not QueueType.QUORUM:
        place.wrong('"quorum", the type of the recommended pattern (or `pattern = "none"`)')
    for key, only in (("durable", True), ("exclusive", False), ("auto_delete", False)):
        flag = table.get(key)
        if flag is not None and flag.value is not only:
            flag.wrong(f"{str(only).lower()}, as in every recommended queue")
    if tiers_ms is None or not name:
        return (Queue(name, QueueType.QUORUM, arguments=arguments),), None
    plan = recommended_plan(name, tiers_ms=tiers_ms, attempts=attempts)
    main, *others = hardened_queues(plan, delivery_limit=delivery_limit)
    _no_overriding(table, main, arguments)
    together = {**main.arguments, **arguments}
    return (replace(main, arguments=together), *others), plan


def write_recommended(plan: Plan, topology: Topology) -> dict[str, object] | None:
    """The short form of a queue, if plan and queues are just what it stands for."""
    main = topology.queue(plan.queue)
    limit = main.arguments.get("x-delivery-limit") if main is not None else None
    if main is None or not isinstance(limit, int) or limit < 1 or plan != _recommended(plan):
        return None
    own, *others = hardened_queues(plan, delivery_limit=limit)
    shared = {key: value for key, value in main.arguments.items() if key in own.arguments}
    if replace(main, arguments=shared) != own:
        return None
    if any(topology.queue(queue.name) != queue for queue in others):
        return None
    further = {key: value for key, value in main.arguments.items() if key not in shared}
    fields: dict[str, object] = {
        "retry": [{"delay": format_duration(tier.delay_ms)} for tier in plan.tiers]
    }
    fields |= {"attempts": plan.attempts} if plan.attempts != len(plan.tiers) + 1 else {}
    fields |= {"delivery_limit": int(limit)} if limit != DELIVERY_LIMIT else {}
    return fields | ({"arguments": encode_table(further)} if further else {})


def _recommended(plan: Plan) -> Plan | None:
    """What the recommended plan of the same queue, delays and attempts looks like."""
    tiers_ms = [tier.delay_ms for tier in plan.tiers]
    try:
        return recommended_plan(plan.queue, tiers_ms=tiers_ms, attempts=plan.attempts)
    except InvalidTopology:
        return None


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
    for at, (before, after) in enumerate(pairwise(tiers_ms)):
        if 0 < after < before:
            longer = f"a delay no shorter than the tier before it ({format_duration(before)})"
            place.inner(at + 1, None).inner("delay", None).wrong(longer, format_duration(after))
    return tiers_ms if len(place.problems) == known else None


def _delay_ms(place: Located) -> int:
    table = place.table()
    known = len(place.problems)
    delay_ms = table.need("delay", Located.duration_ms, 0, "a duration like 30s")
    if delay_ms == 0 and len(place.problems) == known:
        place.inner("delay", "0s").wrong("a delay longer than nothing", "0s")
    table.close()
    return delay_ms


def _no_overriding(table: Table, main: Queue, arguments: dict[str, FieldValue]) -> None:
    """The pattern's own arguments are what keeps messages safe, so they are not up for change."""
    place = table.place.inner("arguments", None)
    for key in main.arguments.keys() & arguments.keys():
        hint = " (use `delivery_limit`)" if key == "x-delivery-limit" else ""
        place.inner(key, arguments[key]).wrong(f"this argument left to the pattern{hint}")
