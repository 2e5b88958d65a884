"""What `apply` would do, as a value: steps in a safe order, and what stands in the way. Pure.

The order makes every interruption harmless: policies first, then exchanges, then the queues where
messages wait and rest, then the queues with consumers, and last the bindings that let messages in.
Whatever is missing after an interruption is simply created by the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.broker.policies import (
    DEFAULT_LIMIT_SINCE,
    DLQ_LIMIT_PREFIX,
    MAIN_LIMIT_PREFIX,
    has_default_limit,
    lifting,
)
from hopback.topology.diff import Diff, Kind, diff
from hopback.topology.expand import SHADOW
from hopback.topology.model import Binding, Policy, Topology
from hopback.topology.plan import Leave
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hopback.topology.diff import Conflict, DiffEntry
    from hopback.topology.model import Exchange, Queue
    from hopback.version import BrokerVersion

__all__ = ["ApplyPlan", "AtRisk", "Offer", "Step", "plan", "plan_from_diff"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to create, or one policy to set; `why` only where it is not plainly missing."""

    kind: Kind
    name: str
    item: Exchange | Queue | Binding | Policy
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class Offer:
    """A policy that would help and is set only when asked for, because it has a price."""

    queue: str
    policy: Policy
    why: str


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A queue that would have to be replaced, and what would be lost with it as it is now.

    `ready` and `consumers` are exact at the moment of asking; `unacked` and `held_back` come from
    the management API, lag by up to `lag_s` and are None where nobody could tell.
    """

    queue: str
    ready: int
    consumers: int
    unacked: int | None = None
    held_back: int | None = None
    lag_s: float = 0.0

    @property
    def messages(self) -> int:
        """All that is known to be in it."""
        return self.ready + (self.unacked or 0) + (self.held_back or 0)

    def __str__(self) -> str:
        parts = [f"{self.ready} ready"]
        parts += [f"{self.unacked} unacked"] if self.unacked else []
        parts += [f"{self.held_back} held back by dead-lettering"] if self.held_back else []
        users = f"; {self.consumers} consumers" if self.consumers else ""
        return f"queue {self.queue}: {self.messages} messages at risk ({', '.join(parts)}){users}"


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Everything that lies between the desired topology and the broker.

    `steps` are carried out by `apply`, `offers` only on request, `conflicts` never by themselves.
    `live` is what the broker has, with the bindings that a replaced queue must keep; None where it
    could not be read.
    """

    version: BrokerVersion
    diff: Diff
    steps: tuple[Step, ...] = ()
    offers: tuple[Offer, ...] = ()
    at_risk: tuple[AtRisk, ...] = ()
    notes: tuple[str, ...] = ()
    desired: Topology = field(default_factory=lambda: Topology("nothing"))
    live: Topology | None = None

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """What is there other than desired."""
        return self.diff.conflict

    @property
    def interrupted(self) -> tuple[str, ...]:
        """The desired queues whose replacement was begun and not finished."""
        return () if self.live is None else _interrupted(self.desired, self.live)

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do and nothing in the way."""
        return not self.steps and not self.conflicts and not self.interrupted


def plan(
    desired: Topology,
    live: Topology,
    version: BrokerVersion,
    at_risk: tuple[AtRisk, ...] = (),
) -> ApplyPlan:
    """Compare what is desired with what is there; `at_risk` tells how full the live queues are."""
    found = diff(desired, live)
    limits = tuple(_limit_steps(desired, live, version))
    replaced = [conflict.name for conflict in found.conflict if conflict.kind is Kind.QUEUE]
    return ApplyPlan(
        version,
        found,
        steps=_ordered(desired, (*map(_step, found.create), *limits)),
        offers=tuple(_offers(desired, live, version)),
        at_risk=tuple(risk for risk in at_risk if risk.queue in replaced),
        notes=tuple(
            f"{name}{SHADOW} is there: a replacement of {name} was interrupted, and messages may be"
            f" in it. Finish it with --replace {name}."
            for name in _interrupted(desired, live)
        ),
        desired=desired,
        live=live,
    )


def plan_from_diff(
    desired: Topology, found: Diff, version: BrokerVersion, at_risk: tuple[AtRisk, ...] = ()
) -> ApplyPlan:
    """The plan where only AMQP was there to ask: policies cannot be read or set."""
    creatable = tuple(entry for entry in found.create if entry.kind is not Kind.POLICY)
    return ApplyPlan(
        version,
        found,
        steps=_ordered(desired, tuple(map(_blind_step, creatable))),
        at_risk=at_risk,
        notes=tuple(_blind_notes(desired, version)),
        desired=desired,
    )


def _step(entry: DiffEntry) -> Step:
    return Step(entry.kind, entry.name, entry.item)


def _blind_step(entry: DiffEntry) -> Step:
    why = "AMQP cannot tell whether it is there" if entry.kind is Kind.BINDING else ""
    return Step(entry.kind, entry.name, entry.item, why)


def _interrupted(desired: Topology, live: Topology) -> tuple[str, ...]:
    return tuple(q.name for q in desired.queues if live.queue(q.name + SHADOW) is not None)


def _ordered(desired: Topology, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps in the order that makes an interruption harmless."""
    roles = queue_roles(desired)
    return tuple(sorted(steps, key=lambda step: _rank(step, roles)))


