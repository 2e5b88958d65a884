"""Find the ways to adopt an existing queue together with its messages.

There are three ways, and each of them is a topology:

- As it is: Hopback declares the queue exactly as it exists on the broker and adds a plan.
- Beside: the queue does not change. A policy adds a dead-letter path, which keeps the messages that
  the current consumers reject.
- Migrated: `hopback topology migrate` changes the queue to the recommended form.

`adoption` is pure. `set_beside` and `revert_beside` change a single policy. A broker applies only
one of the policies that match a queue, so the new policy repeats every key of the current one. It
must not change the queue in any other way. Hopback refuses to set it if the dead-letter exchange
would activate a dead-letter strategy or an overflow setting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.broker.limits import exact_pattern, is_ours
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
_TIERS_MS = (30_000, 300_000, 1_800_000)  # a handler's default waits: 30 s, 5 min and 30 min
_LOSING_ARGUMENTS = (
    "x-message-ttl", "x-expires", "x-dead-letter-exchange", "x-max-length", "x-max-length-bytes",
)  # fmt: skip
_DEAD_LETTER_KEYS = frozenset({"x-dead-letter-exchange", "x-dead-letter-routing-key"})


class AdoptionWay(StrEnum):
    AS_IT_IS = "as-it-is"
    BESIDE = "beside"
    MIGRATED = "migrated"


@dataclass(frozen=True, slots=True)
class AdoptionChoice:
    """One way to adopt a queue.

    `findings` are the hazards of its topology. This way is not available if there are reasons in
    `refused`. `decorator` is the equivalent handler decorator. It is empty if the topology cannot
    be expressed in one line.
    """

    way: AdoptionWay
    topology: Topology
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    decorator: str = ""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A queue of a live broker and the ways to adopt it.

    `policy` is the policy that applies to the queue now. `former` is the one that would apply
    without Hopback's policy.
    """

    queue: Queue
    bindings: tuple[Binding, ...]
    policy: Policy | None
    former: Policy | None
    dead_letter_queues: tuple[str, ...]
    choices: tuple[AdoptionChoice, ...]

    def choice(self, way: AdoptionWay) -> AdoptionChoice:
        return next(one for one in self.choices if one.way is way)


@dataclass(frozen=True, slots=True)
class BesideSet:
    """The changes made by `set_beside`. `created` is the dead-letter queue, or None if it already
    existed.
    """

    created: str | None
    policy: Policy


def policy_name(queue: str) -> str:
    """Return the name of the policy that adds a dead-letter path. It identifies Hopback's policy later."""
    return _PREFIX + queue


def adoption(
    live: Topology,
    name: str,
    version: BrokerVersion,
    *,
    tiers_ms: Sequence[int] | None = None,
    attempts: int | None = None,
    reported_policy: str | None = None,
) -> Adoption:
    """Return the three ways to adopt a queue of a live broker.

    `tiers_ms` are the waits before retries, in milliseconds. The default is taken from the existing
    retry queues, or is 30 s, 5 min and 30 min if there are none. `reported_policy` is the policy
    that the broker reports for the queue, or None if it does not report one.

    Raises NoSuch if the queue does not exist.
    """
    queue = live.queue(name)
    if queue is None:
        raise NoSuch("queue", name, "the management page lists the queues of the broker")
    return _Reader(live, queue, version, tiers_ms, attempts, reported_policy).adoption()


