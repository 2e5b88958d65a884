"""Change objects with the management API, and publish or get messages.

Errors are raised by the node.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hopback.broker.embedded.journal import EventKind, Loss
from hopback.broker.embedded.refusal import Refusal
from hopback.broker.embedded.rights import DEFAULT_EXCHANGE, Right
from hopback.broker.server.api_objects import properties_key
from hopback.broker.server.api_users import VhostAccess, plain, table, take_users
from hopback.message import Message, Properties
from hopback.topology.definitions import SECTIONS, Definable, parse
from hopback.topology.located import Located
from hopback.topology.model import Binding, Exchange, Policy, Queue

if TYPE_CHECKING:
    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.broker.server.served import ServedBroker
    from hopback.errors import Problem

_Json: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")
_LONGEST_NAME = 255  # maximum length of a short string in AMQP


_BOOLEANS = {"true": True, "false": False}
_FLAGS = frozenset({"durable", "auto_delete", "internal"})


def _read(section: str, name: str, asked: _Json, kind: type[_T]) -> _T:
    """Parse the object in a request. Raises ValueError with all problems.

    Booleans and the priority of a policy may be strings, because `rabbitmqadmin` sends them like
    this.
    """
    problems: list[Problem] = []
    told: dict[str, Any] = {
        key: _BOOLEANS.get(value, value) if isinstance(value, str) and key in _FLAGS else value
        for key, value in {**asked, "name": name}.items()
    }
    priority = told.get("priority")
    if isinstance(priority, str) and priority.removeprefix("-").isdecimal() and len(priority) < 10:
        told["priority"] = int(priority)
    found = parse(section, Located(section, told, problems))
    if problems or not isinstance(found, kind):
        raise ValueError("; ".join(map(str, problems)) or f"expected one of the {section}")
    return found


def _put_queue(access: VhostAccess, name: str, asked: _Json) -> bool:
    """Declare a queue. Returns True if it was created."""
    if (length := len(name.encode())) > _LONGEST_NAME:
        # The text is the same as RabbitMQ's. RabbitMQ also accepts longer exchange names, and names
        # that contain NUL.
        raise ValueError(f"queue should be less than 255 bytes, actually was {length}\n")
    queue = _read("queues", name, asked, Queue)
    new = name not in access.node.queues
    _check_room(access.broker, new=new)
    with access.channel() as channel:
        channel.declare_queue(queue)
    return new


def _put_exchange(access: VhostAccess, name: str, asked: _Json) -> bool:
    """Declare an exchange. Returns True if it was created."""
    exchange = _read("exchanges", name, {"type": "direct", **asked}, Exchange)
    new = name not in access.node.routing.exchanges
    _check_room(access.broker, new=new)
    with access.channel() as channel:
        channel.declare_exchange(exchange)
    return new


def _put_policy(access: VhostAccess, name: str, asked: _Json) -> bool:
    """Set a policy. Returns True if it was created."""
    return _set_policy(access, _read("policies", name, asked, Policy), operator=False)


def _put_operator_policy(access: VhostAccess, name: str, asked: _Json) -> bool:
    """Set an operator policy. Returns True if it was created."""
    policy = _read("policies", name, {"apply-to": "queues", **asked}, Policy)
    return _set_policy(access, policy, operator=True)


def _set_policy(access: VhostAccess, policy: Policy, *, operator: bool) -> bool:
    policies = access.node.policies
    known = policies.operators() if operator else policies.all()
    new = all(each.name != policy.name for each in known)
    policies.put(policy, operator=operator)
    return new


def _delete_queue(access: VhostAccess, name: str) -> bool:
    """Delete a queue. Returns True if it existed."""
    found = access.node.queues.get(name)
    if found is not None:
        with access.session() as session:
            session.check(Right.CONFIGURE, "queue", name)
        access.node.remove_queue(found, Loss.QUEUE_DELETED)
    return found is not None


def _delete_exchange(access: VhostAccess, name: str) -> bool:
    """Delete an exchange. Returns True if it existed."""
    there = name in access.node.routing.exchanges
    with access.channel() as channel:
        channel.delete_exchange(name)
    return there


def _delete_policy(access: VhostAccess, name: str) -> bool:
    """Delete a policy. Returns True if it existed."""
    there = any(each.name == name for each in access.node.policies.all())
    access.node.policies.remove(name)
    return there


def _delete_operator_policy(access: VhostAccess, name: str) -> bool:
    """Delete an operator policy. Returns True if it existed."""
    there = any(each.name == name for each in access.node.policies.operators())
    access.node.policies.remove(name, operator=True)
    return there


def purge(access: VhostAccess, name: str) -> bool:
    """Delete the ready messages of a queue. Returns True if the queue exists."""
    found = access.node.queues.get(name)
    if found is not None:
        with access.session() as session:
            session.check(Right.READ, "queue", name)
        found.purge()
    return found is not None


def bind(access: VhostAccess, source: str, destination: tuple[str, bool], asked: _Json) -> str:
    """Bind a queue or exchange to an exchange, and return the properties key of the binding.

    If the boolean is True, the destination is an exchange.
    """
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
    _check_room(access.broker, new=found not in access.node.routing.bindings)
    with access.channel() as channel:
        channel.bind(found)
    return properties_key(found)


def unbind(access: VhostAccess, source: str, destination: tuple[str, bool], key: str) -> bool:
    """Remove the binding with this properties key. Returns True if it existed."""
    for found in access.node.routing.bindings:
        ends = (found.source, (found.destination, found.to_exchange))
        if ends == (source, destination) and properties_key(found) == key:
            with access.channel() as channel:
                channel.unbind(found)
            return True
    return False


def take_definitions(
    broker: ServedBroker, document: _Json, *, vhost: str | None = None, creator: str | None = None
) -> None:
    """Import definitions, either into one virtual host or into all of them.

    This works like in RabbitMQ: policies are overwritten, bindings are added, nothing is deleted,
    and queues and exchanges that exist with different arguments are skipped silently. Parameters
    are ignored.
    """
    problems: list[Problem] = []
    if vhost is not None:
        known = {vhost}
    else:  # existing virtual hosts, and those in the document
        listed = document.get("vhosts", [])
        entries = listed if isinstance(listed, list) else []
        names = (each.get("name") for each in entries if isinstance(each, Mapping))
        known = {*broker.vhosts, *(name for name in names if isinstance(name, str))}
    items = {section: _items(section, document, problems, vhost) for section in SECTIONS}
    for home, _ in (each for found in items.values() for each in found):
        if home not in known:
            raise ValueError(
                f"expected objects of virtual hosts that are there, got one of {home!r}"
            )
    if problems:
        raise ValueError("; ".join(map(str, problems)))
    if vhost is None:
        take_users(broker, document, creator)
    for home, policy in items["policies"]:
        if isinstance(policy, Policy):
            broker.vhosts[home].policies.put(policy)
    for section in ("exchanges", "queues", "bindings"):
        for home, item in items[section]:
            _declare(broker, broker.vhosts[home], item)


def _items(
    section: str, document: _Json, problems: list[Problem], vhost: str | None
) -> list[tuple[str, Definable]]:
    """Return the objects of a section with their virtual hosts."""
    found = []
    for place in Located(section, document.get(section, []), problems).items():
        home = place.value.get("vhost", "/") if isinstance(place.value, Mapping) else "/"
        item = parse(section, place)
        if item is not None:
            found.append((str(home) if vhost is None else vhost, item))
    return found


def _declare(broker: ServedBroker, node: Node, item: Definable) -> None:
    match item:
        case Queue() if item.name not in node.queues:
            _check_room(broker, new=True)
            session = node.connect("management")
            try:
                node.declare_queue(session, item)
            finally:
                session.close()
        case Exchange() if item.name not in node.routing.exchanges:
            _check_room(broker, new=True)
            node.routing.declare(item)
        case Binding():
            _check_room(broker, new=True)
            # Before 4.0, bindings of objects that do not exist are skipped.
            try:
                node.routing.bind(item)
            except Refusal as refusal:
                if refusal.code != 404 or node.profile.version.major >= 4:
                    raise


def _check_room(broker: ServedBroker, *, new: bool) -> None:
    if new and broker.is_full():
        most = broker.limits.declared
        raise ValueError(f"expected at most {most} queues, exchanges and bindings, got more")


PUTS: dict[str, Callable[[VhostAccess, str, _Json], bool]] = {
    "exchanges": _put_exchange,
    "operator-policies": _put_operator_policy,
    "policies": _put_policy,
    "queues": _put_queue,
}
"""Functions that create or replace an object."""

DELETES: dict[str, Callable[[VhostAccess, str], bool]] = {
    "exchanges": _delete_exchange,
    "operator-policies": _delete_operator_policy,
    "policies": _delete_policy,
    "queues": _delete_queue,
}
"""Functions that delete an object."""

_VHOST_LIMITS = ("max-connections", "max-queues")
_USER_LIMITS = ("max-connections", "max-channels")


def put_limit(limits: dict[str, int], name: str, asked: _Json, *, of_user: bool = False) -> None:
    """Handle `PUT /api/vhost-limits/…` and `/api/user-limits/…`. Raises ValueError for an invalid
    limit.
    """
    value = asked.get("value")
    if name not in (_USER_LIMITS if of_user else _VHOST_LIMITS):
        shown = json.dumps(value)
        raise ValueError(
            f'Validation failed\n\nUnrecognised terms [{{<<"{name}">>,{shown}}}] in limits\n'
        )
    if isinstance(value, bool) or not isinstance(value, int):
        shown = f'<<"{value}">>' if isinstance(value, str) else json.dumps(value)
        raise ValueError(f"Validation failed\n\n{name} should be a number, actually was {shown}\n")
    limits[name] = value


_MOST_MESSAGES = 10_000
"""Maximum number of messages in a response. It is built in memory, and blocks other clients in the
meantime.
"""
_ACK_MODES = {
    "ack_requeue_true": True,
    "ack_requeue_false": False,
    "reject_requeue_true": True,
    "reject_requeue_false": False,
}
_TEXTS = (
    "app_id",
    "cluster_id",
    "content_encoding",
    "content_type",
    "correlation_id",
    "expiration",
    "message_id",
    "reply_to",
    "type",
    "user_id",
)
_NUMBERS = ("delivery_mode", "priority", "timestamp")


def publish(access: VhostAccess, exchange: str, asked: _Json) -> dict[str, object]:
    """Handle `POST /api/exchanges/{vhost}/{name}/publish`. Raises ValueError if the request is
    invalid.
    """
    key, payload = asked.get("routing_key"), asked.get("payload")
    encoding = asked.get("payload_encoding")
    if not isinstance(key, str) or not isinstance(payload, str):
        raise ValueError("expected routing_key and payload, both text")
    if encoding == "base64":
        try:
            body = base64.b64decode(payload, validate=True)
        except binascii.Error as error:
            raise ValueError(f"expected a payload in base64: {error}") from error
    elif encoding == "string":
        body = payload.encode()
    else:
        raise ValueError(f"expected payload_encoding string or base64, got {encoding!r}")
    name = "" if exchange == DEFAULT_EXCHANGE else exchange
    with access.channel() as channel:
        fate = channel.publish(
            Message(name, key, body),
            mandatory=True,
            properties=_properties(asked.get("properties")),
        )
    return {"routed": fate is not EventKind.RETURNED}


def _properties(asked: object) -> Properties:
    """Parse message properties. An empty list is accepted as an empty table, because PHP sends it
    like this.
    """
    given = {} if asked in (None, []) else asked
    if not isinstance(given, dict):
        raise ValueError(f"expected properties as an object, got {asked!r}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TEXTS:
            if not isinstance(value, str):
                raise ValueError(f"expected {name} as text, got {value!r}")
            found[name] = value
        elif name in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"expected {name} as a number, got {value!r}")
            found[name] = value
        elif name == "headers":
            if not isinstance(value, dict):
                raise ValueError(f"expected headers as an object, got {value!r}")
            found["headers"] = value
        else:
            raise ValueError(f"expected a property of AMQP, got {name!r}")
    return Properties(**found)


def get(access: VhostAccess, queue: str, asked: _Json) -> list[dict[str, object]]:
    """Handle `POST /api/queues/{vhost}/{name}/get`. Raises ValueError if the request is invalid."""
    count = asked.get("count")
    count = int(count) if isinstance(count, str) and count.isdecimal() and len(count) < 9 else count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST_MESSAGES:
        raise ValueError(f"expected a count from 0 to {_MOST_MESSAGES}, got {count!r}")
    mode, encoding = asked.get("ackmode"), asked.get("encoding")
    if mode not in _ACK_MODES:
        raise ValueError(f"expected ackmode as one of {', '.join(_ACK_MODES)}, got {mode!r}")
    if encoding not in ("auto", "base64"):
        raise ValueError(f"expected encoding auto or base64, got {encoding!r}")
    most = asked.get("truncate")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise ValueError(f"expected truncate as a number, got {most!r}")
    found: list[dict[str, object]] = []
    with access.channel() as channel:
        for _ in range(count):
            taken = channel.get(queue)
            if taken is None:
                break
            found.append(_message(taken, encoding, most))
            if not _ACK_MODES[mode]:
                if mode.startswith("ack"):
                    channel.ack(taken.tag)
                else:
                    channel.reject(taken.tag, requeue=False)
        if _ACK_MODES[mode]:
            # Requeue all messages at the end, so that none of them is returned twice.
            for tag in reversed(tuple(channel.unacked)):
                channel.nack(tag, requeue=True)
    return found


def _message(taken: UnackedDelivery, encoding: str, most: int | None) -> dict[str, object]:
    body = taken.body[:most]
    try:
        text = None if encoding == "base64" else body.decode()
    except UnicodeDecodeError:
        text = None
    told = {
        name: plain(value)
        for name, value in vars(taken.properties).items()
        if value is not None and name in (*_TEXTS, *_NUMBERS)
    }
    if taken.properties.has_headers:
        told["headers"] = table(taken.properties.headers)
    return {
        "exchange": taken.exchange,
        "routing_key": plain(taken.routing_key),
        "redelivered": taken.redelivered,
        "message_count": len(taken.source.ready),
        "properties": told or [],  # RabbitMQ returns a list if there are no properties
        "payload_bytes": len(taken.body),
        "payload": base64.b64encode(body).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }
