"""Determine the roles of queues."""

from __future__ import annotations

import re
from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hopback.topology.model import Binding, Topology

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
"""Names that frameworks such as NServiceBus use for a common dead-letter queue."""


class QueueRole(StrEnum):
    MAIN = "main"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    PLAIN = "plain"


def queue_roles(topology: Topology) -> Mapping[str, QueueRole]:
    """Return the role of each queue.

    Roles are defined by plans. If a queue does not have a plan, its role is derived from its name
    and arguments:

    - A queue with a TTL and a dead-letter exchange is a retry queue, unless producers publish to it
      and its expired messages are moved to a dead-letter queue.
    - A queue that only receives dead letters is a dead-letter queue, unless they come from retry
      queues.
    - A queue with a name that frameworks use for dead-letter queues is a dead-letter queue.
    """
    roles = {queue.name: QueueRole.PLAIN for queue in topology.queues}
    ways = _DeadLetterWays(topology)
    returning = {name for name in ways.ends if ways.receives_returns(name)}
    resting = ways.ends - returning
    roles |= dict.fromkeys(resting, QueueRole.DEAD_LETTER)
    for name, beyond in ways.targets.items():
        expires = "x-message-ttl" in ways.queues[name].arguments
        leads_on = name in ways.fed or not beyond or not beyond <= resting | returning
        is_named = _names_wait(name) or ways.is_part_of(name, beyond)
        if (expires and leads_on) or (beyond & returning and is_named):
            roles[name] = QueueRole.RETRY
    for name in dead_letter_owners(topology, roles):
        roles[name] = QueueRole.DEAD_LETTER
    for name in returning:
        sources = ways.sources[name]
        if roles[name] is QueueRole.PLAIN and any(roles[one] is QueueRole.RETRY for one in sources):
            roles[name] = QueueRole.MAIN
    for plan in topology.plans:
        waiting = (route.queue for tier in plan.tiers for route in tier.routes)
        roles |= dict.fromkeys(waiting, QueueRole.RETRY)
        roles[plan.parking.queue] = QueueRole.DEAD_LETTER
    roles |= dict.fromkeys((plan.queue for plan in topology.plans), QueueRole.MAIN)
    return roles


class _DeadLetterWays:
    """The dead-letter routes of a topology.

    Attributes:
        targets: Maps queues to the queues that receive their dead letters.
        sources: The reverse of `targets`.
        fed: Queues that only receive dead letters.
        ends: The queues in `fed` that do not have a dead-letter exchange.
    """

    def __init__(self, topology: Topology) -> None:
        self.queues = {queue.name: queue for queue in topology.queues}
        by_source: dict[str, list[Binding]] = defaultdict(list)
        for item in topology.bindings:
            by_source[item.source].append(item)
        kinds = {each.name: str(each.type) for each in topology.exchanges}
        self.targets: dict[str, set[str]] = {}
        self.sources: dict[str, set[str]] = defaultdict(set)
        used: set[str] = set()
        for queue in topology.queues:
            exchange = queue.arguments.get("x-dead-letter-exchange")
            if exchange is None:
                continue
            key = queue.arguments.get("x-dead-letter-routing-key")
            if exchange == "":
                found = {key} if isinstance(key, str) else set()
            else:
                used.add(str(exchange))
                by_key = isinstance(key, str) and kinds.get(str(exchange)) == "direct"
                found = {
                    item.destination
                    for item in by_source[str(exchange)]
                    if not by_key or item.routing_key == key
                }
            self.targets[queue.name] = found & self.queues.keys()
            for target in found:
                self.sources[target].add(queue.name)
        direct = set().union(*self.targets.values())
        bound = {item.destination for name in used for item in by_source[name]}
        self._published_to = {
            item.destination for item in topology.bindings if item.source not in used
        }
        self.fed = ((direct | bound) - self._published_to) & self.queues.keys()
        self.ends = self.fed - self.targets.keys()

    def receives_returns(self, name: str) -> bool:
        """Return True if all dead letters of a queue come from retry queues."""
        sources = self.sources.get(name, set())
        return bool(sources) and all(self._leads_back(one, name) for one in sources)

    def is_part_of(self, name: str, targets: Iterable[str]) -> bool:
        """Return True if the name starts with the name of a target, such as `orders.5s` and
        `orders`.
        """
        return any(name.startswith(target + sign) for target in targets for sign in _SEPARATORS)

    def _leads_back(self, source: str, target: str) -> bool:
        is_part, waits = self.is_part_of(source, (target,)), _names_wait(source)
        if is_part and waits:
            return True
        if names_failure(target):
            return False
        if self.sources.get(source):
            # Its messages return if they are routed to a queue from which they came.
            return bool(self.targets[source] & self._ancestors(source))
        if is_part or waits:
            return True
        # Consumers publish directly to retry queues. If the queue is bound to an exchange,
        # producers publish to it.
        expires = "x-message-ttl" in self.queues[source].arguments
        return expires and source not in self._published_to

    def _ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            new = self.sources.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)
        return found


_WAITS = ("retr", "delay", "wait", "backoff", "defer", "hold", "later", "schedul", "requeue")
_FAILURES = re.compile(
    r"dead|dlq|dlx|error|(?<![a-z])err(?![a-z])|fail|(?<!de)fault|park|poison|reject|skip|\.xq\Z",
    re.IGNORECASE,
)
"""Words for failures. Does not match `default`. `.XQ` is used by Dramatiq."""


def _names_wait(name: str) -> bool:
    lower = name.lower()
    return any(sign in lower for sign in _WAITS)


def names_failure(name: str) -> bool:
    """Return True if the name of a queue contains a word for failures."""
    return _FAILURES.search(name) is not None


def dead_letter_owners(topology: Topology, roles: Mapping[str, QueueRole]) -> dict[str, str | None]:
    """Map the dead-letter queues that are only identified by their name to the queues they belong to.

    The value is None if a dead-letter queue is shared by several queues.
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
    """Yield the possible names of the queue that a dead-letter queue belongs to."""
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
