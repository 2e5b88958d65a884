"""The part that each queue plays: main, retry, dead-letter, or none that we know of."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.renamed import old_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.topology.model import Topology

__all__ = ["QueueRole", "queue_roles"]


class QueueRole(StrEnum):
    """What a queue is for."""

    MAIN = "main"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    PLAIN = "plain"


def queue_roles(topology: Topology) -> Mapping[str, QueueRole]:
    """The role of each declared queue, by name.

    Plans say it. Without a plan it shows in the arguments: what has a time to live and a
    dead-letter exchange is a place to wait, and what only receives dead letters a place to rest.
    """
    roles = {queue.name: QueueRole.PLAIN for queue in topology.queues}
    roles |= dict.fromkeys(_dead_letter_targets(topology) & roles.keys(), QueueRole.DEAD_LETTER)
    for queue in topology.queues:
        if "x-dead-letter-exchange" in queue.arguments:
            waits = "x-message-ttl" in queue.arguments
            roles[queue.name] = QueueRole.RETRY if waits else QueueRole.PLAIN
    for plan in topology.plans:
        waiting = (route.queue for tier in plan.tiers for route in tier.routes)
        roles |= dict.fromkeys(waiting, QueueRole.RETRY)
        roles[plan.parking.queue] = QueueRole.DEAD_LETTER
    roles |= dict.fromkeys((plan.queue for plan in topology.plans), QueueRole.MAIN)
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


__getattr__ = old_names(__name__, {"Role": "QueueRole"})
