"""Discovery of dead-letter queues by plans, by the live topology, by name and by an operator's
override.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.designs import DESIGNS
from hopback.ops.brokers.discovery import Override, dead_letter_queues
from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology
from hopback.topology.plan import Redrive


@pytest.mark.parametrize("name", sorted(DESIGNS))
@pytest.mark.parametrize("hardened", [False, True])
def test_declared_plans_name_their_dead_letter_queues(name: str, hardened: bool) -> None:
    """The result has the origins and the design's target."""
    topology = DESIGNS[name].build(hardened=hardened)
    found = {each.name: each for each in dead_letter_queues(topology)}
    assert set(found) >= {plan.parking.queue for plan in topology.plans}
    for plan in topology.plans:
        assert plan.queue in found[plan.parking.queue].origins
        assert plan in found[plan.parking.queue].plans
        assert found[plan.parking.queue].known_by == "plan"


@pytest.mark.parametrize("name", sorted(DESIGNS))
@pytest.mark.parametrize("hardened", [False, True])
def test_live_topology_finds_same_dead_letter_queues_as_plans(name: str, hardened: bool) -> None:
    """Retry queues are not listed."""
    topology = DESIGNS[name].build(hardened=hardened)
    live = replace(topology, plans=())
    found = {each.name for each in dead_letter_queues(live)}
    assert found == {plan.parking.queue for plan in topology.plans}


def _live() -> Topology:
    return Topology(
        "live",
        exchanges=(Exchange("dead", "fanout"), Exchange("work", "topic")),
        queues=(
            Queue("orders", arguments={"x-dead-letter-exchange": "dead"}),
            Queue("bills"),
            Queue("wait", arguments={"x-dead-letter-exchange": "", "x-message-ttl": 5, **_KEY}),
            Queue("rest"),
            Queue("other"),
        ),
        bindings=(Binding("dead", "rest"), Binding("work", "orders", "#")),
        policies=(Policy("dead", "^bills$", {"dead-letter-exchange": "dead"}),),
    )


_KEY = {"x-dead-letter-routing-key": "orders"}


def test_dead_letter_exchange_set_by_policy_is_discovered() -> None:
    """Retry queues are not listed as dead-letter queues."""
    (found,) = dead_letter_queues(_live())
    assert found.name == "rest"
    assert found.origins == ("bills", "orders")
    assert found.main_queue is None
    assert {plan.redrive for plan in found.plans} == {Redrive("", "bills"), Redrive("", "orders")}
    assert found.known_by == "dead-lettering"


@pytest.mark.parametrize(
    "name", ["orders.dlq", "orders_error", "dlq.orders", "orders-parking", "error:orders"]
)
def test_dlq_name_of_an_existing_queue_is_discovered(name: str) -> None:
    """Consumers that publish their dead letters themselves leave no other trace."""
    live = Topology("live", queues=(Queue("orders"), Queue(name)))
    (found,) = dead_letter_queues(live)
    assert (found.name, found.main_queue, found.known_by) == (name, "orders", "name")


def test_dlq_name_without_its_main_queue_is_not_discovered() -> None:
    assert dead_letter_queues(Topology("live", queues=(Queue("payments.error"),))) == ()


def test_origin_behind_retry_queue_is_the_failing_queue() -> None:
    live = Topology(
        "live",
        exchanges=(Exchange("retry"), Exchange("dead")),
        queues=(
            Queue("q", arguments={"x-dead-letter-exchange": "retry"}),
            Queue("wait", arguments={"x-dead-letter-exchange": "dead", "x-message-ttl": 1}),
            Queue("rest"),
        ),
        bindings=(Binding("retry", "wait", "k"), Binding("dead", "rest", "k")),
    )
    (found,) = dead_letter_queues(live)
    assert (found.name, found.origins) == ("rest", ("q",))


def test_override_adds_and_hides_dead_letter_queues() -> None:
    said = (Override("other", main_queue="orders"), Override("rest"))
    found = {each.name: each for each in dead_letter_queues(_live(), overrides=said)}
    other = found["other"]
    assert (other.main_queue, other.known_by) == ("orders", "operator")
    assert [plan.redrive for plan in other.plans] == [Redrive("", "orders")]
    assert found["rest"].origins == ("bills", "orders")
    assert dead_letter_queues(_live(), overrides=(Override("rest", hidden=True),)) == ()


def test_file_pipeline_target_is_its_retry_exchange() -> None:
    topology = DESIGNS["file-pipeline"].build()
    found = next(e for e in dead_letter_queues(topology) if e.name == "q.validator.dlq")
    assert found.retry_exchange == "retry.q.validator"
    assert [plan.redrive for plan in found.plans] == [Redrive("retry.q.validator", "retry")]
    assert found.main_queue == "q.validator"
