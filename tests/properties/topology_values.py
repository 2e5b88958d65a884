"""Strategies for valid topologies of every kind and for arbitrary data instead of one."""

from __future__ import annotations

from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hopback.durations import LONGEST_MS
from hopback.errors import InvalidTopology
from hopback.fields import Float32, LongStr
from hopback.topology.arguments import INTEGER_RANGES
from hopback.topology.model import (
    Binding,
    Exchange,
    ExchangeType,
    Policy,
    Queue,
    QueueType,
    Topology,
    freeze,
)
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Stamp,
    Tier,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hopback.fields import FieldValue

__all__ = [
    "few_examples",
    "field_values",
    "json_topologies",
    "json_values",
    "names",
    "no_time_limits",
    "read_or_error",
    "toml_values",
    "topologies",
]


def read_or_error(read: Callable[[], Topology]) -> Topology | InvalidTopology:
    """Return the topology, or the error with its problems."""
    try:
        return read()
    except InvalidTopology as error:
        return error


no_time_limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No time limit for an example, because the machine may be busy."""

few_examples = settings(no_time_limits, max_examples=min(40, settings().max_examples))
"""For properties of complete topologies, which are slow to draw."""

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.one_of(
    st.sampled_from(["orders", "a.b", "q x", 'quo"te', "end", "$x", "é☃"]),
    _text.filter(lambda text: text != "" and not text.startswith("amq.")),
)
_integers = st.one_of(
    [st.integers(low, high).map(kind) for kind, (low, high) in INTEGER_RANGES.items()]
)
_plain = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), _text
)
_rare = st.one_of(
    st.none(),
    _integers,
    st.floats(width=32, allow_nan=False).map(Float32),
    st.binary(max_size=5),
    st.binary(max_size=5).map(LongStr),
    st.decimals(-1000, 1000, allow_nan=False, places=3),
    st.just(Decimal("-0")),
)


def _nested(leaves: st.SearchStrategy[FieldValue]) -> st.SearchStrategy[FieldValue]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_key, inner, max_size=3),
        max_leaves=6,
    ).map(freeze)


_key = st.one_of(st.sampled_from(["$int32", "$table", "x"]), _text.filter(bool))
field_values = _nested(st.one_of(_plain, _rare))
json_values = _nested(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        _text,
    )
)
_own_key = _key.filter(lambda key: not key.startswith(("x-", "alternate")))


def _tables(values: st.SearchStrategy[FieldValue]) -> st.SearchStrategy[dict[str, FieldValue]]:
    return st.dictionaries(_own_key, values, max_size=3)


_known: dict[QueueType, dict[str, FieldValue]] = {
    QueueType.CLASSIC: {"x-max-priority": 5, "x-queue-mode": "lazy"},
    QueueType.QUORUM: {"x-delivery-limit": 7, "x-dead-letter-strategy": "at-least-once"},
    QueueType.STREAM: {"x-max-age": "1h"},
}


@st.composite
def _queues(draw: st.DrawFn, name: str, values: st.SearchStrategy[FieldValue]) -> Queue:
    kind = draw(st.sampled_from(QueueType))
    classic = kind is QueueType.CLASSIC
    known = dict(_known[kind]) if draw(st.booleans()) else {}
    if kind is not QueueType.STREAM and draw(st.booleans()):
        known["x-message-ttl"] = draw(st.integers(0, LONGEST_MS))
    return Queue(
        name,
        kind,
        durable=draw(st.booleans()) or not classic,
        exclusive=False,
        auto_delete=draw(st.booleans()) and classic,
        arguments={**draw(_tables(values)), **known},
    )


@st.composite
def _plans(draw: st.DrawFn, main: Queue, queues: Sequence[str], exchanges: Sequence[str]) -> Plan:
    some_queue = st.sampled_from(queues)
    some_exchange = st.sampled_from(["", *exchanges])
    routes = st.builds(Route, some_exchange, _text, some_queue, _text)
    delays = sorted(draw(st.sets(st.integers(0, LONGEST_MS), max_size=3)))
    tiers = tuple(
        Tier(f"{at}{draw(_text)}", delay, tuple(draw(st.lists(routes, min_size=1, max_size=2))))
        for at, delay in enumerate(delays)
    )
    stamps = st.lists(st.builds(Stamp, names, st.sampled_from(Fact), st.booleans()), max_size=2)
    wait = st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(sorted)
    parking = [name for name in queues if name != main.name]
    return Plan(
        queue=main.name,
        attempts=draw(st.integers(1, 50)) if tiers else 1,
        tiers=tiers,
        leave=draw(st.sampled_from(Leave)),
        returns=draw(st.sampled_from(Return)),
        parking=draw(
            st.builds(
                Parking, st.sampled_from(parking), st.sampled_from(Leave), some_exchange, _text
            )
        ),
        count=draw(st.sampled_from(Count)),
        redrive=draw(st.builds(Redrive, some_exchange, _text, st.booleans(), st.booleans())),
        count_header=draw(st.none() | names),
        snooze=LocalWait(*draw(wait))
        if main.type is QueueType.CLASSIC and draw(st.booleans())
        else None,
        snooze_exhausts=draw(st.booleans()),
        retry_stamps=tuple(draw(stamps)),
        park_stamps=tuple(draw(stamps)),
    )


@st.composite
def _topologies(draw: st.DrawFn, values: st.SearchStrategy[FieldValue]) -> Topology:
    queue_names = draw(st.lists(names, max_size=4, unique=True))
    exchange_names = draw(st.lists(names, max_size=3, unique=True))
    queues = [draw(_queues(name, values)) for name in queue_names]
    kinds = st.sampled_from([*ExchangeType, "x-delayed-message"])
    tables = _tables(values)
    flags = st.booleans()
    exchanges = [
        Exchange(name, draw(kinds), draw(flags), draw(flags), draw(flags), draw(tables))
        for name in exchange_names
    ]
    ends = [(name, False) for name in queue_names] + [(name, True) for name in exchange_names]
    bindings = [
        Binding(draw(st.sampled_from(exchange_names)), end, draw(_text), to_exchange, draw(tables))
        for end, to_exchange in ends
        if len(exchange_names) > 0 and draw(flags)
    ]
    plans = [
        draw(_plans(queue, queue_names, exchange_names))
        for queue in queues
        if len(queues) > 1 and draw(st.booleans())
    ]
    planned = {plan.queue for plan in plans}
    definitions: st.SearchStrategy[dict[str, FieldValue]] = st.sampled_from(
        [{"max-length": 5}, {"delivery-limit": -1, "unknown": "x"}]
    )
    policies = [
        Policy(name, draw(_text), draw(definitions), draw(st.integers(-5, 5)), draw(_targets))
        for name in draw(st.lists(names, max_size=2, unique=True))
    ]
    foreign = {key: draw(json_values) for key in draw(st.sets(_foreign_keys, max_size=2))}
    return Topology(
        draw(names),
        tuple(exchanges),
        tuple(queues),
        tuple(bindings),
        tuple(plans),
        tuple(policies),
        MappingProxyType(foreign),
        frozenset(name for name in queue_names if name not in planned and draw(st.booleans())),
    )


_foreign_keys = st.sampled_from(["users", "parameters", "rabbit_version", "global_parameters"])
_targets = st.sampled_from(["all", "queues", "exchanges", "quorum_queues"])
topologies = _topologies(field_values)
json_topologies = _topologies(json_values)

_VOCABULARY = """
name exchanges queues bindings plans policies foreign retry delay pattern none recommended type
quorum classic arguments attempts parking tiers routes queue exchange key definition vhost
durable source destination 30s 5m x-message-ttl x-queue-type $int32 $decimal $none $table
"""
_words = st.sampled_from(_VOCABULARY.split())
toml_values = st.recursive(
    st.one_of(
        _words,
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=4),
        st.datetimes(),
        st.times(),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=6),
    max_leaves=25,
)
