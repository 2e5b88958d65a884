"""Plan and apply the changes needed to make a broker match a topology.

Missing objects are created. Existing objects are only replaced if they are named explicitly and not
in use. All steps can be repeated, so an interrupted run is continued by planning and applying
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import TYPE_CHECKING

from hopback.broker.declare import difference_of, probe
from hopback.broker.emptiness import PATIENCE_S, WATCH_S, Emptiness
from hopback.broker.limits import (
    DEFAULT_LIMIT_SINCE,
    DLQ_LIMIT_PREFIX,
    MAIN_LIMIT_PREFIX,
    PolicyLedger,
    has_default_limit,
    lift_policy,
)
from hopback.broker.migrate import Replacement, immovable, migration, replace_queues
from hopback.broker.port import Channel, Connection, QueueState, count_now
from hopback.errors import PreconditionFailed, TopologyConflict, UnsafeOperation
from hopback.topology.diff import Conflict, Diff, DiffEntry, Kind, diff
from hopback.topology.expand import SHADOW
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.plan import Leave
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from hopback.version import BrokerVersion


@dataclass(frozen=True, slots=True)
class Step:
    """An object to create or a policy to set. `why` explains it, unless the object is just missing."""

    kind: Kind
    name: str
    item: Exchange | Queue | Binding | Policy
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class Offer:
    """A policy that would help but has a downside. It is only set on request."""

    queue: str
    policy: Policy
    why: str


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A queue that has to be replaced, and how many messages would be lost if this was done now.

    `ready` and `consumers` are exact when they are read. `unacked` and `held_back` are read from
    the management API and may be up to `lag_s` old. They are None if unknown.
    """

    queue: str
    ready: int
    consumers: int
    unacked: int | None = None
    held_back: int | None = None
    lag_s: float = 0.0

    @property
    def messages(self) -> int:
        """The number of messages that are known to be in the queue."""
        return self.ready + (self.unacked or 0) + (self.held_back or 0)

    def __str__(self) -> str:
        parts = [f"{self.ready} ready"]
        parts += [f"{self.unacked} unacked"] if self.unacked else []
        parts += [f"{self.held_back} held back by dead-lettering"] if self.held_back else []
        users = f"; {self.consumers} consumers" if self.consumers else ""
        return f"queue {self.queue}: {self.messages} messages at risk ({', '.join(parts)}){users}"


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The differences between the desired topology and the broker.

    `apply` carries out `steps`. `offers` are only carried out on request, and `conflicts` are never
    resolved automatically. `live` is the topology of the broker. Its bindings have to be kept when
    a queue is replaced. It is None if it could not be read.
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
        """The objects that exist with different settings."""
        return self.diff.conflict

    @property
    def interrupted(self) -> tuple[str, ...]:
        """The desired queues whose replacement has not been completed."""
        return () if self.live is None else _unfinished_queues(self.desired, self.live)

    @property
    def is_up_to_date(self) -> bool:
        """Whether the broker already matches the topology."""
        return not self.steps and not self.conflicts and not self.interrupted


def plan(
    desired: Topology,
    live: Topology,
    version: BrokerVersion,
    at_risk: tuple[AtRisk, ...] = (),
) -> ApplyPlan:
    """Compare the desired topology with the live one. `at_risk` contains the message counts of live
    queues.
    """
    found = diff(desired, live)
    limits = tuple(_limit_steps(desired, live, version))
    replaced = [conflict.name for conflict in found.conflict if conflict.kind is Kind.QUEUE]
    return ApplyPlan(
        version,
        found,
        steps=_sort_steps(desired, (*map(_step, found.create), *limits)),
        offers=tuple(_offers(desired, live, version)),
        at_risk=tuple(risk for risk in at_risk if risk.queue in replaced),
        notes=tuple(
            f"{name}{SHADOW} is there: a replacement of {name} was interrupted, and messages may be"
            f" in it. Finish it with --replace {name}."
            for name in _unfinished_queues(desired, live)
        ),
        desired=desired,
        live=live,
    )


