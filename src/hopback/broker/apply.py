"""Carrying out a plan: create what is missing, replace only what was named and is not in use.

Every step is safe to repeat; after an interruption anywhere, plan and apply again.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed
from typing import TYPE_CHECKING

from hopback.broker.apply_plan import ApplyPlan, AtRisk, Offer, Step, plan, plan_from_diff
from hopback.broker.emptiness import PATIENCE_S, WATCH_S, Emptiness
from hopback.broker.inequivalent import difference_of
from hopback.broker.limits import restore_limits
from hopback.broker.migrate import immovable, migration, replace_queues
from hopback.broker.port import QueueState, count_now
from hopback.broker.probe import probe
from hopback.errors import PreconditionFailed, TopologyConflict, UnsafeOperation
from hopback.topology.diff import Kind
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hopback.broker.limits import PolicyLedger
    from hopback.broker.migrate import Replacement
    from hopback.broker.port import Channel, Connection
    from hopback.topology.diff import Conflict
    from hopback.topology.model import Topology

__all__ = [
    "Applied",
    "ApplyPlan",
    "AtRisk",
    "Offer",
    "Step",
    "apply",
    "live_plan",
    "plan",
    "restore_limits",
]


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done, in order, and the conflicts that were left alone."""

    done: tuple[str, ...]
    left: tuple[Conflict, ...]


async def live_plan(
    desired: Topology, connection: Connection, management: PolicyLedger | None, vhost: str
) -> ApplyPlan:
    """Read the broker and compare; over AMQP alone where there is no management API."""
    version = connection.version
    if management is None:
        found = await probe(desired, connection)
        planned = plan_from_diff(desired, found, version)
    else:
        planned = plan(desired, await management.live_topology(vhost), version)
    risks = [
        await _risk(conflict.name, connection, management, vhost)
        for conflict in planned.conflicts
        if conflict.kind is Kind.QUEUE
    ]
    return changed(planned, at_risk=tuple(risks))


async def _risk(
    queue: str, connection: Connection, management: PolicyLedger | None, vhost: str
) -> AtRisk:
    """What is in the queue: exact where AMQP can tell, by the management API where it cannot."""
    # A queue that has gone meanwhile holds nothing.
    state = await count_now(connection, queue) or QueueState(queue, messages=0, consumers=0)
    if management is None:
        return AtRisk(queue, state.messages, state.consumers)
    counts = (await management.queue(vhost, queue)).counts
    return AtRisk(
        queue, state.messages, state.consumers, counts.unacked, counts.held_back, counts.lag_s
    )


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
    """Carry the plan out.

    Conflicts refuse the whole (TopologyConflict) unless each is named in `replace` or they are to
    be skipped. A queue is replaced only if it is classic, empty and unused; otherwise
    UnsafeOperation names what is at risk, before anything was changed. It is replaced as a
    migration replaces it, so an interruption loses nothing: named again, it is finished.
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
    offered = _offered(planned) if take_offers else ()
    channel = await connection.open_channel()
    work = _Work(channel, management, vhost, on_done)
    try:
        names = {one.queue.name for one in queues}
        steps = (*offered, *planned.steps)
        late = [step for step in steps if _leads_into(step, names)]
        # Ways out first; then the replacements; bindings into a replaced queue after it is there.
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
    """The named queues that differ, or whose replacement was interrupted."""
    if planned.live is None:
        return ()
    found = migration(planned.desired, planned.live).replacements
    return tuple(one for one in found if one.queue.name in named)


def _leads_into(step: Step, queues: Collection[str]) -> bool:
    item = step.item
    return isinstance(item, Binding) and not item.to_exchange and item.destination in queues


def _offered(planned: ApplyPlan) -> tuple[Step, ...]:
    return tuple(
        Step(Kind.POLICY, offer.policy.name, offer.policy, offer.why) for offer in planned.offers
    )


def _conflicts_text(left: Collection[Conflict]) -> str:
    listed = "\n".join(f"  {line}" for one in left for line in str(one).splitlines())
    count = "1 object is" if len(left) == 1 else f"{len(left)} objects are"
    return f"nothing was changed: {count} on the broker other than desired:\n{listed}"


def _refuse_unsafe(planned: ApplyPlan, replaced: Collection[Conflict]) -> None:
    """Say everything that forbids a replacement before the first change."""
    if replaced and planned.live is None:
        raise UnsafeOperation(
            "nothing was changed: without the management API the bindings of a queue cannot be "
            "read, so they could not be made again after it was replaced"
        )
    risks = {risk.queue: risk for risk in planned.at_risk}
    refused = [
        reason
        for conflict in replaced
        if (reason := _danger(conflict, risks.get(conflict.name))) is not None
    ]
    if refused:
        listed = "\n".join(f"  {reason}" for reason in refused)
        raise UnsafeOperation(f"nothing was changed; these must not be replaced:\n{listed}")


def _danger(conflict: Conflict, risk: AtRisk | None) -> str | None:
    """Why replacing this object could lose messages; None if it cannot."""
    match conflict.actual:
        case Policy():
            return None
        case Exchange():
            return (
                f"exchange {conflict.name}: while it is missing, publishes fail and dead letters "
                "sent to it are dropped; create one under another name and move the bindings"
            )
        case Queue() as queue if why := immovable(queue):
            return f"queue {queue.name}: it {why}"
        case Queue(type=QueueType.CLASSIC):
            if risk is None:
                return f"queue {conflict.name}: nobody counted what is in it"
            return str(risk) if risk.messages or risk.consumers else None
        case Queue():
            return (
                f"queue {conflict.name}: RabbitMQ cannot delete a {conflict.actual.type} queue only "
                "if it is empty, so a message that arrives meanwhile would be lost; migrate: new "
                "queue, bindings switched, messages moved"
            )


class _Work:
    """Carries out steps one by one and keeps account."""

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
        """Create what is missing; TopologyConflict if someone made something else meanwhile."""
        try:
            await self._create(step.item)
        except PreconditionFailed as refusal:
            item = step.item if isinstance(step.item, Exchange | Queue) else None
            found = difference_of(refusal.text, item)
            raise TopologyConflict(f"{step.kind} {step.name}: {found}") from refusal
        self.tell(f"created {step}" if step.kind is not Kind.POLICY else f"set {step}")

    async def _create(self, item: Exchange | Queue | Binding | Policy) -> None:
        match item:
            case Exchange():
                await self._channel.declare_exchange(item)
            case Queue():
                await self._channel.declare_queue(item)
            case Binding():
                await self._channel.bind(item)
            case Policy():
                await self._set(item)

    async def _set(self, policy: Policy) -> None:
        if self._management is None:
            raise UnsafeOperation(
                f"policy {policy.name} cannot be set without the management API (--management URL)"
            )
        await self._management.put_policy(self._vhost, policy)

    async def replace_policy(self, policy: Policy) -> None:
        """Set it in place of the one of the same name; it takes effect at once."""
        await self._set(policy)
        self.tell(f"replaced policy {policy.name}")

    def tell(self, *texts: str) -> None:
        """Keep account of what was done."""
        for text in texts:
            self.done.append(text)
            self._on_done(text)
