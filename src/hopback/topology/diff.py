"""Compare the desired topology with the actual one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.definitions import Definable, identity
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.rabbitmq_arguments import ARGUMENTS_OF, QUEUE_ARGUMENTS, Prevails, policy_key
from hopback.topology.wording import quote, show_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hopback.fields import FieldValue


_MIGRATE = (
    "it cannot change in place: declare it as the broker has it, or migrate"
    " (make a new queue, move the messages, delete the old one)"
)
_RECREATE = (
    "it cannot change in place: declare it as the broker has it, or delete the exchange and"
    " create it and its bindings again"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation. `policy` is the key and value of a policy that has the same effect, or None."""

    text: str
    policy: tuple[str, FieldValue] | None = None


def advise_queue(actual: Queue, field: str, desired: FieldValue, found: FieldValue) -> Advice:
    """Return the recommendation for a queue argument that differs."""
    key, known = policy_key(field), QUEUE_ARGUMENTS.get(field)
    if key is None or known is None or not known.live or actual.type not in known.types:
        return Advice(_MIGRATE)
    if desired is None:
        return Advice(f"a policy cannot remove an argument: {_MIGRATE}")
    # Check whether a policy takes precedence over the argument.
    if known.prevails is Prevails.SMALLER:
        # A negative delivery limit means unlimited.
        prevails = (
            isinstance(desired, int)
            and isinstance(found, int)
            and (0 <= desired < found or found < 0 <= desired)
        )
    else:
        prevails = known.prevails is Prevails.POLICY_OF_QUORUM and actual.type is QueueType.QUORUM
    if found is None or prevails:
        note = " (for messages that arrive later)" if key == "message-ttl" else ""
        return Advice(
            f"a policy with {key}: {show_value(desired)} has the same effect on the live queue{note}."
            " Declare the argument as the broker has it",
            (key, desired),
        )
    why = (
        "RabbitMQ uses the smaller value of argument and policy"
        if known.prevails is Prevails.SMALLER
        else "the argument takes precedence over any policy"
    )
    return Advice(f"{why}; {_MIGRATE}")


def advise_exchange(field: str, desired: FieldValue, found: FieldValue) -> Advice:
    """Return the recommendation for an exchange argument that differs."""
    if field == "alternate-exchange" and found is None:
        return Advice(
            f"a policy with alternate-exchange: {show_value(desired)} has the same effect on the live"
            " exchange. Declare the exchange without the argument",
            ("alternate-exchange", desired),
        )
    return Advice(_RECREATE)


def advise_policy() -> Advice:
    """Return the recommendation for a policy that differs."""
    return Advice("a policy can be replaced at any time and takes effect at once")


_Field: TypeAlias = "tuple[str, FieldValue, FieldValue]"