def plan_from_diff(
    desired: Topology, found: Diff, version: BrokerVersion, at_risk: tuple[AtRisk, ...] = ()
) -> ApplyPlan:
    """Create a plan without the management API. Policies can be neither read nor set."""
    creatable = tuple(entry for entry in found.create if entry.kind is not Kind.POLICY)
    # AMQP does not provide this information.
    notes = [
        "Without the management API only exchanges and queues are compared. All bindings are declared "
        "again, which is harmless for existing ones."
    ]
    if desired.policies:
        notes.append(f"{len(desired.policies)} policies cannot be set without the management API.")
    notes += (
        f"Dead-letter queue {queue.name} has RabbitMQ {version}'s default delivery limit: "
        "a message that returns for the 21st time is deleted, and reading can count as a return. Run "
        "again with --management to lift the limit."
        for queue in _queues(desired, Topology("unknown"), QueueRole.DEAD_LETTER)
        if has_default_limit(queue, desired.policies, version)
    )
    return ApplyPlan(
        version,
        found,
        steps=_sort_steps(desired, tuple(map(_blind_step, creatable))),
        at_risk=at_risk,
        notes=tuple(notes),
        desired=desired,
    )


def _step(entry: DiffEntry) -> Step:
    return Step(entry.kind, entry.name, entry.item)


def _blind_step(entry: DiffEntry) -> Step:
    why = "AMQP cannot show whether it exists" if entry.kind is Kind.BINDING else ""
    return Step(entry.kind, entry.name, entry.item, why)


def _unfinished_queues(desired: Topology, live: Topology) -> tuple[str, ...]:
    return tuple(q.name for q in desired.queues if live.queue(q.name + SHADOW) is not None)


