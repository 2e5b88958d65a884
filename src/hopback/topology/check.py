"""Check a topology for configurations that can lose messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import InvalidDeclaration, Problem
from hopback.text import did_you_mean
from hopback.topology.hazards import RULES
from hopback.topology.hazards.analysis import Analysis
from hopback.topology.hazards.rule import Finding, report

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion


def require_rule(name: str, *, where: str) -> None:
    """Raise InvalidDeclaration unless `check` has a rule with this name."""
    known = [rule.name for rule in RULES]
    if name not in known:
        got = f"{name!r}{did_you_mean(name, known)}"
        problem = Problem("accept", "a rule that `hopback topology check` reports", got)
        raise InvalidDeclaration((problem,), where=where)


def check(topology: Topology, version: BrokerVersion | None = None) -> tuple[Finding, ...]:
    """Check a topology and return the findings, most severe first.

    Policies are taken into account. If the topology does not have plans, for example because it was
    read from a broker, roles of queues are derived from their arguments.

    Args:
        topology: The topology to check.
        version: The RabbitMQ version. If it is None, all versions are checked, and a finding has its
            highest severity among them.
    """
    analysis = Analysis(topology, version)
    found = {finding for rule in RULES for finding in report(rule, analysis)}
    return tuple(
        sorted(
            found, key=lambda each: (each.severity.rank, each.rule, each.place, each.explanation)
        )
    )
