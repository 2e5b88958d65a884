"""Topologies as data: the model, failure plans, files, checks, diffs, diagrams.

The names below are the package's front door. Each is loaded when it is first asked for, so that
importing one module of the package does not load them all. The functions `check` and `diff` are
reached through their modules, whose names they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.topology.definitions import (
        read_definitions as read_definitions,
        write_definitions as write_definitions,
    )
    from hopback.topology.diagram import (
        draw_flow as draw_flow,
        draw_sequence as draw_sequence,
        draw_states as draw_states,
    )
    from hopback.topology.diff import (
        Conflict as Conflict,
        Diff as Diff,
        DiffEntry as DiffEntry,
        Difference as Difference,
        Kind as Kind,
    )
    from hopback.topology.document import (
        from_document as from_document,
        read_toml as read_toml,
        to_document as to_document,
        write_toml as write_toml,
    )
    from hopback.topology.durations import (
        format_duration as format_duration,
        parse_duration_ms as parse_duration_ms,
    )
    from hopback.topology.expand import (
        hardened_queues as hardened_queues,
        recommended_plan as recommended_plan,
    )
    from hopback.topology.feed import Feed as Feed
    from hopback.topology.hazards.rule import Finding as Finding, Severity as Severity
    from hopback.topology.model import (
        Binding as Binding,
        Exchange as Exchange,
        ExchangeType as ExchangeType,
        Policy as Policy,
        Queue as Queue,
        QueueType as QueueType,
        Topology as Topology,
    )
    from hopback.topology.plan import (
        Count as Count,
        Fact as Fact,
        Leave as Leave,
        LocalWait as LocalWait,
        Parking as Parking,
        Plan as Plan,
        Redrive as Redrive,
        Return as Return,
        Route as Route,
        Stamp as Stamp,
        Tier as Tier,
    )
    from hopback.topology.roles import QueueRole as QueueRole, queue_roles as queue_roles
    from hopback.topology.table import write_table as write_table
    from hopback.topology.validate import problems as problems
    from hopback.topology.wording import plan_in_words as plan_in_words

_HOMES = {
    "hopback.topology.definitions": "read_definitions write_definitions",
    "hopback.topology.diagram": "draw_flow draw_sequence draw_states",
    "hopback.topology.diff": "Conflict Diff DiffEntry Difference Kind",
    "hopback.topology.document": "from_document read_toml to_document write_toml",
    "hopback.topology.durations": "format_duration parse_duration_ms",
    "hopback.topology.expand": "hardened_queues recommended_plan",
    "hopback.topology.feed": "Feed",
    "hopback.topology.hazards.rule": "Finding Severity",
    "hopback.topology.model": "Binding Exchange ExchangeType Policy Queue QueueType Topology",
    "hopback.topology.plan": "Count Fact Leave LocalWait Parking Plan Redrive Return Route Stamp Tier",
    "hopback.topology.roles": "QueueRole queue_roles",
    "hopback.topology.table": "write_table",
    "hopback.topology.validate": "problems",
    "hopback.topology.wording": "plan_in_words",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
