"""Topologies as data: the model, failure plans, files, checks, diffs, diagrams.

The names below are the package's front door. Each is loaded when it is first asked for, so that
importing one module of the package does not load them all. The functions `check` and `diff` are
reached through their modules, whose names they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.topology.definitions import read_definitions, write_definitions
    from hopback.topology.diagram import draw_flow, draw_sequence, draw_states
    from hopback.topology.diff import Conflict, Diff, DiffEntry, Difference, Kind
    from hopback.topology.document import from_document, read_toml, to_document, write_toml
    from hopback.topology.durations import format_duration, parse_duration_ms
    from hopback.topology.expand import hardened_queues, recommended_plan
    from hopback.topology.feed import Feed
    from hopback.topology.hazards.rule import Finding, Severity
    from hopback.topology.model import (
        Binding,
        Exchange,
        ExchangeType,
        Policy,
        Queue,
        QueueType,
        Topology,
    )
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
    from hopback.topology.roles import QueueRole, queue_roles
    from hopback.topology.table import write_table
    from hopback.topology.validate import problems
    from hopback.topology.wording import plan_in_words

__all__ = [
    "Binding",
    "Conflict",
    "Count",
    "Diff",
    "DiffEntry",
    "Difference",
    "Exchange",
    "ExchangeType",
    "Fact",
    "Feed",
    "Finding",
    "Kind",
    "Leave",
    "LocalWait",
    "Parking",
    "Plan",
    "Policy",
    "Queue",
    "QueueRole",
    "QueueType",
    "Redrive",
    "Return",
    "Route",
    "Severity",
    "Stamp",
    "Tier",
    "Topology",
    "draw_flow",
    "draw_sequence",
    "draw_states",
    "format_duration",
    "from_document",
    "hardened_queues",
    "parse_duration_ms",
    "plan_in_words",
    "problems",
    "queue_roles",
    "read_definitions",
    "read_toml",
    "recommended_plan",
    "to_document",
    "write_definitions",
    "write_table",
    "write_toml",
]

_HOMES = {
    "hopback.topology.hazards.rule": ("Finding", "Severity"),
    "hopback.topology.definitions": ("read_definitions", "write_definitions"),
    "hopback.topology.diagram": ("draw_flow", "draw_sequence", "draw_states"),
    "hopback.topology.diff": ("Conflict", "Diff", "DiffEntry", "Difference", "Kind"),
    "hopback.topology.document": ("from_document", "read_toml", "to_document", "write_toml"),
    "hopback.topology.durations": ("format_duration", "parse_duration_ms"),
    "hopback.topology.expand": ("hardened_queues", "recommended_plan"),
    "hopback.topology.feed": ("Feed",),
    "hopback.topology.model": (
        "Binding",
        "Exchange",
        "ExchangeType",
        "Policy",
        "Queue",
        "QueueType",
        "Topology",
    ),
    "hopback.topology.plan": (
        "Count",
        "Fact",
        "Leave",
        "LocalWait",
        "Parking",
        "Plan",
        "Redrive",
        "Return",
        "Route",
        "Stamp",
        "Tier",
    ),
    "hopback.topology.roles": ("QueueRole", "queue_roles"),
    "hopback.topology.table": ("write_table",),
    "hopback.topology.validate": ("problems",),
    "hopback.topology.wording": ("plan_in_words",),
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
