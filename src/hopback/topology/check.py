"""Check a topology for hazards: possible losses, their conditions and remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.hazards import RULES
from hopback.topology.hazards.analysis import Analysis
from hopback.topology.hazards.rule import Finding, report

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion


def check(topology: Topology, version: BrokerVersion | None = None) -> tuple[Finding, ...]:
    """Return all hazards of the topology on a broker of this version, most severe first.

    Without a version, the hazards of all versions are reported, each with its versions and its
    highest severity. Policies are applied as the broker applies them. In a topology without plans,
    such as one read from a live broker, the roles of queues come from their dead-letter arguments.
    """
    analysis = Analysis(topology, version)
    found = {finding for rule in RULES for finding in report(rule, analysis)}
    return tuple(
        sorted(
            found, key=lambda each: (each.severity.rank, each.rule, each.place, each.explanation)
        )
    )
