"""The role of each queue: main, retry, dead-letter, or none that we know of."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.renamed import OldNameLookup, old_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hopback.topology.model import Queue, Topology

__all__ = ["QueueRole", "dead_letter_owners", "queue_roles"]

_MARKS = (
    "dlq", "dlx", "xq", "dead", "parking", "parked", "parking-lot", "parking_lot", "parkinglot",
    "dead-letter", "dead-letters", "dead_letter", "dead_letters", "deadletter", "deadletters",
    "error", "errors", "failed", "failure", "failures", "skipped", "poison",
)  # fmt: skip
_SEPARATORS = (".", "-", "_", ":")
_ALONE = frozenset(
    {
        "error", "errors", "dead", "dlq", "failed", "failures", "poison", "deadletter", "deadletters",
        "dead-letter", "dead-letters", "dead_letter", "dead_letters", "dead.letter", "dead.letters",
        "failed-messages", "failed_messages", "failed.messages", "parking-lot", "parking_lot",
        "parkinglot", "parking.lot",
    }
)  # fmt: skip
"""Names that frameworks give to one dead-letter queue for all of their queues, as NServiceBus does."""


class QueueRole(StrEnum):
    """What a queue is for."""

    MAIN = "main"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    PLAIN = "plain"


def queue_roles(topology: Topology) -> Mapping[str, QueueRole]:
    """The role of each declared queue, by name.

    Plans say it. Without a plan it shows in the name, as frameworks choose it for queues into which
    their consumers publish dead letters themselves, or in the arguments: what has a time to live and a
    dead-letter exchange is a place to wait, and what only receives dead letters a place to rest. A
    queue that producers fill and whose expired messages can only come to rest is none to wait in.
    """
    roles = {queue.name: QueueRole.PLAIN for queue in topology.queues}
    used = {str(queue.arguments.get("x-dead-letter-exchange")) for queue in topology.queues} - {""}
    fed = {item.destination for item in topology.bindings if item.source in used}
    fed |= {
        str(queue.arguments.get("x-dead-letter-routing-key"))
        for queue in topology.queues
        if queue.arguments.get("x-dead-letter-exchange") == ""
    }
    otherwise = {item.destination for item in topology.bindings if item.source not in used}
    # The queues that dead letters come to and nothing else.
    targets = (fed - otherwise) & roles.keys()
    resting = targets - {
        queue.name for queue in topology.queues if "x-dead-letter-exchange" in queue.arguments
    }
    roles |= dict.fromkeys(resting, QueueRole.DEAD_LETTER)
    for queue in topology.queues:
        if "x-dead-letter-exchange" in queue.arguments and "x-message-ttl" in queue.arguments:
            beyond = _dead_lettered_to(topology, queue)
            if queue.name in targets or not beyond or not beyond <= resting:
                roles[queue.name] = QueueRole.RETRY
    for name in dead_letter_owners(topology, roles):
        roles[name] = QueueRole.DEAD_LETTER
    for plan in topology.plans:
        waiting = (route.queue for tier in plan.tiers for route in tier.routes)
        roles |= dict.fromkeys(waiting, QueueRole.RETRY)
        roles[plan.parking.queue] = QueueRole.DEAD_LETTER
    roles |= dict.fromkeys((plan.queue for plan in topology.plans), QueueRole.MAIN)
    return roles


def dead_letter_owners(topology: Topology, roles: Mapping[str, QueueRole]) -> dict[str, str | None]:
    """Queues that nothing but their name gives away, each with the queue it belongs to.

    None where the name alone says it, and for all queues.
    """
    found: dict[str, str | None] = {}
    for name, role in roles.items():
        queue = topology.queue(name)
        if role is not QueueRole.PLAIN or queue is None:
            continue
        if "x-dead-letter-exchange" in queue.arguments:
            continue
        owner = next((each for each in _owners(name) if each in roles and each != name), None)
        if owner is not None or name.lower() in _ALONE:
            found[name] = owner
    return found


def _owners(name: str) -> Iterator[str]:
    """The names that a dead-letter queue of this name would belong to."""
    lower = name.lower()
    for mark in _MARKS:
        for sign in _SEPARATORS:
            if lower.endswith(sign + mark):
                yield name[: -len(sign + mark)]
            if lower.startswith(mark + sign):
                yield name[len(mark + sign) :]
            if (place := lower.find(sign + mark + sign)) >= 0:
                before, after = name[:place], name[place + len(sign + mark + sign) :]
                yield f"{before}{sign}{after}"
                yield f"{before}{sign}queue{sign}{after}"


def _dead_lettered_to(topology: Topology, queue: Queue) -> set[str]:
    """The queues that the dead letters of a queue can come to, as far as bindings tell."""
    exchange = queue.arguments.get("x-dead-letter-exchange")
    key = queue.arguments.get("x-dead-letter-routing-key")
    if exchange == "":
        return {key} if isinstance(key, str) else set()
    kinds = {each.name: str(each.type) for each in topology.exchanges}
    by_key = isinstance(key, str) and kinds.get(str(exchange)) == "direct"
    return {
        item.destination
        for item in topology.bindings
        if item.source == exchange and (not by_key or item.routing_key == key)
    }


__getattr__: OldNameLookup = old_names(__name__, {"Role": "QueueRole"})
