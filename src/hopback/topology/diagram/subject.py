"""Which plan a diagram of one queue's life is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology, Problem
from hopback.topology.wording import did_you_mean, either, shown

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["subject"]


def subject(topology: Topology, queue: str | None) -> Plan:
    """The plan of this queue, or the first plan; InvalidTopology names the queues that have one."""
    plan = next((plan for plan in topology.plans if queue in (None, plan.queue)), None)
    if plan is not None:
        return plan
    known = [plan.queue for plan in topology.plans]
    expected = either(known) if known else "a topology with a failure plan"
    got = "none" if queue is None else shown(queue) + did_you_mean(queue, known)
    raise InvalidTopology((Problem("queue", expected, got),), where=topology.name)
