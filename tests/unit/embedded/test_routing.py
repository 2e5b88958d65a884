"""Exchanges and bindings in the node. The matching rules have separate tests."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EventKind, Refusal
from hopback.topology.model import Binding, Exchange, Policy
from tests.unit.embedded.node_setup import Client, Setup


def test_each_queue_gets_one_copy_per_publish() -> None:
    client = Client(Setup())
    client.classic("q")
    client.exchange("topic", "topic")
    client.exchange("next", "fanout")
    client.bind("topic", "q", "a.#")
    client.bind("topic", "q", "*.b")
    client.bind("next", "q")
    client.channel.bind(Binding("topic", "next", "#", to_exchange=True))
    client.put("a.b", exchange="topic")
    assert client.setup.ready("q") == ["m"]


def test_alternate_exchange_satisfies_mandatory_if_it_routes() -> None:
    client = Client(Setup())
    client.classic("q")
    client.exchange("spare", "fanout")
    client.exchange("x", "direct", {"alternate-exchange": "spare"})
    client.exchange("y", "direct")
    assert client.put("none", exchange="x") == [EventKind.RETURNED]
    client.bind("spare", "q")
    assert client.put("none", exchange="x") == [EventKind.ENQUEUED]
    assert client.put("none", exchange="y") == [EventKind.RETURNED]
    client.setup.node.policies.put(
        Policy("p", "^y$", {"alternate-exchange": "spare"}, apply_to="exchanges")
    )
    assert client.put("none", exchange="y") == [EventKind.ENQUEUED]


def test_unroutable_without_mandatory_is_dropped_and_confirmed() -> None:
    client = Client(Setup())
    assert client.put("none", mandatory=False) == [EventKind.DROPPED]
    assert client.put("none") == [EventKind.RETURNED]
    assert client.setup.lost() == ["unroutable"]


def test_internal_exchange_refuses_publishes() -> None:
    client = Client(Setup())
    client.channel.declare_exchange(Exchange("inside", "fanout", internal=True))
    client.classic("q")
    client.bind("inside", "q")
    client.channel.bind(Binding("amq.fanout", "inside", to_exchange=True))
    assert client.put("", exchange="amq.fanout") == [EventKind.ENQUEUED]
    with pytest.raises(Refusal) as caught:
        client.put("", exchange="inside")
    assert caught.value.text == (
        "ACCESS_REFUSED - cannot publish to internal exchange 'inside' in vhost '/'"
    )


def test_auto_delete_exchange_is_deleted_with_last_binding() -> None:
    client = Client(Setup())
    client.classic("q")
    for name in ("first", "second"):
        client.channel.declare_exchange(Exchange(name, "fanout", auto_delete=True))
    client.channel.bind(Binding("first", "second", to_exchange=True))
    client.bind("second", "q")
    client.channel.delete_queue("q")
    assert not {"first", "second"} & client.setup.node.routing.exchanges.keys()


def test_bindings_differ_by_arguments() -> None:
    client = Client(Setup())
    client.classic("q")
    one = Binding("amq.headers", "q", arguments={"x-match": "all", "a": 1})
    two = Binding("amq.headers", "q", arguments={"x-match": "all", "a": 2})
    for binding in (one, two, one):
        client.channel.bind(binding)
    client.channel.unbind(one)
    assert client.put("", exchange="amq.headers", headers={"a": 1}) == [EventKind.RETURNED]
    assert client.put("", exchange="amq.headers", headers={"a": 2}) == [EventKind.ENQUEUED]


def test_invalid_x_match_is_refused() -> None:
    client = Client(Setup())
    client.classic("q")
    with pytest.raises(Refusal) as caught:
        client.channel.bind(Binding("amq.headers", "q", arguments={"x-match": "some"}))
    assert caught.value.text == (
        'PRECONDITION_FAILED - Invalid x-match field value <<"some">>;'
        " expected all, any, all-with-x, or any-with-x"
    )


def test_redeclared_queue_has_no_bindings() -> None:
    client = Client(Setup())
    client.classic("q")
    client.bind("amq.fanout", "q")
    client.channel.delete_queue("q")
    client.classic("q")
    assert client.put("", exchange="amq.fanout") == [EventKind.RETURNED]
