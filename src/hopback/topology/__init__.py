"""Topologies, failure plans and topology files.

Names are loaded lazily. The functions `check` and `diff` are not exported, because their modules
have the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.topology.definitions import (
        read_definitions as read_definitions,
        write_definitions as write_definitions,
    )
    from hopback.topology.document import read_toml as read_toml, write_toml as write_toml
    from hopback.topology.hazards.rule import Finding as Finding, Severity as Severity
    from hopback.topology.model import (
        Binding as Binding,
        Exchange as Exchange,
        ExchangeType as ExchangeType,
        Policy as Policy,
        Queue as Queue,
        QueueType as QueueType,
        Topology as Topology,
        join_topologies as join_topologies,
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

_HOMES = {
    "hopback.topology.definitions": "read_definitions write_definitions",
    "hopback.topology.document": "read_toml write_toml",
    "hopback.topology.hazards.rule": "Finding Severity",
    "hopback.topology.model": "Binding Exchange ExchangeType Policy Queue QueueType Topology join_topologies",
    "hopback.topology.plan": "Count Fact Leave LocalWait Parking Plan Redrive Return Route Stamp Tier",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
