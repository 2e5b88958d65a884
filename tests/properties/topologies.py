"""Strategies for topologies, including invalid ones. Names come from small pools so that objects
refer to each other.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from hopback.fields import Int32, Timestamp
from hopback.topology.model import (
    Binding,
    Exchange,
    ExchangeType,
    Policy,
    Queue,
    QueueType,
    Topology,
)
from hopback.topology.plan import (
    Count,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Tier,
)
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue

__all__ = [
    "bindings",
    "exchanges",
    "field_values",
    "plans",
    "policies",
    "queues",
    "topologies",
    "versions",
]

QUEUE_NAMES = ("orders", "orders.retry", "orders.dlq", "audit", "a.b", "", "amq.q", "ü\x1b[0m")
EXCHANGE_NAMES = ("events", "events.dlx", "retry", "amq.topic", "orders", "", "nowhere")
KEYS = ("", "orders", "orders.retry", "orders.dlq", "a.b", "a.*", "#", "a.#", "*", "retry")
PATTERNS = ("", "^orders", ".*", "retry$", "(", "^orders\\.dlq$")

scalars: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from([Decimal("1.5"), Int32(7), Timestamp(1), "at-least-once", "reject-publish"]),
)
field_values: st.SearchStrategy[FieldValue] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=3,
)
"""Any AMQP value."""

SENSIBLE: dict[str, st.SearchStrategy[FieldValue]] = {
    "x-message-ttl": st.sampled_from([0, 1000, 5000]),
    "x-expires": st.sampled_from([1, 60_000]),
    "x-max-length": st.sampled_from([0, 10]),
    "x-max-length-bytes": st.sampled_from([0, 1000]),
    "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
    "x-dead-letter-exchange": st.sampled_from(EXCHANGE_NAMES),
    "x-dead-letter-routing-key": st.sampled_from(KEYS),
    "x-dead-letter-strategy": st.sampled_from(["at-most-once", "at-least-once"]),
    "x-delivery-limit": st.sampled_from([-1, 0, 5, 20, 10**9]),
    "x-max-priority": st.integers(0, 10),
}
sensible = st.fixed_dictionaries({}, optional=SENSIBLE)
hostile = st.dictionaries(
    st.one_of(st.sampled_from([*SENSIBLE, "x-dead-leter-exchange"]), st.text(max_size=8)),
    field_values,
    max_size=2,
)
arguments = st.one_of(sensible, sensible, hostile)
queue_names = st.sampled_from(QUEUE_NAMES)
exchange_names = st.sampled_from(EXCHANGE_NAMES)
keys = st.sampled_from(KEYS)

exchanges = st.builds(
    Exchange,
    exchange_names,
    st.sampled_from([*ExchangeType, "x-delayed-message", "strange"]),
    durable=st.booleans(),
    auto_delete=st.booleans(),
    internal=st.booleans(),
    arguments=st.one_of(
        st.just({}),
        st.fixed_dictionaries({"alternate-exchange": exchange_names}),
        hostile,
    ),
)
"""An exchange, often with a name that other objects use."""

queues = st.builds(
    Queue,
    queue_names,
    st.sampled_from(QueueType),
    durable=st.booleans(),
    exclusive=st.booleans(),
    auto_delete=st.booleans(),
    arguments=arguments,
)
"""A queue with sensible or hostile arguments."""

bindings = st.builds(
    Binding,
    exchange_names,
    st.sampled_from([*QUEUE_NAMES, *EXCHANGE_NAMES]),
    keys,
    st.booleans(),
    st.sampled_from([{}, {}, {"x-match": "any", "a": 1}, {"a": None}, {"x-match": 5, "b": [1]}]),
)
"""A binding whose ends may not exist."""

routes = st.builds(Route, exchange_names, keys, queue_names, keys)
tiers = st.builds(
    Tier,
    st.text(max_size=3),
    st.sampled_from([0, 1000, 5000]),
    st.lists(routes, max_size=2).map(tuple),
)
plans = st.builds(
    Plan,
    queue=queue_names,
    attempts=st.integers(1, 40),
    tiers=st.lists(tiers, max_size=3).map(tuple),
    leave=st.sampled_from(Leave),
    returns=st.sampled_from(Return),
    parking=st.builds(Parking, queue_names, st.sampled_from(Leave), exchange_names, keys),
    count=st.sampled_from(Count),
    redrive=st.builds(Redrive, exchange_names, keys),
    snooze=st.one_of(st.none(), st.just(LocalWait())),
)
"""A failure plan whose queues may not exist."""

policies = st.builds(
    Policy,
    st.text(max_size=4),
    st.sampled_from(PATTERNS),
    arguments.map(lambda found: {key.removeprefix("x-"): value for key, value in found.items()}),
    st.integers(-1, 2),
    st.sampled_from(["all", "queues", "exchanges", "quorum_queues", "classic_queues", "odd"]),
)
"""A policy that a broker may refuse."""

versions = st.one_of(
    st.none(),
    st.sampled_from(["3.10", "3.12.1", "3.13.1", "3.13.7", "4.0", "4.2", "4.3.6"]).map(
        BrokerVersion.parse
    ),
)
"""A broker version or None."""


def _few(strategy: st.SearchStrategy[object], most: int) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=most).map(tuple)


topologies: st.SearchStrategy[Topology] = st.builds(
    Topology,
    st.text(max_size=5),
    exchanges=_few(exchanges, 3),
    queues=_few(queues, 5),
    bindings=_few(bindings, 5),
    plans=_few(plans, 2),
    policies=_few(policies, 2),
    foreign=st.just({}),
)
"""Any topology, valid or not. Functions that read a topology must not raise on it."""
