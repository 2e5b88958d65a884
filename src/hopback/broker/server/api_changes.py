"""What the management API lets an operator change. Refusals are the node's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hopback.broker.embedded.journal import Loss
from hopback.broker.embedded.refusal import Refusal
from hopback.broker.server.api_objects import properties_key
from hopback.topology.definitions_objects import SECTIONS, parse
from hopback.topology.model import Binding, Exchange, Policy, Queue
from hopback.topology.places import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.broker.embedded.session import Session
    from hopback.broker.server.house import House
    from hopback.errors import Problem
    from hopback.topology.definitions_objects import Definable

__all__ = ["DELETES", "PUTS", "bind", "purge", "take_definitions", "unbind"]

_Json: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")
_LONGEST_NAME = 255  # bytes of a short string, as AMQP says names


@contextmanager
def _session(house: House) -> Iterator[Session]:
    """What is declared over HTTP belongs to nobody's connection."""
    session = house.node.connect("management", "guest")
    try:
        yield session
    finally:
        session.close()


_BOOLEANS = {"true": True, "false": False}
_FLAGS = frozenset({"durable", "auto_delete", "internal"})


def _read(section: str, name: str, asked: _Json, kind: type[_T]) -> _T:
    """An object of a request; ValueError with everything that is wrong with it.

    As at RabbitMQ, truth and the priority of a policy may be text: `rabbitmqadmin` sends them so.
    """
    problems: list[Problem] = []
    told: dict[str, Any] = {
        key: _BOOLEANS.get(value, value) if isinstance(value, str) and key in _FLAGS else value
        for key, value in {**asked, "name": name}.items()
    }
    priority = told.get("priority")
    if isinstance(priority, str) and priority.removeprefix("-").isdecimal() and len(priority) < 10:
        told["priority"] = int(priority)
    found = parse(section, Place(section, told, problems))
    if problems or not isinstance(found, kind):
        raise ValueError("; ".join(map(str, problems)) or f"expected one of the {section}")
    return found


def _put_queue(house: House, name: str, asked: _Json) -> bool:
    """Declare a queue; whether it is new."""
    if (length := len(name.encode())) > _LONGEST_NAME:
        # RabbitMQ's own words; exchanges, and names with a NUL, it takes.
        raise ValueError(f"queue should be less than 255 bytes, actually was {length}\n")
    queue = _read("queues", name, asked, Queue)
    new = name not in house.node.queues
    _check_room(house, new=new)
    with _session(house) as session:
        house.node.declare_queue(session, queue)
    return new


def _put_exchange(house: House, name: str, asked: _Json) -> bool:
    """Declare an exchange; whether it is new."""
    exchange = _read("exchanges", name, {"type": "direct", **asked}, Exchange)
    new = name not in house.node.wiring.exchanges
    _check_room(house, new=new)
    house.node.wiring.declare(exchange)
    return new


def _put_policy(house: House, name: str, asked: _Json) -> bool:
    """Set a policy; whether it is new."""
    return _set_policy(house, _read("policies", name, asked, Policy), operator=False)


def _put_operator_policy(house: House, name: str, asked: _Json) -> bool:
    """Set an operator policy; whether it is new."""
    policy = _read("policies", name, {"apply-to": "queues", **asked}, Policy)
    return _set_policy(house, policy, operator=True)


def _set_policy(house: House, policy: Policy, *, operator: bool) -> bool:
    policies = house.node.policies
    known = policies.operators() if operator else policies.all()
    new = all(each.name != policy.name for each in known)
    policies.put(policy, operator=operator)
    return new


def _delete_queue(house: House, name: str) -> bool:
    """Delete a queue; whether it was there."""
    found = house.node.queues.get(name)
    if found is not None:
        house.node.remove_queue(found, Loss.QUEUE_DELETED)
    return found is not None


def _delete_exchange(house: House, name: str) -> bool:
    """Delete an exchange; whether it was there."""
    there = name in house.node.wiring.exchanges
    house.node.wiring.delete(name)
    return there


def _delete_policy(house: House, name: str) -> bool:
    """Remove a policy; whether it was there."""
    there = any(each.name == name for each in house.node.policies.all())
    house.node.policies.remove(name)
    return there


def _delete_operator_policy(house: House, name: str) -> bool:
    """Remove an operator policy; whether it was there."""
    there = any(each.name == name for each in house.node.policies.operators())
    house.node.policies.remove(name, operator=True)
    return there


def purge(house: House, name: str) -> bool:
    """Remove what is ready in a queue; whether the queue is there."""
    found = house.node.queues.get(name)
    if found is not None:
        found.purge()
    return found is not None


def bind(house: House, source: str, destination: tuple[str, bool], asked: _Json) -> str:
    """Bind a queue, or an exchange (True), to an exchange; the key of the binding in a path."""
    found = _read(
        "bindings",
        "",
        {
            **asked,
            "source": source,
            "destination": destination[0],
            "destination_type": "exchange" if destination[1] else "queue",
        },
        Binding,
    )
    _check_room(house, new=found not in house.node.wiring.bindings)
    house.node.wiring.bind(found)
    return properties_key(found)


def unbind(house: House, source: str, destination: tuple[str, bool], key: str) -> bool:
    """Remove the binding with that key; whether it was there."""
    for found in house.node.wiring.bindings:
        ends = (found.source, (found.destination, found.to_exchange))
        if ends == (source, destination) and properties_key(found) == key:
            house.node.wiring.unbind(found)
            return True
    return False


def take_definitions(house: House, document: _Json) -> None:
    """Import definitions as RabbitMQ does.

    Policies are overwritten, bindings added, nothing is deleted; a queue or exchange that exists
    with other arguments is skipped without a word. Users and parameters are not taken.
    """
    problems: list[Problem] = []
    items = {section: _items(section, document, problems) for section in SECTIONS}
    if problems:
        raise ValueError("; ".join(map(str, problems)))
    for policy in items["policies"]:
        if isinstance(policy, Policy):
            house.node.policies.put(policy)
    with _session(house) as session:
        for section in ("exchanges", "queues", "bindings"):
            for item in items[section]:
                _declare(house, session, item)


def _items(section: str, document: _Json, problems: list[Problem]) -> list[Definable]:
    found = []
    for place in Place(section, document.get(section, []), problems).items():
        home = place.value.get("vhost", "/") if isinstance(place.value, Mapping) else "/"
        if home != "/":
            place.wrong("an object of the virtual host /, the only one there is", repr(home))
        item = parse(section, place)
        if item is not None:
            found.append(item)
    return found


def _declare(house: House, session: Session, item: Definable) -> None:
    node = house.node
    match item:
        case Queue() if item.name not in node.queues:
            _check_room(house, new=True)
            node.declare_queue(session, item)
        case Exchange() if item.name not in node.wiring.exchanges:
            _check_room(house, new=True)
            node.wiring.declare(item)
        case Binding():
            _check_room(house, new=True)
            _bind(house, item)


def _bind(house: House, binding: Binding) -> None:
    """Before 4.0 a binding to something that is missing is skipped."""
    try:
        house.node.wiring.bind(binding)
    except Refusal as refusal:
        if refusal.code != 404 or house.node.profile.version.major >= 4:
            raise


def _check_room(house: House, *, new: bool) -> None:
    if new and house.is_full():
        most = house.limits.declared
        raise ValueError(f"expected at most {most} queues, exchanges and bindings, got more")


PUTS: dict[str, Callable[[House, str, _Json], bool]] = {
    "exchanges": _put_exchange,
    "operator-policies": _put_operator_policy,
    "policies": _put_policy,
    "queues": _put_queue,
}
"""What can be made or replaced by name."""

DELETES: dict[str, Callable[[House, str], bool]] = {
    "exchanges": _delete_exchange,
    "operator-policies": _delete_operator_policy,
    "policies": _delete_policy,
    "queues": _delete_queue,
}
"""What can be removed by name."""
