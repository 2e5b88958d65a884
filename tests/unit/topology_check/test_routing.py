"""Routing, one rule of the broker at a time."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from hopback.fields import Float32, Int8, Timestamp
from hopback.topology import routing
from hopback.topology.model import Binding, Exchange, ExchangeType
from hopback.topology.routing import PREDECLARED, RoutingTable, headers_match, topic_matches

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers


def exchange(name: str, kind: str = "direct", **arguments: FieldValue) -> Exchange:
    """An exchange. Arguments have `_` for `-`."""
    return Exchange(name, kind, arguments={k.replace("_", "-"): v for k, v in arguments.items()})


def test_default_exchange_reaches_queue_of_that_name() -> None:
    table = RoutingTable([], ["q"], [])
    assert table.route("", "q") == ("q",)
    assert table.route("", "other") == ()
    assert table.route_keys("", ["q", "other", "q"]) == ("q",)


def test_missing_exchange_raises_key_error() -> None:
    table = RoutingTable([], ["q"], [Binding("x", "q")])
    with pytest.raises(KeyError, match="x"):
        table.route("x", "")
    with pytest.raises(KeyError, match="x"):
        table.route_keys("x", [""])


def test_direct_exchange_compares_whole_key() -> None:
    table = RoutingTable(
        [exchange("x")], ["p", "q"], [Binding("x", "p", "a"), Binding("x", "q", "#")]
    )
    assert table.route("x", "a") == ("p",)
    assert table.route("x", "#") == ("q",)
    assert table.route("x", "") == ()


def test_fanout_exchange_reaches_each_queue_once() -> None:
    bindings = [Binding("x", "q", "1"), Binding("x", "p"), Binding("x", "q", "2")]
    table = RoutingTable([exchange("x", "fanout")], ["q", "p"], bindings)
    assert table.route("x", "anything") == ("p", "q")


def test_bindings_to_missing_objects_are_ignored() -> None:
    bindings = [Binding("x", "gone"), Binding("x", "nowhere", to_exchange=True)]
    assert RoutingTable([exchange("x", "fanout")], ["q"], bindings).route("x", "") == ()


def test_exchange_cycle_ends() -> None:
    bindings = [
        Binding("x", "y", to_exchange=True),
        Binding("y", "x", to_exchange=True),
        Binding("y", "q"),
    ]
    table = RoutingTable([exchange("x", "fanout"), exchange("y", "fanout")], ["q"], bindings)
    assert table.route("x", "k") == ("q",)


def test_alternate_exchange_gets_unmatched_messages() -> None:
    table = RoutingTable(
        [exchange("x", alternate_exchange="spare"), exchange("spare", "fanout")],
        ["p", "q"],
        [Binding("x", "p", "a"), Binding("spare", "q")],
    )
    assert table.route("x", "a") == ("p",)
    assert table.route("x", "b") == ("q",)
    assert table.route_keys("x", ["a", "b"]) == ("p",)
    assert table.route_keys("x", ["b", "c"]) == ("q",)


def test_match_without_queue_does_not_use_alternate_exchange() -> None:
    table = RoutingTable(
        [exchange("x", alternate_exchange="spare"), exchange("y"), exchange("spare", "fanout")],
        ["q"],
        [Binding("x", "y", "a", to_exchange=True), Binding("spare", "q")],
    )
    assert table.route("x", "a") == ()


def test_missing_or_circular_alternate_exchange_ends() -> None:
    lost = RoutingTable([exchange("x", alternate_exchange="gone")], ["q"], [])
    assert lost.route("x", "k") == ()
    ring = RoutingTable(
        [exchange("x", alternate_exchange="y"), exchange("y", alternate_exchange="x")], ["q"], []
    )
    assert ring.route("x", "k") == ()


def test_unknown_exchange_type_may_reach_all_bound_queues() -> None:
    bindings = [Binding("x", "p", "1"), Binding("x", "q", "2")]
    table = RoutingTable([exchange("x", "x-consistent-hash")], ["p", "q"], bindings)
    assert table.route("x", "k") == ("p", "q")


def test_delayed_exchange_routes_as_its_named_type() -> None:
    delayed = exchange("x", "x-delayed-message", x_delayed_type="direct")
    table = RoutingTable([delayed], ["p", "q"], [Binding("x", "p", "1"), Binding("x", "q", "2")])
    assert table.route("x", "2") == ("q",)


def test_topic_pattern_wildcards_match_words() -> None:
    assert topic_matches("a.#", "a")
    assert not topic_matches("a.*", "a")


def test_every_virtual_host_has_six_exchanges() -> None:
    table = RoutingTable(PREDECLARED, ["q"], [Binding("amq.topic", "q", "a.#")])
    assert table.route("amq.topic", "a") == ("q",)
    assert table.route("amq.fanout", "a") == ()
    assert len(PREDECLARED) == 6


def test_answers_that_depend_on_headers_are_not_cached() -> None:
    table = RoutingTable(
        [
            exchange("h", ExchangeType.HEADERS),
            exchange("x", "fanout"),
            exchange("y", alternate_exchange="x"),
        ],
        ["q"],
        [Binding("x", "h", to_exchange=True), Binding("h", "q", arguments={"a": 1})],
    )
    for start in ("h", "x", "y"):
        assert table.route(start, "k", {"a": 1}) == ("q",)
        assert table.route(start, "k", {"a": 2}) == ()
        assert table.route(start, "k") == ()


def test_routing_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_MEMO_SIZE", 3)
    table = RoutingTable([exchange("x", "topic")], ["q"], [Binding("x", "q", "*.1")])
    for number in range(20):
        assert table.route("x", f"{number}.1") == ("q",)
        assert table.route("x", f"{number}.2") == ()
        assert len(table._memo) <= 3


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": "t"}, {"a": 1, "b": "t", "c": 0}, True),
        ({"a": 1, "b": "t"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1, "b": "t"}, {"a": 1, "b": "u"}, False),
        ({"x-match": "nonsense", "a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "t"}, {"b": "t"}, True),
        ({"x-match": "any", "a": 1, "b": "t"}, {"b": "u"}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": None}, False),
        ({"x-k": 1}, {}, True),
        ({"x-match": "any", "x-k": 1}, {"x-k": 1}, False),
        ({"x-match": "all-with-x", "x-k": 1}, {}, False),
        ({"x-match": "all-with-x", "x-k": 1, "a": 2}, {"x-k": 1, "a": 2}, True),
        ({"x-match": "any-with-x", "x-k": 1, "a": 2}, {"x-k": 1}, True),
        ({"x-match": "any-with-x", "x-k": 1, "a": 2}, {"x-match": "any-with-x"}, False),
        ({"a": 1}, {"a": Int8(1)}, True),
        ({"a": 1.5}, {"a": Float32(1.5)}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": Timestamp(1)}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": Timestamp(1)}, {"a": Timestamp(1)}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "t"}, {"a": b"t"}, False),
        ({"a": Decimal("1.5")}, {"a": Decimal("1.5")}, True),
        ({"a": Decimal("1.5")}, {"a": Decimal("1.50")}, False),
        ({"a": [1, "t"]}, {"a": (1, "t")}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
    ],
)
def test_headers_exchange_matches_all_or_any(
    arguments: Headers, headers: Headers, expected: bool
) -> None:
    assert headers_match(arguments, headers) is expected
