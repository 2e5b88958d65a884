"""Writing a topology document: everything said in full, or as people would, in short forms with
bindings under what they feed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.arguments import encode, encode_table
from hopback.topology.durations import format_duration
from hopback.topology.expand import hardened_queues
from hopback.topology.recommended_form import write_recommended

if TYPE_CHECKING:
    from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology
    from hopback.topology.plan import Plan, Stamp, Tier

__all__ = [
    "write_binding",
    "write_exchange",
    "write_explicit",
    "write_plan",
    "write_queue",
    "write_short",
]


_Tables = dict[str, dict[str, object]]


def write_short(topology: Topology, *, nested: bool) -> dict[str, object]:
    """The document in short form, its bindings `nested` or in a list of their own.

    It need not mean the same: order can be lost, so whoever writes it reads it back first.
    """
    # The queues that have a short form.
    forms = ((plan.queue, write_recommended(plan, topology)) for plan in topology.plans)
    short = {queue: form for queue, form in forms if form is not None}
    exchanges = {item.name: write_exchange(item, terse=True) for item in topology.exchanges}
    queues = _queues(topology, short)
    for item in topology.bindings if nested else ():
        _nest(item, exchanges if item.to_exchange else queues)
    whole = write_explicit(topology, terse=True) | {
        "exchanges": exchanges,
        "queues": queues,
        "plans": {
            plan.queue: write_plan(plan, terse=True)
            for plan in topology.plans
            if plan.queue not in short
        },
    }
    return {
        key: value for key, value in whole.items() if value and not (nested and key == "bindings")
    }


def _queues(topology: Topology, short: _Tables) -> _Tables:
    """All queues but those that a short form stands for."""
    implied = {
        queue.name
        for plan in topology.plans
        if plan.queue in short
        for queue in hardened_queues(plan)
    }
    return {
        queue.name: short.get(queue.name) or write_queue(queue, topology, terse=True)
        for queue in topology.queues
        if queue.name in short or queue.name not in implied
    }


def _nest(binding: Binding, tables: _Tables) -> None:
    """Put a binding under what it feeds; one that feeds something implied has no place there."""
    written = write_binding(binding, terse=True)
    home = tables.get(binding.destination)
    if home is not None:
        here = {key: value for key, value in written.items() if key not in ("queue", "to_exchange")}
        already = home.get("bindings")
        home["bindings"] = [*(already if isinstance(already, list) else []), here]


_Field = tuple[str, object, object]


def write_explicit(topology: Topology, terse: bool) -> dict[str, object]:
    """The whole document; `terse` leaves out what is the default anyway."""
    return _fields(
        terse,
        ("name", topology.name, None),
        ("exchanges", {item.name: write_exchange(item, terse) for item in topology.exchanges}, {}),
        ("queues", {item.name: write_queue(item, topology, terse) for item in topology.queues}, {}),
        ("bindings", [write_binding(item, terse) for item in topology.bindings], []),
        ("plans", {plan.queue: write_plan(plan, terse) for plan in topology.plans}, {}),
        ("policies", {item.name: _policy(item, terse) for item in topology.policies}, {}),
        ("foreign", {key: encode(value) for key, value in topology.foreign.items()}, {}),  # type: ignore[arg-type]
    )


def _fields(terse: bool, *fields: _Field) -> dict[str, object]:
    """The fields that are there; None is never written, because TOML has no word for it."""
    return {
        key: value
        for key, value, default in fields
        if value is not None and not (terse and value == default)
    }


def write_exchange(exchange: Exchange, terse: bool) -> dict[str, object]:
    """The table of an exchange."""
    return _fields(
        terse,
        ("type", str(exchange.type), None),
        ("durable", exchange.durable, True),
        ("auto_delete", exchange.auto_delete, False),
        ("internal", exchange.internal, False),
        ("arguments", encode_table(exchange.arguments), {}),
    )


def write_queue(queue: Queue, topology: Topology, terse: bool) -> dict[str, object]:
    """The table of a queue as it is."""
    unconsumed = queue.name in topology.unconsumed
    silent = unconsumed or topology.plan(queue.name) is not None
    return _fields(
        terse,
        ("pattern", "none", "none" if silent else None),
        ("consumers", False if unconsumed else None, None),
        ("type", str(queue.type), None),
        ("durable", queue.durable, True),
        ("exclusive", queue.exclusive, False),
        ("auto_delete", queue.auto_delete, False),
        ("arguments", encode_table(queue.arguments), {}),
    )


def write_binding(binding: Binding, terse: bool) -> dict[str, object]:
    """The table of a binding."""
    return _fields(
        terse,
        ("exchange", binding.source, None),
        ("to_exchange" if binding.to_exchange else "queue", binding.destination, None),
        ("key", binding.routing_key, ""),
        ("arguments", encode_table(binding.arguments), {}),
    )


def _policy(policy: Policy, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("pattern", policy.pattern, None),
        ("apply_to", policy.apply_to, "all"),
        ("priority", policy.priority, 0),
        ("definition", encode_table(policy.definition), None),
    )


def write_plan(plan: Plan, terse: bool) -> dict[str, object]:
    """The table of a plan in full."""
    parking, redrive, wait = plan.parking, plan.redrive, plan.snooze
    return _fields(
        terse,
        ("attempts", plan.attempts, None),
        ("leave", str(plan.leave), None),
        ("returns", str(plan.returns), None),
        ("count", str(plan.count), None),
        ("count_header", plan.count_header, None),
        ("snooze_exhausts", plan.snooze_exhausts, False),
        ("snooze", wait and {"min": _duration(wait.min_ms), "max": _duration(wait.max_ms)}, None),
        (
            "parking",
            {
                "queue": parking.queue,
                "by": str(parking.by),
                "exchange": parking.exchange,
                "key": parking.routing_key,
            },
            None,
        ),
        (
            "redrive",
            {
                "exchange": redrive.exchange,
                "key": redrive.routing_key,
                "reset": redrive.reset,
                "keep_deaths": redrive.keep_deaths,
            },
            None,
        ),
        ("retry_stamps", [_stamp(stamp, terse) for stamp in plan.retry_stamps], []),
        ("park_stamps", [_stamp(stamp, terse) for stamp in plan.park_stamps], []),
        ("tiers", [_tier(tier, terse) for tier in plan.tiers], []),
    )


def _stamp(stamp: Stamp, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("header", stamp.header, None),
        ("fact", str(stamp.fact), None),
        ("once", stamp.once, False),
    )


def _tier(tier: Tier, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("name", tier.name, None),
        ("delay", _duration(tier.delay_ms), None),
        (
            "routes",
            [
                _fields(
                    terse,
                    ("exchange", route.exchange, None),
                    ("key", route.routing_key, None),
                    ("queue", route.queue, None),
                    ("pattern", route.pattern, "#"),
                )
                for route in tier.routes
            ],
            None,
        ),
    )


def _duration(duration_ms: int) -> str:
    return format_duration(duration_ms)