class _Reader:
    """Derive the choices for one queue from the live topology."""

    def __init__(
        self,
        live: Topology,
        queue: Queue,
        version: BrokerVersion,
        tiers_ms: Sequence[int] | None,
        attempts: int | None,
        reported_policy: str | None,
    ) -> None:
        self.live = live
        self.queue = queue
        self.version = version
        self.reported_policy = reported_policy
        # All choices describe the queue without Hopback's own policy.
        self.others = tuple(p for p in live.policies if p.name != policy_name(queue.name))
        self.former = effective_policy(queue, self.others)
        self.before = effective_arguments(queue, self.others, version)
        # Use the existing dead-letter queue if the topology of the broker identifies exactly one.
        # If only its name suggests it (`orders.errors`), the queue may have another consumer.
        without = replace(live, policies=self.others)
        found = [
            one for one in dead_letter_queues(without, version=version) if queue.name in one.origins
        ]
        certain = [one.name for one in found if one.known_by == "dead-lettering"]
        self.dead_letter_queues = tuple(one.name for one in found)
        self.parked = certain[0] if len(certain) == 1 else f"{queue.name}.dlq"
        self.retry_queues = self._find_retry_queues() if tiers_ms is None else {}
        known = tuple(self.retry_queues.values()) or _TIERS_MS
        self.plan = recommend_plan(
            queue.name, tiers_ms=known if tiers_ms is None else tiers_ms, attempts=attempts
        )

    def adoption(self) -> Adoption:
        as_it_is = self._choose_as_it_is()
        return Adoption(
            queue=self.queue,
            bindings=self._bindings,
            policy=effective_policy(self.queue, self.live.policies),
            former=self.former,
            dead_letter_queues=self.dead_letter_queues,
            choices=(as_it_is, self._choose_beside(as_it_is.topology), self._choose_migration()),
        )

    @property
    def _bindings(self) -> tuple[Binding, ...]:
        return tuple(
            each
            for each in self.live.bindings
            if each.destination == self.queue.name and not each.to_exchange and each.source
        )

    def _find_retry_queues(self) -> dict[str, int]:
        """Return the waits of the existing retry queues, in milliseconds. A retry queue
        dead-letters each message to the adopted queue after a fixed time.
        """
        found = {}
        for each in effective_topology(self.live, self.version).queues:
            given = each.arguments
            ttl = given.get("x-message-ttl")
            back = given.get("x-dead-letter-exchange"), given.get("x-dead-letter-routing-key")
            if back == ("", self.queue.name) and isinstance(ttl, int) and ttl > 0:
                found[each.name] = int(ttl)
        return dict(sorted(found.items(), key=lambda one: one[1]))

    def _choose_as_it_is(self) -> AdoptionChoice:
        name, parked = self.queue.name, self.parked
        names = dict(zip(self.retry_queues.values(), self.retry_queues, strict=True))
        tiers = tuple(
            replace(tier, routes=(Route("", names[tier.delay_ms], names[tier.delay_ms]),))
            if tier.delay_ms in names
            else tier
            for tier in self.plan.tiers
        )
        plan = replace(self.plan, tiers=tiers, parking=Parking(parked, Leave.PUBLISH, "", parked))
        new = {parked: _dead_letter_queue(parked)}
        for tier in tiers:
            waits = tier.routes[0].queue
            new[waits] = at_least_once(waits, dead_lettering("", name, ttl_ms=tier.delay_ms))
        retry_queues = {tier.routes[0].queue for tier in tiers}
        for each in new:
            # Keep an existing queue if the plan can use it.
            found = self.live.queue(each)
            if found is not None and (each not in retry_queues or each in self.retry_queues):
                new[each] = found
        topology = self._topology(self.queue, *new.values(), plans=(plan,))
        fits = plan == self.plan and self.queue == harden_queues(plan)[0]
        waits = ", ".join(quote(format_duration(tier.delay_ms)) for tier in tiers)
        usual = plan.attempts == len(tiers) + 1
        further = "" if usual else f", attempts={plan.attempts}"
        return self._choice(
            AdoptionWay.AS_IT_IS,
            topology,
            notes=tuple(self._note_dead_letters()),
            refused=tuple(self._find_conflicts(topology)),
            decorator=f"@app.handler({quote(name)}, retry=[{waits}]{further})" if fits else "",
        )

    def _note_dead_letters(self) -> Iterator[str]:
        parked = self.parked
        if self.live.queue(parked) is not None:
            yield f"failed messages are parked in {parked}, its current dead-letter queue"
        others = [name for name in self.dead_letter_queues if name != parked]
        if others:
            yield (
                f"{', '.join(others)} may also contain its dead letters. Hopback parks messages in {parked}"
            )
        if "x-dead-letter-exchange" not in self.before:
            yield (
                "it has no dead-letter exchange: the broker deletes messages that expire or that other"
                " consumers reject"
            )

    def _find_conflicts(self, topology: Topology) -> Iterator[str]:
        if self.queue.type is QueueType.STREAM:
            yield "it is a stream: consumers read its messages by offset and cannot settle them one by one"
        if self.queue.exclusive:
            yield "it is exclusive: it belongs to one connection and ends with it"
        for conflict in diff(topology, self.live).conflict:
            yield (
                f"{conflict.kind} {conflict.name} exists in another form:"
                f" {conflict.differences[0].sides}"
            )

    def _choose_beside(self, as_it_is: Topology) -> AdoptionChoice:
        target = f"{self.queue.name}.dlq"
        matching = find_policies(self.queue, self.others)
        ours = Policy(
            policy_name(self.queue.name),
            exact_pattern(self.queue.name),
            {
                **(self.former.definition if self.former else {}),
                "dead-letter-exchange": "",
                "dead-letter-routing-key": target,
            },
            priority=max((p.priority for p in matching), default=0) + 1,
            apply_to="queues",
        )
        topology = replace(as_it_is, policies=(ours,))
        # With a dead-letter exchange, expired and dropped messages are dead-lettered too.
        notes = []
        if self.former is not None:
            carried = self.former.definition.items()
            keys = ", ".join(f"{key}: {show_value(value)}" for key, value in carried)
            notes.append(
                f"the new policy repeats every key of policy {self.former.name} ({keys}) and replaces it for"
                " this queue: apply later changes of that policy to the new one too"
            )
        if "x-message-ttl" in self.before:
            ttl = show_value(self.before["x-message-ttl"])
            notes.append(f"messages that expire ({ttl} ms) are dead-lettered to {target}")
        limited = {"x-max-length", "x-max-length-bytes"} & self.before.keys()
        if limited and self.before.get("x-overflow", "drop-head") == "drop-head":
            limits = " and ".join(sorted(limited))
            notes.append(f"messages dropped because of {limits} are dead-lettered to {target}")
        return self._choice(
            AdoptionWay.BESIDE,
            topology,
            notes=tuple(notes),
            refused=tuple(self._find_beside_conflicts(ours, target)),
        )

    def _find_beside_conflicts(self, ours: Policy, target: str) -> Iterator[str]:
        queue, before = self.queue, self.before
        if queue.type is QueueType.STREAM:
            yield "it is a stream: a stream does not dead-letter"
            return
        if queue.exclusive:
            yield "it is exclusive: it belongs to one connection and ends with it"
        if "x-dead-letter-exchange" in queue.arguments:
            to = show_value(queue.arguments["x-dead-letter-exchange"])
            yield f"its arguments set the dead-letter exchange ({to}), and arguments override policies"
        elif "x-dead-letter-exchange" in before and self.former is not None:
            to = show_value(before["x-dead-letter-exchange"])
            yield f"policy {self.former.name} already sets the dead-letter exchange {to}"
        if self.former is not None and is_ours(self.former):
            yield (
                f"policy {self.former.name} lifts its delivery limit. Repeated in the new policy, that could"
                f" not be reverted: run `hopback topology revert --queue {queue.name}` first and lift the"
                " limit again afterwards"
            )
        if self.reported_policy not in (None, ours.name, self.former.name if self.former else None):
            mine = self.former.name if self.former else "none"
            yield (
                f"the broker applies policy {self.reported_policy}, but by the patterns and priorities it"
                f" should be {mine}: check the policies, or wait 5 s if one has just changed"
            )
        # A dead-letter exchange would activate these two settings or change their effect.
        if before.get("x-dead-letter-strategy") == "at-least-once":
            yield (
                "its dead-letter strategy at-least-once would take effect: the queue would hold back messages"
                " that its dead-letter queue does not accept"
            )
        if before.get("x-overflow") == "reject-publish-dlx":
            yield (
                "its overflow reject-publish-dlx would take effect: the broker would dead-letter messages"
                " although it reports them to producers as refused"
            )
        after = effective_arguments(queue, (*self.others, ours), self.version)
        for key in sorted({*before, *after} - _DEAD_LETTER_KEYS):
            if before.get(key) != after.get(key):
                yield f"{key} would change from {show_value(before.get(key))} to {show_value(after.get(key))}"
        rests = self.live.queue(target) or _dead_letter_queue(target)
        if why := _find_loss(rests, self.others, self.version):
            yield f"queue {target} would not keep its messages: {why}"

    def _choose_migration(self) -> AdoptionChoice:
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
            notes.append("it already has this form and does not need a migration")
        if lost:
            notes.append(f"a quorum queue does not support {', '.join(lost)}")
        drops = self.before.get("x-overflow", "drop-head") == "drop-head"
        if drops and {"x-max-length", "x-max-length-bytes"} & kept.keys():
            notes.append(
                "when it is full, the broker refuses new messages instead of dropping the oldest ones"
            )
        if not self.queue.durable:
            notes.append("it becomes durable: the queue and its messages survive a restart")
        elsewhere = [name for name in self.dead_letter_queues if name != self.plan.parking.queue]
        if elsewhere:
            notes.append(
                f"new dead letters are parked in {self.plan.parking.queue}. Those in"
                f" {', '.join(elsewhere)} stay there"
            )
        why = immovable(self.queue)
        return self._choice(
            AdoptionWay.MIGRATED,
            topology,
            notes=tuple(notes),
            refused=(f"it {why}",) if why else (),
        )

    def _topology(self, *queues: Queue, plans: tuple[Plan, ...]) -> Topology:
        """Return a topology with the queues, the bindings of the adopted queue and its dead-letter path."""
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
        """Return a choice with its findings. `check` sees the policies that would apply to the queues."""
        policies = {
            each.name: each
            for queue in topology.queues
            for each in find_policies(queue, (*self.others, *topology.policies))
        }
        judged = replace(topology, policies=tuple(policies.values()))
        return AdoptionChoice(way, topology, check(judged, self.version), notes, refused, decorator)


