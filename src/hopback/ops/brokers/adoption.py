"""Taking over a queue that stands, with what is in it: three ways, each as a topology.

As it is: the queue is declared exactly as the broker has it, with a plan beside it. Beside it: a policy
gives it a dead-letter path, so that what its present consumers reject is kept; the queue itself is not
touched. Migrated: the recommended form, by `hopback topology migrate`.

Reading and choosing are pure (`adoption`); `set_beside` and `revert_beside` change one policy. Of all
policies that match a queue the broker applies one, so ours carries every key of the one in force; and
dead-lettering that is switched on must not change what happens to messages otherwise, so where a strategy
or an overflow would begin to mean something else, it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.broker.limits import exactly, is_ours
from hopback.broker.migrate import immovable
from hopback.durations import format_duration
from hopback.errors import BadRequest, NoSuch, UnsafeOperation
from hopback.ops.brokers.discovery import dead_letter_queues
from hopback.topology.check import check
from hopback.topology.diff import diff
from hopback.topology.effective import (
    effective_arguments,
    effective_policy,
    effective_topology,
    find_policies,
)
from hopback.topology.expand import (
    DELIVERY_LIMIT,
    NO_DELIVERY_LIMIT,
    at_least_once,
    dead_lettering,
    harden_queues,
    recommend_plan,
)
from hopback.topology.model import Binding, Policy, Queue, QueueType, Topology
from hopback.topology.plan import Leave, Parking, Plan, Route
from hopback.topology.rabbitmq_arguments import ARGUMENTS_OF
from hopback.topology.wording import quote, show_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hopback.ops.brokers.managed_broker import ManagedBroker, ManagementApi
    from hopback.topology.hazards.rule import Finding
    from hopback.version import BrokerVersion

_PREFIX = "hopback-adopt."
_TIERS_MS = (
    30_000,
    300_000,
    1_800_000,
)  # the waits of a handler that names none: 30 s, 5 min, 30 min
_LEAVING = (
    "x-message-ttl",
    "x-expires",
    "x-dead-letter-exchange",
    "x-max-length",
    "x-max-length-bytes",
)
_DEAD_LETTER_KEYS = frozenset({"x-dead-letter-exchange", "x-dead-letter-routing-key"})


class AdoptionWay(StrEnum):
    """The ways to take a queue over."""

    AS_IT_IS = "as-it-is"
    BESIDE = "beside"
    MIGRATED = "migrated"


@dataclass(frozen=True, slots=True)
class AdoptionChoice:
    """One way: the file for it, what it can lose, what to know, and why it cannot be gone, if so.

    `decorator` is the line that says the same as the file, where one line can.
    """

    way: AdoptionWay
    topology: Topology
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    decorator: str = ""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A queue as it stands, and the ways to take it over.

    `policy` is in force for it now; `former` is without ours, where that is set already.
    """

    queue: Queue
    bindings: tuple[Binding, ...]
    policy: Policy | None
    former: Policy | None
    dead_letter_queues: tuple[str, ...]
    choices: tuple[AdoptionChoice, ...]

    def choice(self, way: AdoptionWay) -> AdoptionChoice:
        """The choice of that name."""
        return next(one for one in self.choices if one.way is way)


@dataclass(frozen=True, slots=True)
class BesideSet:
    """What `set_beside` has done: the queue for dead letters, if it was missing, and the policy."""

    created: str | None
    policy: Policy


def policy_name(queue: str) -> str:
    """The policy that gives this queue its dead-letter path: its name is the record."""
    return _PREFIX + queue


def adoption(
    live: Topology,
    name: str,
    version: BrokerVersion,
    *,
    tiers_ms: Sequence[int] | None = None,
    attempts: int | None = None,
    told_policy: str | None = None,
) -> Adoption:
    """The three ways for one queue of a live broker; NoSuch if it has none of that name.

    `tiers_ms` are the waits; without them those of the retry queues that the queue has already, or
    30 s, 5 and 30 minutes. `told_policy` is the policy that the broker says is in force, if it says.
    """
    queue = live.queue(name)
    if queue is None:
        raise NoSuch("queue", name, "`hopback doctor` counts them, the management page lists them")
    return _Reader(live, queue, version, tiers_ms, attempts, told_policy).adoption()


