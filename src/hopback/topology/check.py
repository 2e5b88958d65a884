"""The hazards of a topology as findings: what can be lost, when, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.hazards import RULES
from hopback.topology.hazards.analysis import Analysis
from hopback.topology.hazards.rule import Finding, reported

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion


def check(topology: Topology, version: BrokerVersion | None = None) -> tuple[Finding, ...]:
    """All hazards of the topology on a broker of this version, the gravest first.

    Without a version, what holds on any version is reported, with the versions it holds for and
    the gravest severity among them. Policies count as the broker would apply them. A topology
    without plans, as read from a live broker, is judged by how its queues dead-letter.
    """
    analysis = Analysis(topology, version)
    found = {finding for rule in RULES for finding in reported(rule, analysis)}
    return tuple(
        sorted(
            found, key=lambda each: (each.severity.rank, each.rule, each.place, each.explanation)
        )
    )