def _dead_letter_queue(name: str) -> Queue:
    return Queue(name, QueueType.QUORUM, arguments={"x-delivery-limit": NO_DELIVERY_LIMIT})


def _find_loss(queue: Queue, policies: Iterable[Policy], version: BrokerVersion) -> str:
    """Return why the queue could lose messages while it has no consumer. An empty string means that
    it cannot.

    A policy for many queues (`.*`) also applies to a queue that does not exist yet.
    """
    if not queue.durable or queue.exclusive or queue.auto_delete or queue.type is QueueType.STREAM:
        return "it is not durable, exclusive, auto-delete or a stream"
    arguments = effective_arguments(queue, policies, version)
    found = [
        f"{key} = {show_value(arguments[key])}" for key in _LOSING_ARGUMENTS if key in arguments
    ]
    policy = effective_policy(queue, policies)
    by = f", under policy {policy.name}" if policy else ""
    return f"{', '.join(found)}{by}" if found else ""


async def set_beside(broker: ManagedBroker, queue: str) -> BesideSet:
    """Add a dead-letter path to a queue. This declares the dead-letter queue and sets one policy.

    If the call is repeated, keys that have changed in the former policy are copied again.

    Raises UnsafeOperation without changing the broker if the choice is refused.
    """
    management, vhost = _management(broker), broker.vhost
    choice = await _beside_now(broker, queue)
    if choice.refused:
        listed = "\n".join(f"  {why}" for why in choice.refused)
        raise UnsafeOperation(
            f"cannot add a dead-letter path to {queue}, and did not change the broker:\n{listed}"
        )
    (ours,) = choice.topology.policies
    target = str(ours.definition["dead-letter-routing-key"])
    created = None
    if (await management.live_topology(vhost)).queue(target) is None:
        async with broker.query() as connection:
            await (await connection.open_channel()).declare_queue(_dead_letter_queue(target))
        created = target
    await management.put_policy(vhost, ours)
    # Another policy may have been set after the check above, so check again.
    now = await _beside_now(broker, queue)
    if now.topology.policies != (ours,) or now.refused:
        await management.delete_policy(vhost, ours.name)
        raise UnsafeOperation(
            f"the policies of {queue} changed at the same time, so {ours.name} was deleted again. Repeat"
            " the command"
        )
    return BesideSet(created, ours)


async def _beside_now(broker: ManagedBroker, queue: str) -> AdoptionChoice:
    management, vhost = _management(broker), broker.vhost
    live = await management.live_topology(vhost)
    # The live topology may contain policies from statistics. This list is up to date.
    live = replace(live, policies=await management.policies(vhost))
    applied = None
    if live.queue(queue) is not None:
        applied = (await management.queue(vhost, queue)).policy
    if applied is not None and applied not in {each.name for each in live.policies}:
        applied = None  # the policy was deleted, but statistics still report it for up to 5 s
    found = adoption(live, queue, await broker.version(), reported_policy=applied)
    return found.choice(AdoptionWay.BESIDE)


async def revert_beside(broker: ManagedBroker, queue: str) -> Policy | None:
    """Delete Hopback's policy, so that the former policy applies again.

    Returns the deleted policy, or None if it was not set. The dead-letter queue keeps its messages.
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
        raise BadRequest(
            "management", "the address of the management API, which reads and changes policies"
        )
    return broker.management
