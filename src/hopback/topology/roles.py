"""The part that each queue plays: main, retry, dead-letter, or none that we know of."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.topology.model import Topology

__all__ = ["Role", "queue_roles"]


class Role(StrEnum):
    """What a queue is for."""

    MAIN = "main"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    PLAIN = "plain"


def queue_roles(topology: Topology) -> Mapping[str, Role]:
    """The role of each declared queue, by name.

    Plans say it. Without a plan it shows in the arguments: what has a time to live and a
    dead-letter exchange is a place to wait, and what only receives dead letters a place to rest.
    """
    roles = {queue.name: Role.PLAIN for queue in topology.queues}
    roles |= dict.fromkeys(_dead_letter_targets(topology) & roles.keys(), Role.DEAD_LETTER)
    for queue in topology.queues:
        if "x-dead-letter-exchange" in queue.arguments:
            waits = "x-message-ttl" in queue.arguments
            roles[queue.name] = Role.RETRY if waits else Role.PLAIN
    for plan in topology.plans:
        waiting = (route.queue for tier in plan.tiers for route in tier.routes)
        roles |= dict.fromkeys(waiting, Role.RETRY)
        roles[plan.parking.queue] = Role.DEAD_LETTER
    roles |= dict.fromkeys((plan.queue for plan in topology.plans), Role.MAIN)
    return roles


def _dead_letter_targets(topology: Topology) -> set[str]:
    """The queues that dead letters come to and nothing else."""
    used = {str(queue.arguments.get("x-dead-letter-exchange")) for queue in topology.queues} - {""}
    fed = {item.destination for item in topology.bindings if item.source in used}
    otherwise = {item.destination for item in topology.bindings if item.source not in used}
    direct = {
        str(queue.arguments.get("x-dead-letter-routing-key"))
        for queue in topology.queues
        if queue.arguments.get("x-dead-letter-exchange") == ""
    }
    return (fed | direct) - otherwise