_QUEUE_RANK = {QueueRole.DEAD_LETTER: 0, QueueRole.RETRY: 1, QueueRole.PLAIN: 2, QueueRole.MAIN: 3}


def _rank(step: Step, roles: Mapping[str, QueueRole]) -> tuple[int, int]:
    match step.kind:
        case Kind.POLICY:
            return 0, 0
        case Kind.EXCHANGE:
            return 1, 0
        case Kind.QUEUE:
            return 2, _QUEUE_RANK[roles.get(step.name, QueueRole.PLAIN)]
        case Kind.BINDING:
            return 3, _binding_rank(step.item, roles)


def _binding_rank(item: object, roles: Mapping[str, QueueRole]) -> int:
    """Ways out before ways in."""
    if not isinstance(item, Binding) or item.to_exchange:
        return 2
    return _QUEUE_RANK[roles.get(item.destination, QueueRole.PLAIN)]


def _limit_steps(desired: Topology, live: Topology, version: BrokerVersion) -> Iterator[Step]:
    """A policy for each dead-letter queue that looking would empty, new or brought up to date."""
    if version < DEFAULT_LIMIT_SINCE:
        return
    policies = _policies(desired, live)
    for queue in _queues(desired, live, QueueRole.DEAD_LETTER):
        wanted = lifting(DLQ_LIMIT_PREFIX, queue, policies)
        there = next((policy for policy in live.policies if policy.name == wanted.name), None)
        if there is None and has_default_limit(queue, policies, version):
            why = f"RabbitMQ {version} deletes what was looked at 21 times; this lifts the limit"
            yield Step(Kind.POLICY, wanted.name, wanted, why)
        elif there is not None and there != wanted:
            yield Step(Kind.POLICY, wanted.name, wanted, "the policy below it has changed")


def _offers(desired: Topology, live: Topology, version: BrokerVersion) -> Iterator[Offer]:
    """A policy for each queue whose default limit feeds its own retry loop."""
    policies = _policies(desired, live)
    for queue in _queues(desired, live, QueueRole.MAIN):
        failure = desired.plan(queue.name)
        loops = failure is not None and failure.leave is Leave.REJECT
        if loops and has_default_limit(queue, policies, version):
            yield Offer(
                queue.name,
                lifting(MAIN_LIMIT_PREFIX, queue, policies),
                "a message whose consumer crashed 21 times would enter the retry loop and be "
                "dropped as a cycle; without a limit it comes back until it is handled",
            )


def _queues(desired: Topology, live: Topology, role: QueueRole) -> Iterator[Queue]:
    """The desired queues of that role, as the broker has them where it has them."""
    roles = queue_roles(desired)
    for queue in desired.queues:
        if roles[queue.name] is role:
            yield live.queue(queue.name) or queue


def _policies(desired: Topology, live: Topology) -> tuple[Policy, ...]:
    """The policies as they will be: the live ones, and the desired ones that are missing."""
    names = {policy.name for policy in live.policies}
    return (*live.policies, *(one for one in desired.policies if one.name not in names))


def _blind_notes(desired: Topology, version: BrokerVersion) -> Iterator[str]:
    """What cannot be known or done over AMQP alone."""
    yield (
        "Without the management API only exchanges and queues are compared; every binding is "
        "asserted anew, which does no harm to one that exists."
    )
    if desired.policies:
        yield f"{len(desired.policies)} policies cannot be set without the management API."
    for queue in _queues(desired, Topology("unknown"), QueueRole.DEAD_LETTER):
        if has_default_limit(queue, desired.policies, version):
            yield (
                f"Dead-letter queue {queue.name} has RabbitMQ {version}'s default delivery limit: "
                "looking at it 21 times deletes it. Run again with --management to lift it."
            )
