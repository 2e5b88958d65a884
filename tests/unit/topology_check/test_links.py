"""Shovels, federation and alternate exchanges whose way leads over an exchange."""

from __future__ import annotations

from dataclasses import replace

from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from tests.unit.topology_check.building import classic, found, live, sound
from tests.unit.topology_check.casebook import with_parameters


def test_shovel_to_exchange_is_followed_to_its_queues() -> None:
    value: dict[str, object] = {"dest-exchange": "", "dest-exchange-key": "orders"}
    topology = with_parameters(sound(), ("shovel", "mover", {"src-queue": "orders.dlq", **value}))
    (finding,) = found(topology, "shovel-drains-failures")
    assert "return from queue `orders`" in finding.explanation


def test_federated_exchange_of_dead_letters_is_reported() -> None:
    topology = replace(
        live(classic("orders", dead_letter_exchange="dead"), classic("kept")),
        exchanges=(Exchange("dead", "fanout"),),
        bindings=(Binding("dead", "kept"),),
        policies=(Policy("fed", "^dead$", {"federation-upstream-set": "all"}),),
    )
    (finding,) = found(topology, "failures-federated")
    assert "It federates exchange `dead`" in finding.explanation


def test_alternate_exchange_may_route_through_another_exchange() -> None:
    topology = replace(
        live(classic("kept")),
        exchanges=(
            Exchange("events", "topic", arguments={"alternate-exchange": "lost"}),
            Exchange("lost", "fanout"),
            Exchange("found", "fanout"),
        ),
        bindings=(Binding("lost", "found", to_exchange=True), Binding("found", "kept")),
    )
    assert found(topology, "alternate-exchange-catches-nothing") == []


def test_stream_next_to_dead_letter_queue_is_accepted() -> None:
    topology = Topology(
        "shop",
        exchanges=(Exchange("dead", "fanout"),),
        queues=(
            classic("orders", dead_letter_exchange="dead"),
            classic("orders.dlq"),
            Queue("log", QueueType.STREAM),
        ),
        bindings=(Binding("dead", "orders.dlq"), Binding("dead", "log")),
    )
    assert found(topology, "dead-letters-reach-others") == []