class _Reader:
    """The live topology around one queue, and the choices that follow from it."""

    def __init__(
        self,
        live: Topology,
        queue: Queue,
        version: BrokerVersion,
        tiers_ms: Sequence[int] | None,
        attempts: int | None,
        told_policy: str | None,
    ) -> None:
        self.live = live
        self.queue = queue
        self.version = version
        self.told_policy = told_policy
        # Without ours: what the queue is like is what it was like before.
        self.others = tuple(p for p in live.policies if p.name != policy_name(queue.name))
        self.former = effective_policy(queue, self.others)
        self.before = effective_arguments(queue, self.others, version)
        # Where its dead letters rest now, and where Hopback parks: there, if the broker says so.
        # A name alone (`orders.errors`) may be that of a queue that somebody works through.
        without = replace(live, policies=self.others)
        found = [
            one for one in dead_letter_queues(without, version=version) if queue.name in one.origins
        ]
        certain = [one.name for one in found if one.known_by == "dead-lettering"]
        self.resting = tuple(one.name for one in found)
        self.parked = certain[0] if len(certain) == 1 else f"{queue.name}.dlq"
        self.waiting = self._waiting() if tiers_ms is None else {}
        known = tuple(self.waiting.values()) or _TIERS_MS
        self.plan = recommend_plan(
            queue.name, tiers_ms=known if tiers_ms is None else tiers_ms, attempts=attempts
        )

    def adoption(self) -> Adoption:
        as_it_is = self._as_it_is()
        return Adoption(
            queue=self.queue,
            bindings=self._bindings,
            policy=effective_policy(self.queue, self.live.policies),
            former=self.former,
            dead_letter_queues=self.resting,
            choices=(as_it_is, self._beside(as_it_is.topology), self._migrated()),
        )

    @property
    def _bindings(self) -> tuple[Binding, ...]:
        return tuple(
            each
            for each in self.live.bindings
            if each.destination == self.queue.name and not each.to_exchange and each.source
        )

    def _waiting(self) -> dict[str, int]:
        """The retry queues it has: they give every message straight back to it after a fixed time."""
        found = {}
        for each in effective_topology(self.live, self.version).queues:
            told = each.arguments
            ttl = told.get("x-message-ttl")
            back = told.get("x-dead-letter-exchange"), told.get("x-dead-letter-routing-key")
            if back == ("", self.queue.name) and isinstance(ttl, int) and ttl > 0:
                found[each.name] = int(ttl)
        return dict(sorted(found.items(), key=lambda one: one[1]))

    def _as_it_is(self) -> AdoptionChoice:
        name, parked = self.queue.name, self.parked
        names = dict(zip(self.waiting.values(), self.waiting, strict=True))
        tiers = tuple(
            replace(tier, routes=(Route("", names[tier.delay_ms], names[tier.delay_ms]),))
            if tier.delay_ms in names
            else tier
            for tier in self.plan.tiers
        )
        plan = replace(self.plan, tiers=tiers, parking=Parking(parked, Leave.PUBLISH, "", parked))
        new = {parked: _resting_queue(parked)}
        for tier in tiers:
            waits = tier.routes[0].queue
            new[waits] = at_least_once(waits, dead_lettering("", name, ttl_ms=tier.delay_ms))
        retry_queues = {tier.routes[0].queue for tier in tiers}
        for each in new:
            # As the broker has it already, where it does what the plan needs.
            found = self.live.queue(each)
            if found is not None and (each not in retry_queues or each in self.waiting):
                new[each] = found
        topology = self._topology(self.queue, *new.values(), plans=(plan,))
        fits = plan == self.plan and self.queue == harden_queues(plan)[0]
        waits = ", ".join(quote(format_duration(tier.delay_ms)) for tier in tiers)
        usual = plan.attempts == len(tiers) + 1
        further = "" if usual else f", attempts={plan.attempts}"
        return self._choice(
            AdoptionWay.AS_IT_IS,
            topology,
            notes=tuple(self._about_dead_letters()),
            refused=tuple(self._unusable(topology)),
            decorator=f"@app.handler({quote(name)}, retry=[{waits}]{further})" if fits else "",
        )

    def _about_dead_letters(self) -> Iterator[str]:
        parked = self.parked
        if self.live.queue(parked) is not None:
            yield f"failed messages are parked in {parked}, where its dead letters rest already"
        others = [name for name in self.resting if name != parked]
        if others:
            yield f"dead letters of it may rest in {', '.join(others)} too; Hopback parks in {parked}"
        if "x-dead-letter-exchange" not in self.before:
            yield (
                "what other consumers reject, and what expires, is deleted by the broker: it has no"
                " dead-letter exchange"
            )

    def _unusable(self, topology: Topology) -> Iterator[str]:
        if self.queue.type is QueueType.STREAM:
            yield "it is a stream: its messages are read by offset and cannot be settled one by one"
        if self.queue.exclusive:
            yield "it is exclusive: it belongs to one connection and ends with it"
        for conflict in diff(topology, self.live).conflict:
            yield (
                f"{conflict.kind} {conflict.name} is there in another form:"
                f" {conflict.differences[0].sides}"
            )

    def _beside(self, as_it_is: Topology) -> AdoptionChoice:
        target = f"{self.queue.name}.dlq"
        matching = find_policies(self.queue, self.others)
        ours = Policy(
            policy_name(self.queue.name),
            exactly(self.queue.name),
            {
                **(self.former.definition if self.former else {}),
                "dead-letter-exchange": "",
                "dead-letter-routing-key": target,
            },
            priority=max((p.priority for p in matching), default=0) + 1,
            apply_to="queues",
        )
        topology = replace(as_it_is, policies=(ours,))
        # What comes to the dead-letter queue from then on, besides what consumers reject.
        notes = []
        if self.former is not None:
            carried = self.former.definition.items()
            keys = ", ".join(f"{key}: {show_value(value)}" for key, value in carried)
            notes.append(
                f"it carries every key of policy {self.former.name} ({keys}), which is"
                " then in force for this queue no more: a later change there must be made here too"
            )
        if "x-message-ttl" in self.before:
            ttl = show_value(self.before["x-message-ttl"])
            notes.append(f"messages that expire ({ttl} ms) come to {target}")
        limited = {"x-max-length", "x-max-length-bytes"} & self.before.keys()
        if limited and self.before.get("x-overflow", "drop-head") == "drop-head":
            limits = " and ".join(sorted(limited))
            notes.append(f"messages pushed out by {limits} come to {target}")
        return self._choice(
            AdoptionWay.BESIDE,
            topology,
            notes=tuple(notes),
            refused=tuple(self._in_the_way(ours, target)),
        )

    def _in_the_way(self, ours: Policy, target: str) -> Iterator[str]:
        queue, before = self.queue, self.before
        if queue.type is QueueType.STREAM:
            yield "it is a stream: nothing is dead-lettered from it"
            return
        if queue.exclusive:
            yield "it is exclusive: it belongs to one connection and ends with it"
        if "x-dead-letter-exchange" in queue.arguments:
            to = show_value(queue.arguments["x-dead-letter-exchange"])
            yield f"it names its dead-letter exchange ({to}) by argument, which wins over any policy"
        elif "x-dead-letter-exchange" in before and self.former is not None:
            to = show_value(before["x-dead-letter-exchange"])
            yield f"policy {self.former.name} dead-letters to {to} already"
        if self.former is not None and is_ours(self.former):
            yield (
                f"policy {self.former.name} lifts its delivery limit, and carried along it could not be"
                f" taken back: `hopback topology revert --queue {queue.name}` first, lift it again after"
            )
        if self.told_policy not in (None, ours.name, self.former.name if self.former else None):
            mine = self.former.name if self.former else "none"
            yield (
                f"the broker says that policy {self.told_policy} is in force, by its patterns it would"
                f" be {mine}: look at the patterns, or wait 5 s if one was changed just now"
            )
        # Without a dead-letter exchange both of these meant nothing; with one they begin to.
        if before.get("x-dead-letter-strategy") == "at-least-once":
            yield (
                "its dead-letter strategy is at-least-once, which has no effect yet and would begin to:"
                " messages whose dead-letter queue cannot take them would be held back in it"
            )
        if before.get("x-overflow") == "reject-publish-dlx":
            yield (
                "its overflow is reject-publish-dlx, which refuses now and would begin to dead-letter"
                " what producers are told is refused"
            )
        after = effective_arguments(queue, (*self.others, ours), self.version)
        for key in sorted({*before, *after} - _DEAD_LETTER_KEYS):
            if before.get(key) != after.get(key):
                yield f"{key} would change from {show_value(before.get(key))} to {show_value(after.get(key))}"
        rests = self.live.queue(target) or _resting_queue(target)
        if why := _leaving(rests, self.others, self.version):
            yield f"queue {target} would not keep what comes to it: {why}"

    def _migrated(self) -> AdoptionChoice:
        limit = self.queue.arguments.get("x-delivery-limit")
        limit = int(limit) if isinstance(limit, int) and limit > 0 else DELIVERY_LIMIT
        main, *others = harden_queues(self.plan, delivery_limit=limit)
        kept, lost = {}, []
        for key, value in self.queue.arguments.items():
            if key in main.arguments:
                continue
            if key in ARGUMENTS_OF[QueueType.QUORUM]:
                kept[key] = value
            else:
                lost.append(f"{key} = {show_value(value)}")
        main = replace(main, arguments={**main.arguments, **kept})
        topology = self._topology(main, *others, plans=(self.plan,))
        notes = []
        if main == self.queue:
            notes.append("it has this form already: there is nothing to migrate")
        if lost:
            notes.append(f"a quorum queue does not have {', '.join(lost)}")
        drops = self.before.get("x-overflow", "drop-head") == "drop-head"
        if drops and {"x-max-length", "x-max-length-bytes"} & kept.keys():
            notes.append("when it is full, publishers are refused; now its oldest messages go")
        if not self.queue.durable:
            notes.append("it becomes durable: it and its messages outlive a restart")
        elsewhere = [name for name in self.resting if name != self.plan.parking.queue]
        if elsewhere:
            notes.append(
                f"dead letters from now on rest in {self.plan.parking.queue};"
                f" those in {', '.join(elsewhere)} stay there"
            )
        why = immovable(self.queue)
        return self._choice(
            AdoptionWay.MIGRATED,
            topology,
            notes=tuple(notes),
            refused=(f"it {why}",) if why else (),
        )

    def _topology(self, *queues: Queue, plans: tuple[Plan, ...]) -> Topology:
        """The queues with what feeds the adopted one, and with the way of its dead letters."""
        names = {queue.name for queue in queues}
        leads_to = {each.arguments.get("x-dead-letter-exchange") for each in queues} | {
            self.before.get("x-dead-letter-exchange")
        }
        bindings = self._bindings + tuple(
            each
            for each in self.live.bindings
            if each.source in leads_to and each.destination in names - {self.queue.name}
        )
        used = {each.source for each in bindings} | leads_to
        return Topology(
            self.queue.name,
            exchanges=tuple(each for each in self.live.exchanges if each.name in used),
            queues=queues,
            bindings=bindings,
            plans=plans,
        )

    def _choice(
        self,
        way: AdoptionWay,
        topology: Topology,
        *,
        notes: tuple[str, ...],
        refused: tuple[str, ...],
        decorator: str = "",
    ) -> AdoptionChoice:
        """With what `check` says of it under the policies that would be in force."""
        policies = {
            each.name: each
            for queue in topology.queues
            for each in find_policies(queue, (*self.others, *topology.policies))
        }
        judged = replace(topology, policies=tuple(policies.values()))
        return AdoptionChoice(way, topology, check(judged, self.version), notes, refused, decorator)