class Kind(StrEnum):
    """Kinds of objects, in the order in which they are created."""

    EXCHANGE = "exchange"
    QUEUE = "queue"
    BINDING = "binding"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class DiffEntry:
    """An object that is missing, unchanged or additional."""

    kind: Kind
    name: str
    item: Exchange | Queue | Binding | Policy

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A field or argument that differs. A missing value is None.

    `policy` is the key and value of a policy that has the same effect without recreating the object,
    or None.
    """

    field: str
    desired: FieldValue
    actual: FieldValue
    advice: str
    policy: tuple[str, FieldValue] | None = None

    @property
    def sides(self) -> str:
        """Both values as text."""
        return f"{self.field}: {_side(self.desired)} desired, {_side(self.actual)} on the broker"

    def __str__(self) -> str:
        return f"{self.sides}; {self.advice}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that exists with different settings. RabbitMQ does not allow redeclaring it."""

    kind: Kind
    name: str
    desired: Exchange | Queue | Policy
    actual: Exchange | Queue | Policy
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        lines = (f"  {difference}" for difference in self.differences)
        return "\n".join((f"{self.kind} {self.name}", *lines))


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two topologies."""

    create: tuple[DiffEntry, ...] = ()
    same: tuple[DiffEntry, ...] = ()
    conflict: tuple[Conflict, ...] = ()
    extra: tuple[DiffEntry, ...] = ()

    @property
    def is_up_to_date(self) -> bool:
        """Whether the broker has all objects, and none of them conflict."""
        return not self.create and not self.conflict


def diff(desired: Topology, actual: Topology) -> Diff:
    """Compare the desired topology with the actual topology of a broker."""
    found = _Comparison()
    found.compare(Kind.EXCHANGE, desired.exchanges, actual.exchanges)
    found.compare(Kind.QUEUE, desired.queues, actual.queues)
    found.compare(Kind.BINDING, desired.bindings, actual.bindings)
    found.compare(Kind.POLICY, desired.policies, actual.policies)
    return Diff(tuple(found.create), tuple(found.same), tuple(found.conflict), tuple(found.extra))


class _Comparison:
    def __init__(self) -> None:
        self.create: list[DiffEntry] = []
        self.same: list[DiffEntry] = []
        self.conflict: list[Conflict] = []
        self.extra: list[DiffEntry] = []

    def compare(
        self, kind: Kind, desired: Iterable[Definable], actual: Iterable[Definable]
    ) -> None:
        there = {identity(item): item for item in actual}
        wanted = {identity(item): item for item in desired if not _implicit(item)}
        for key, item in wanted.items():
            if key in there:
                self.meet(kind, item, there[key])
            else:
                self.create.append(_entry(kind, item))
        self.extra += [
            _entry(kind, item)
            for key, item in there.items()
            if key not in wanted and not _implicit(item)
        ]

    def meet(self, kind: Kind, desired: Definable, actual: Definable) -> None:
        """Compare two objects with the same name."""
        differences: list[Difference] = []
        match desired, actual:
            case Queue(), Queue():
                differences = [
                    _difference(field, advise_queue(actual, *field))
                    for field in _differences(_queue_fields(desired), _queue_fields(actual))
                ]
            case Exchange(), Exchange():
                differences = [
                    _difference(field, advise_exchange(*field))
                    for field in _differences(_exchange_fields(desired), _exchange_fields(actual))
                ]
            case Policy(), Policy():
                differences = [
                    _difference(field, advise_policy())
                    for field in _differences(_policy_fields(desired), _policy_fields(actual))
                ]
        if not differences or isinstance(desired, Binding) or isinstance(actual, Binding):
            self.same.append(_entry(kind, desired))
        else:
            name = _name(desired)
            self.conflict.append(Conflict(kind, name, desired, actual, tuple(differences)))


def _implicit(item: Definable) -> bool:
    """Return True if the object is created by the broker itself, such as `amq.…` exchanges."""
    if isinstance(item, Binding):
        return not item.source or item.destination.startswith("amq.")
    return not isinstance(item, Policy) and (not item.name or item.name.startswith("amq."))


def _entry(kind: Kind, item: Definable) -> DiffEntry:
    return DiffEntry(kind, _name(item), item)


def _name(item: Definable) -> str:
    if not isinstance(item, Binding):
        return item.name
    end = "exchange " if item.to_exchange else ""
    key = f" by {quote(item.routing_key)}" if item.routing_key else ""
    headers = f" with {len(item.arguments)} arguments" if item.arguments else ""
    return f"{item.source} → {end}{item.destination}{key}{headers}"


def _side(value: FieldValue) -> str:
    return "nothing" if value is None else show_value(value)


def _difference(field: _Field, advice: Advice) -> Difference:
    return Difference(*field, advice=advice.text, policy=advice.policy)


def _differences(desired: dict[str, FieldValue], actual: dict[str, FieldValue]) -> Iterator[_Field]:
    for name in (*desired, *(name for name in actual if name not in desired)):
        wanted, found = desired.get(name), actual.get(name)
        if wanted != found or isinstance(wanted, bool) is not isinstance(found, bool):
            yield name, wanted, found


def _queue_fields(queue: Queue) -> dict[str, FieldValue]:
    """Return the fields that RabbitMQ compares when a queue is redeclared."""
    known = ARGUMENTS_OF[queue.type]
    arguments = {key: value for key, value in queue.arguments.items() if key in known}
    return {
        "type": str(queue.type),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        **arguments,
    }


def _exchange_fields(exchange: Exchange) -> dict[str, FieldValue]:
    alternate = exchange.arguments.get("alternate-exchange")
    arguments = {} if alternate is None else {"alternate-exchange": alternate}
    return {
        "type": str(exchange.type),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        **arguments,
    }


def _policy_fields(policy: Policy) -> dict[str, FieldValue]:
    definition = {f"definition.{key}": value for key, value in policy.definition.items()}
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "priority": policy.priority,
        **definition,
    }