def _sort_steps(desired: Topology, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Sort the steps so that stopping after any of them does no harm."""
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
            # Create outgoing routes before incoming ones.
            if not isinstance(step.item, Binding) or step.item.to_exchange:
                return 3, 2
            return 3, _QUEUE_RANK[roles.get(step.item.destination, QueueRole.PLAIN)]


def _limit_steps(desired: Topology, live: Topology, version: BrokerVersion) -> Iterator[Step]:
    """Set or update a policy for each dead-letter queue that would drop messages because of the
    default delivery limit.
    """
    if version < DEFAULT_LIMIT_SINCE:
        return
    policies = _policies(desired, live)
    for queue in _queues(desired, live, QueueRole.DEAD_LETTER):
        wanted = lift_policy(DLQ_LIMIT_PREFIX, queue, policies)
        there = next((policy for policy in live.policies if policy.name == wanted.name), None)
        if there is None and has_default_limit(queue, policies, version):
            why = (
                f"RabbitMQ {version} deletes messages that were read 21 times. This lifts the limit"
            )
            yield Step(Kind.POLICY, wanted.name, wanted, why)
        elif there is not None and there != wanted:
            yield Step(Kind.POLICY, wanted.name, wanted, "the policy below it has changed")


def _offers(desired: Topology, live: Topology, version: BrokerVersion) -> Iterator[Offer]:
    """Offer a policy for each queue that loops through its retries because of the default delivery
    limit.
    """
    policies = _policies(desired, live)
    for queue in _queues(desired, live, QueueRole.MAIN):
        failure = desired.plan(queue.name)
        loops = failure is not None and failure.leave is Leave.REJECT
        if loops and has_default_limit(queue, policies, version):
            yield Offer(
                queue.name,
                lift_policy(MAIN_LIMIT_PREFIX, queue, policies),
                "a message whose consumer crashed 21 times would enter the retry loop and be "
                "dropped as a cycle. Without a limit it returns until it is handled",
            )


def _queues(desired: Topology, live: Topology, role: QueueRole) -> Iterator[Queue]:
    """Yield the desired queues that have a certain role. If a queue exists, its live version is
    used.
    """
    roles = queue_roles(desired)
    for queue in desired.queues:
        if roles[queue.name] is role:
            yield live.queue(queue.name) or queue


def _policies(desired: Topology, live: Topology) -> tuple[Policy, ...]:
    """Return the policies after the change: the live ones and the desired ones that are missing."""
    names = {policy.name for policy in live.policies}
    return (*live.policies, *(one for one in desired.policies if one.name not in names))


@dataclass(frozen=True, slots=True)
class Applied:
    """The changes that were made, in order, and the conflicts that remain."""

    done: tuple[str, ...]
    left: tuple[Conflict, ...]


async def live_plan(
    desired: Topology, connection: Connection, management: PolicyLedger | None, vhost: str
) -> ApplyPlan:
    """Read the broker and compare it with the desired topology.

    If `management` is None, the broker is only read with AMQP.
    """
    version = connection.version
    if management is None:
        found = await probe(desired, connection)
        planned = plan_from_diff(desired, found, version)
    else:
        planned = plan(desired, await management.live_topology(vhost), version)
    # AMQP returns the exact number of ready messages. The management API adds unacked and held
    # messages.
    risks = []
    for queue in [one.name for one in planned.conflicts if one.kind is Kind.QUEUE]:
        # The queue was deleted in the meantime, so it has no messages.
        state = await count_now(connection, queue) or QueueState(queue, messages=0, consumers=0)
        risk = AtRisk(queue, state.messages, state.consumers)
        if management is not None:
            counts = (await management.queue(vhost, queue)).counts
            risk = changed(
                risk, unacked=counts.unacked, held_back=counts.held_back, lag_s=counts.lag_s
            )
        risks.append(risk)
    return changed(planned, at_risk=tuple(risks))


async def apply(
    planned: ApplyPlan,
    connection: Connection,
    management: PolicyLedger | None = None,
    *,
    vhost: str = "/",
    replace: Collection[str] = (),
    skip_conflicts: bool = False,
    take_offers: bool = False,
    on_done: Callable[[str], object] = lambda _: None,
    watch_s: float = WATCH_S,
    patience_s: float = PATIENCE_S,
) -> Applied:
    """Carry out the plan.

    Queues named in `replace` are replaced if they are classic, empty and unused. This works like a
    migration, so no messages are lost if it is interrupted. Naming the queue again completes the
    replacement.

    Raises:
        TopologyConflict: If there are other conflicts and they are not skipped. Nothing has been changed.
        UnsafeOperation: If a queue has messages or consumers. Nothing has been changed.
    """
    left = tuple(one for one in planned.conflicts if one.name not in replace)
    if left and not skip_conflicts:
        raise TopologyConflict(_conflicts_text(left))
    replaced = [one for one in planned.conflicts if one.name in replace]
    _refuse_unsafe(planned, replaced)
    queues = _replacements(planned, replace)
    emptiness = None
    if queues:
        emptiness = Emptiness(
            connection,
            management,
            vhost,
            plans=planned.desired.plans,
            watch_s=watch_s,
            patience_s=patience_s,
            on_wait=on_done,
        )
    offered = _policy_steps(planned) if take_offers else ()
    channel = await connection.open_channel()
    work = _Applier(channel, management, vhost, on_done)
    try:
        names = {one.queue.name for one in queues}
        steps = (*offered, *planned.steps)
        late = [step for step in steps if _leads_into(step, names)]
        # Create outgoing routes, replace the queues, and then create the bindings to the replaced
        # queues.
        for step in steps:
            if step not in late:
                await work.create(step)
        for conflict in replaced:
            if isinstance(conflict.desired, Policy):
                await work.replace_policy(conflict.desired)
        if emptiness is not None:
            await replace_queues(connection, queues, emptiness, on_done)
            work.tell(*(f"replaced queue {one.queue.name}" for one in queues))
        for step in late:
            await work.create(step)
    finally:
        await channel.close()
    return Applied(tuple(work.done), left)


def _replacements(planned: ApplyPlan, named: Collection[str]) -> tuple[Replacement, ...]:
    """Select the named queues that are different or were only partially replaced."""
    if planned.live is None:
        return ()
    found = migration(planned.desired, planned.live).replacements
    return tuple(one for one in found if one.queue.name in named)


def _leads_into(step: Step, queues: Collection[str]) -> bool:
    item = step.item
    return isinstance(item, Binding) and not item.to_exchange and item.destination in queues


def _policy_steps(planned: ApplyPlan) -> tuple[Step, ...]:
    return tuple(
        Step(Kind.POLICY, offer.policy.name, offer.policy, offer.why) for offer in planned.offers
    )


def _conflicts_text(left: Collection[Conflict]) -> str:
    listed = "\n".join(f"  {line}" for one in left for line in str(one).splitlines())
    count = "1 object is" if len(left) == 1 else f"{len(left)} objects are"
    return f"no changes were made: {count} on the broker other than desired:\n{listed}"


def _refuse_unsafe(planned: ApplyPlan, replaced: Collection[Conflict]) -> None:
    """Raise UnsafeOperation with all reasons against a replacement."""
    if replaced and planned.live is None:
        raise UnsafeOperation(
            "no changes were made: without the management API the bindings of a queue cannot be "
            "read, so they could not be restored after it was replaced"
        )
    risks = {risk.queue: risk for risk in planned.at_risk}
    refused = [
        reason
        for conflict in replaced
        if (reason := _danger(conflict, risks.get(conflict.name))) is not None
    ]
    if refused:
        listed = "\n".join(f"  {reason}" for reason in refused)
        raise UnsafeOperation(f"no changes were made: these must not be replaced:\n{listed}")


def _danger(conflict: Conflict, risk: AtRisk | None) -> str | None:
    """Explain why replacing this object could lose messages. Returns None if it is safe."""
    match conflict.actual:
        case Policy():
            return None
        case Exchange():
            return (
                f"exchange {conflict.name}: while it is missing, publishes fail and dead letters "
                "sent to it are dropped. Create one with another name and move the bindings"
            )
        case Queue() as queue if why := immovable(queue):
            return f"queue {queue.name}: it {why}"
        case Queue(type=QueueType.CLASSIC):
            if risk is None:
                return f"queue {conflict.name}: its messages were not counted"
            return str(risk) if risk.messages or risk.consumers else None
        case Queue():
            return (
                f"queue {conflict.name}: RabbitMQ cannot delete a {conflict.actual.type} queue only "
                "if it is empty, so a message that arrives meanwhile would be lost. Migrate it: "
                "create a new queue, switch the bindings, move the messages"
            )


class _Applier:
    """Carries out the steps and keeps a record of them."""

    def __init__(
        self,
        channel: Channel,
        management: PolicyLedger | None,
        vhost: str,
        on_done: Callable[[str], object],
    ) -> None:
        self.done: list[str] = []
        self._channel = channel
        self._management = management
        self._vhost = vhost
        self._on_done = on_done

    async def create(self, step: Step) -> None:
        """Create a missing object. Raises TopologyConflict if it now exists with different
        settings.
        """
        try:
            match step.item:
                case Exchange():
                    await self._channel.declare_exchange(step.item)
                case Queue():
                    await self._channel.declare_queue(step.item)
                case Binding():
                    await self._channel.bind(step.item)
                case Policy():
                    await self._set(step.item)
        except PreconditionFailed as refusal:
            item = step.item if isinstance(step.item, Exchange | Queue) else None
            found = difference_of(refusal.text, item)
            raise TopologyConflict(f"{step.kind} {step.name}: {found}") from refusal
        self.tell(f"created {step}" if step.kind is not Kind.POLICY else f"set {step}")

    async def _set(self, policy: Policy) -> None:
        if self._management is None:
            raise UnsafeOperation(
                f"policy {policy.name} cannot be set without the management API (--management URL)"
            )
        await self._management.put_policy(self._vhost, policy)

    async def replace_policy(self, policy: Policy) -> None:
        """Overwrite the policy with the same name. The change takes effect immediately."""
        await self._set(policy)
        self.tell(f"replaced policy {policy.name}")

    def tell(self, *texts: str) -> None:
        for text in texts:
            self.done.append(text)
            self._on_done(text)
