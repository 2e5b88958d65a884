"""definitions.json as brokers of several versions write it, and as they import it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from hopback.designs import DESIGNS
from hopback.errors import InvalidTopology
from hopback.fields import Int32, Timestamp, UInt64
from hopback.topology.definitions import RECORD, read_definitions, write_definitions
from hopback.topology.document import read_toml, write_toml
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion

_BROKER: dict[str, Any] = {
    "rabbit_version": "4.3.1",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {}}],
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "permissions": [{"user": "guest", "vhost": "/", "configure": ".*"}],
    "queues": [
        {
            "name": "orders",
            "vhost": "/",
            "type": "classic",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "classic", "x-max-length": 5},
        },
        {"name": "q", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}},
        {"name": "jms", "vhost": "/", "type": "x-jms", "arguments": {}},
    ],
    "exchanges": [
        {
            "name": "events",
            "vhost": "/",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "arguments": {"$int32": 5, "list": [1, 1.0, True, None, {}]},
        }
    ],
    "bindings": [
        {
            "source": "events",
            "vhost": "/",
            "destination": "gone",
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {},
            "properties_key": "%23",
        }
    ],
}
"""A whole broker's export: foreign parts, two virtual hosts, a queue type that we do not model, a
binding to an exclusive queue that is not exported, arguments that look like our own spelling."""


def problems_of(data: Any, **options: Any) -> list[str]:
    """The problems of definitions as text."""
    with pytest.raises(InvalidTopology) as caught:
        read_definitions(data, **options)
    return [str(problem) for problem in caught.value.problems]


def test_definitions_of_one_virtual_host_are_read() -> None:
    """Other objects are kept as foreign."""
    found = read_definitions(_BROKER, vhost="/", name="live")
    assert found.name == "live"
    assert found.queues == (Queue("orders", arguments={"x-max-length": 5}),)
    assert found.exchanges[0].arguments["$int32"] == 5
    assert found.bindings == (Binding("events", "gone", "#"),)
    assert found.foreign["rabbit_version"] == "4.3.1"
    assert [entry["name"] for entry in found.foreign["queues"]] == ["q", "jms"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("vhost", ["/", "shop"])
def test_definitions_round_trip_for_each_virtual_host(vhost: str) -> None:
    again, notes = write_definitions(read_definitions(json.dumps(_BROKER), vhost=vhost))
    assert notes == ()
    assert list(again) == list(_BROKER)
    for key, value in _BROKER.items():
        written = again[key]
        assert isinstance(written, list | str)
        assert sorted(map(json.dumps, written)) == sorted(map(json.dumps, value))


def test_definitions_round_trip_through_toml() -> None:
    document = {**_BROKER, "bindings": []}
    found = read_definitions(document, vhost="/")
    again = read_toml(write_toml(found))
    assert again == found
    assert write_definitions(again) == write_definitions(found)


def test_changed_queue_is_written_anew_and_others_unchanged() -> None:
    found = read_definitions(_BROKER, vhost="/")
    longer = replace(found.queues[0], arguments={"x-max-length": 9})
    changed, _ = write_definitions(replace(found, queues=(longer, Queue("new"))))
    assert changed["queues"][:2] == [  # type: ignore[index]
        {
            "name": "orders",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-length": 9},
        },
        {"name": "new", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}},
    ]
    assert changed["bindings"] == _BROKER["bindings"]


def test_ambiguous_virtual_host_is_refused_with_known_ones() -> None:
    assert problems_of(_BROKER) == [
        'vhost: expected one of the virtual hosts in this file: "/" or "shop", got no choice'
        " between them"
    ]
    assert problems_of(_BROKER, vhost="shp") == [
        'vhost: expected one of the virtual hosts in this file: "/" or "shop", got "shp" (did you'
        ' mean "shop"?)'
    ]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"queues": [{"name": "q", "vhost": "a"}], "vhosts": [{"name": "a"}, {"name": "b"}]}, "a"),
        ({"vhosts": [{"name": "a"}]}, "a"),
        ({"queues": [{"name": "q"}]}, None),
        ({}, None),
    ],
)
def test_single_virtual_host_is_selected(document: dict[str, Any], expected: str | None) -> None:
    found = read_definitions(document)
    record = found.foreign[RECORD]
    assert isinstance(record, MappingProxyType)
    assert record["vhost"] == expected
    assert write_definitions(found)[0] == document


def test_listed_virtual_host_may_be_empty() -> None:
    document = {**_BROKER, "vhosts": [{"name": "/"}, {"name": "shop"}, {"name": "empty"}]}
    found = read_definitions(document, vhost="empty")
    assert (found.queues, found.exchanges, found.bindings) == ((), (), ())
    assert read_definitions({"queues": [{"name": "q"}]}, vhost="any").queues == (Queue("q"),)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("{", "line 1, column 2: expected valid JSON, got a syntax error: Expecting property name"),
        (b"\xff", "file: expected valid JSON, got 'utf-8' codec can't decode"),
        ('{"a": NaN}', "file: expected valid JSON, got NaN, which JSON does not have"),
        ("[" * 100_000, "file: expected valid JSON, got values nested too deeply"),
        ("5", ": expected a table, got 5"),
        ({"queues": 5}, "queues: expected an array, got 5"),
        ({"queues": [5]}, "queues[0]: expected a table, got 5"),
        ({"queues": [{}]}, "queues[0].name: expected text, got nothing"),
        ({"queues": [{"name": "q", "vhost": 5}]}, "queues[0].vhost: expected text, got 5"),
        (
            {"queues": [{"name": "q", "arguments": {"x-queue-type": 5}}]},
            "queues[0].arguments.x-queue-type: expected text, got 5",
        ),
        (
            {"queues": [{"name": "q", "arguments": {"x-message-ttl": 5.0}}]},
            "queues.q.arguments.x-message-ttl: expected a whole number from 0",
        ),
        (
            {"queues": [{"name": "q", "durable": True}, {"name": "q", "durable": False}]},
            "queues.q: expected one declaration of this name, got two that differ",
        ),
        (
            {"bindings": [{"source": "x", "destination": "q", "destination_type": "table"}]},
            'bindings[0].destination_type: expected "queue" or "exchange", got "table"',
        ),
        ({"policies": [{"name": "p"}]}, "policies[0].pattern: expected a regular expression"),
        ({RECORD: 1}, f"{RECORD}: expected no such key"),
        ({"users": 2**70}, "users: expected a whole number"),
        ({5: 1}, ": expected text for every key, got 5"),
    ],
)
def test_invalid_definitions_are_refused_with_place(data: Any, expected: str) -> None:
    assert problems_of(data)[0].startswith(expected)


def test_deeply_nested_definitions_are_refused() -> None:
    deep: Any = {}
    for _ in range(50):
        deep = {"a": deep}
    assert problems_of({"parameters": deep})[0].endswith(
        "expected at most 32 levels of nesting, got more"
    )


def test_definitions_with_virtual_host_create_it() -> None:
    shop = Topology("shop", (Exchange("x"),), (Queue("q"),), (Binding("x", "q"),))
    document, _ = write_definitions(shop, vhost="shop")
    assert document["vhosts"] == [{"name": "shop"}]
    assert all(
        entry["vhost"] == "shop"
        for section in ("queues", "exchanges", "bindings")
        for entry in document[section]  # type: ignore[attr-defined]
    )
    moved, _ = write_definitions(read_definitions(document), vhost="other")
    assert moved["queues"][0]["vhost"] == "other"  # type: ignore[index]
    assert moved["vhosts"] == [{"name": "shop"}, {"name": "other"}]
    assert write_definitions(read_definitions(document), vhost="shop")[0] == document


def test_foreign_fields_survive_move_to_another_virtual_host() -> None:
    moved, _ = write_definitions(read_definitions(_BROKER, vhost="/"), vhost="new")
    assert moved["bindings"][0]["properties_key"] == "%23"  # type: ignore[index]
    assert moved["bindings"][0]["vhost"] == "new"  # type: ignore[index]


def test_values_without_json_type_are_omitted_with_note() -> None:
    odd = Topology(
        "odd",
        (Exchange("x", "headers", arguments={"a": Decimal("1.5")}),),
        (
            Queue("q", arguments={"b": b"x", "c": Int32(5), "d": (UInt64(2**63),), "e": None}),
            Queue("mine", exclusive=True),
        ),
        (
            Binding("x", "q", arguments={"at": {"t": Timestamp(5)}}),
            Binding("x", "q", arguments={"f": float("inf")}),
            Binding("x", "mine"),
        ),
        policies=(Policy("p", "", {"max-length": 5, "z": b""}),),
    )
    document, notes = write_definitions(odd)
    assert document["queues"][0]["arguments"] == {"c": 5, "e": None}  # type: ignore[index]
    assert type(document["queues"][0]["arguments"]["c"]) is int  # type: ignore[index]
    assert document["bindings"] == []
    assert document["policies"][0]["definition"] == {"max-length": 5}  # type: ignore[index]
    assert notes == (
        'classic queue "mine" and its bindings left out: it belongs to one connection',
        'exchange "x": "a" left out: JSON cannot represent a Decimal',
        'queue "q": "b" left out: JSON cannot represent a bytes',
        'queue "q": "d" left out: JSON cannot represent a tuple',
        'policy "p": "z" left out: JSON cannot represent a bytes',
        'binding "x" → "q" left out: JSON cannot represent one of its arguments',
        'binding "x" → "q" left out: JSON cannot represent one of its arguments',
    )


_DEMANDING = Topology(
    "demanding",
    (Exchange("x"),),
    (
        Queue(
            "main",
            QueueType.QUORUM,
            arguments={
                "x-delivery-limit": -1,
                "x-consumer-timeout": 5,
                "x-delayed-retry-type": "all",
                "x-message-ttl": 5,
            },
        ),
        Queue("plain", arguments={"x-queue-version": 1, "x-consumer-timeout": 5}),
        Queue("log", QueueType.STREAM),
    ),
    (Binding("x", "log"), Binding("x", "main"), Binding("x", "x", to_exchange=True)),
    policies=(
        Policy("a", ".*", {"delivery-limit": -1, "consumer-timeout": 1}, apply_to="quorum_queues"),
        Policy("b", ".*", {"ha-mode": "all", "max-length": 5}),
        Policy("c", ".*", {"delayed-retry-min": 5, "max-length": 1, "nonsense": 1}),
    ),
)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "3.8",
            [
                'stream queue "log" and its bindings left out',
                'queue "main": x-delivery-limit = -1 requires RabbitMQ from 4.0 on, left out',
                'queue "main": x-consumer-timeout = 5 requires RabbitMQ from 3.12 on, left out',
                'queue "main": x-delayed-retry-type = all requires RabbitMQ from 4.3 on',
                'queue "main": x-message-ttl = 5 requires RabbitMQ from 3.10 on, left out',
                'queue "plain": x-consumer-timeout = 5 requires RabbitMQ from 3.12 on',
                'queue "plain": x-queue-version = 1 requires RabbitMQ from 3.10 on',
                'policy "a": "delivery-limit" left out: before 4.0 a delivery limit cannot be',
                'policy "a": "consumer-timeout" left out: only RabbitMQ from 3.12 on supports it',
                'policy "a": applies to "queues" instead of "quorum_queues", which requires 3.12',
                'policy "a" left out: no supported key remains',
                'policy "c": "delayed-retry-min" left out: only RabbitMQ from 4.3.1 on supports it',
                'policy "c": "nonsense" left out: RabbitMQ 3.8 does not know this policy key',
            ],
        ),
        (
            "4.3",
            [
                'queue "plain": x-consumer-timeout = 5 requires RabbitMQ before 4.3, left out',
                'queue "plain": x-queue-version = 1 requires RabbitMQ before 4.3, left out',
                'policy "b": "ha-mode" left out: only RabbitMQ before 4.0 supports it',
                'policy "c": "delayed-retry-min" left out: only RabbitMQ from 4.3.1 on supports it',
                'policy "c": "nonsense" left out: RabbitMQ 4.3 does not know this policy key',
            ],
        ),
    ],
)
def test_objects_refused_by_version_are_omitted_with_note(
    version: str, expected: list[str]
) -> None:
    document, notes = write_definitions(_DEMANDING, version=BrokerVersion.parse(version))
    assert len(notes) == len(expected)
    pairs = zip(sorted(notes), sorted(expected), strict=True)
    assert all(note.startswith(start) for note, start in pairs), notes
    text = json.dumps(document)
    assert ("log" in text) is (version != "3.8")
    assert ('"x-delivery-limit": -1' in text) is (version == "4.3")


def test_definitions_without_version_are_complete() -> None:
    document, notes = write_definitions(_DEMANDING)
    assert notes == ()
    assert read_definitions(document).queues == _DEMANDING.queues


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("hardened", [False, True])
@pytest.mark.parametrize("version", ["3.10.8", "4.0", "4.3.6"])
def test_every_design_fits_every_supported_version(name: str, hardened: bool, version: str) -> None:
    topology = DESIGNS[name].build(hardened=hardened)
    document, notes = write_definitions(topology, version=BrokerVersion.parse(version))
    assert notes == ()
    assert read_definitions(document).queues == topology.queues


def test_invalid_record_in_file_is_ignored() -> None:
    foreign: dict[str, object] = {RECORD: {"queues": (5, {"name": 5}), "keys": 7, "vhost": 8}}
    document, _ = write_definitions(Topology("t", queues=(Queue("q"),), foreign=foreign))
    assert document["queues"][0]["name"] == "q"  # type: ignore[index]
    assert write_definitions(Topology("t", foreign={RECORD: 5}))[0]["queues"] == []