def _resting_queue(name: str) -> Queue:
    return Queue(name, QueueType.QUORUM, arguments={"x-delivery-limit": NO_DELIVERY_LIMIT})


def _leaving(queue: Queue, policies: Iterable[Policy], version: BrokerVersion) -> str:
    """Why messages do not stay in the queue until somebody takes them; empty if they do.

    A policy for many queues (`.*`) holds for a new one as well.
    """
    if not queue.durable or queue.exclusive or queue.auto_delete or queue.type is QueueType.STREAM:
        return "it is not durable, exclusive, auto-delete or a stream"
    told = effective_arguments(queue, policies, version)
    found = [f"{key} = {show_value(told[key])}" for key in _LEAVING if key in told]
    policy = effective_policy(queue, policies)
    by = f", under policy {policy.name}" if policy else ""
    return f"{', '.join(found)}{by}" if found else ""


async def set_beside(broker: ManagedBroker, queue: str) -> BesideSet:
    """Give a queue its dead-letter path: a queue for dead letters, then one policy.

    Reads the broker anew. UnsafeOperation, with nothing changed, where something forbids it. Safe to
    repeat: after a change of the former policy it carries the new keys.
    """
    management, vhost = _management(broker), broker.vhost
    choice = await _beside_now(broker, queue)
    if choice.refused:
        listed = "\n".join(f"  {why}" for why in choice.refused)
        raise UnsafeOperation(
            f"nothing was changed; {queue} must not get a path beside it:\n{listed}"
        )
    (ours,) = choice.topology.policies
    target = str(ours.definition["dead-letter-routing-key"])
    created = None
    if (await management.live_topology(vhost)).queue(target) is None:
        async with broker.query() as connection:
            await (await connection.open_channel()).declare_queue(_resting_queue(target))
        created = target
    await management.put_policy(vhost, ours)
    # Somebody may have changed the policy in force between the look and the put.
    now = await _beside_now(broker, queue)
    if now.topology.policies != (ours,) or now.refused:
        await management.delete_policy(vhost, ours.name)
        raise UnsafeOperation(
            f"the policies of {queue} changed meanwhile, so {ours.name} was taken back; run it again"
        )
    return BesideSet(created, ours)


async def _beside_now(broker: ManagedBroker, queue: str) -> AdoptionChoice:
    management, vhost = _management(broker), broker.vhost
    live = await management.live_topology(vhost)
    # The policies of the topology may come from statistics; these do not lag.
    live = replace(live, policies=await management.policies(vhost))
    told = None
    if live.queue(queue) is not None:
        told = (await management.queue(vhost, queue)).policy
    if told is not None and told not in {each.name for each in live.policies}:
        told = None  # it was deleted since: the statistics lag by up to 5 s
    found = adoption(live, queue, await broker.version(), told_policy=told)
    return found.choice(AdoptionWay.BESIDE)


async def revert_beside(broker: ManagedBroker, queue: str) -> Policy | None:
    """Delete the policy again; what was in force before is in force again. None if there is none.

    The dead-letter queue stays, with what is in it.
    """
    management, name = _management(broker), policy_name(queue)
    found = next(
        (each for each in await management.policies(broker.vhost) if each.name == name), None
    )
    if found is not None:
        await management.delete_policy(broker.vhost, name)
    return found


def _management(broker: ManagedBroker) -> ManagementApi:
    if broker.management is None:
        raise BadRequest("management", "its address: only it reads and changes policies")
    return broker.management
