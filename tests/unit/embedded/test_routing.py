"""Exchanges and bindings in the node; the rules of matching have tests of their own."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EventKind, Refusal
from hopback.topology.model import Binding, Exchange, Policy
from tests.unit.embedded.node_setup import Client, Setup


def test_each_queue_gets_one_copy_however_many_ways_lead_to_it() -> None:
    """Through two bindings and through another exchange."""
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


def test_an_alternate_exchange_satisfies_mandatory_if_it_routes() -> None:
    """By argument or by policy; without a queue behind it the message is returned."""
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
    """As if nothing had happened."""
    client = Client(Setup())
    assert client.put("none", mandatory=False) == [EventKind.DROPPED]
    assert client.put("none") == [EventKind.RETURNED]
    assert client.setup.lost() == ["unroutable"]


def test_an_internal_exchange_takes_no_publishes() -> None:
    """Only other exchanges may lead to it."""
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


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    """Also when the queue at its other end goes; a chain of them falls together."""
    client = Client(Setup())
    client.classic("q")
    for name in ("first", "second"):
        client.channel.declare_exchange(Exchange(name, "fanout", auto_delete=True))
    client.channel.bind(Binding("first", "second", to_exchange=True))
    client.bind("second", "q")
    client.channel.delete_queue("q")
    assert not {"first", "second"} & client.setup.node.routing.exchanges.keys()


def test_bindings_differ_by_their_arguments() -> None:
    """Removing one leaves the other."""
    client = Client(Setup())
    client.classic("q")
    one = Binding("amq.headers", "q", arguments={"x-match": "all", "a": 1})
    two = Binding("amq.headers", "q", arguments={"x-match": "all", "a": 2})
    for binding in (one, two, one):
        client.channel.bind(binding)
    client.channel.unbind(one)
    assert client.put("", exchange="amq.headers", headers={"a": 1}) == [EventKind.RETURNED]
    assert client.put("", exchange="amq.headers", headers={"a": 2}) == [EventKind.ENQUEUED]


def test_a_wrong_x_match_is_refused() -> None:
    """In the broker's words."""
    client = Client(Setup())
    client.classic("q")
    with pytest.raises(Refusal) as caught:
        client.channel.bind(Binding("amq.headers", "q", arguments={"x-match": "some"}))
    assert caught.value.text == (
        'PRECONDITION_FAILED - Invalid x-match field value <<"some">>;'
        " expected all, any, all-with-x, or any-with-x"
    )


def test_a_queue_that_is_deleted_and_declared_again_has_no_bindings() -> None:
    """They went with the old one."""
    client = Client(Setup())
    client.classic("q")
    client.bind("amq.fanout", "q")
    client.channel.delete_queue("q")
    client.classic("q")
    assert client.put("", exchange="amq.fanout") == [EventKind.RETURNED]
