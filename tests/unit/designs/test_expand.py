"""From a plan to its queues, and what a queue's dead letters come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.designs import DESIGNS, raffle, ratatoskr, recommended
from hopback.errors import InvalidTopology
from hopback.topology.expand import (
    DELIVERY_LIMIT,
    dead_lettering,
    dead_letters_park,
    harden_queues,
    recommend_plan,
    retry_queues,
)
from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
from hopback.topology.plan import Count, Leave, Parking, Plan, Redrive, Return, Route, Tier


def test_the_recommended_plan_has_one_queue_per_delay_and_one_run_more() -> None:
    """Names, ways and numbers of Hopback's own plan."""
    assert recommend_plan("orders", tiers_ms=(30_000, 300_000)) == Plan(
        queue="orders",
        attempts=3,
        tiers=(
            Tier("30s", 30_000, (Route("", "orders.retry.30s", "orders.retry.30s"),)),
            Tier("5m", 300_000, (Route("", "orders.retry.5m", "orders.retry.5m"),)),
        ),
        leave=Leave.PUBLISH,
        returns=Return.QUEUE,
        parking=Parking("orders.dlq", Leave.PUBLISH, "", "orders.dlq"),
        count=Count.HEADER,
        redrive=Redrive("", "orders"),
    )
    assert recommend_plan("orders", tiers_ms=(1,), attempts=9).attempts == 9


def test_everything_wrong_with_a_recommended_plan_is_said_at_once() -> None:
    """Name, delays in order and within bounds, attempts."""
    with pytest.raises(InvalidTopology) as caught:
        recommend_plan("", tiers_ms=(0, 5000, 4999), attempts=0)
    assert [str(problem) for problem in caught.value.problems] == [
        "queue: expected a name, got ''",
        "tiers[0]: expected 1 to 315360000000 ms, got 0 ms",
        "tiers[2]: expected a delay no shorter than tiers[1] (5000 ms), got 4999 ms",
        "attempts: expected at least 1, got 0",
    ]
    with pytest.raises(InvalidTopology, match="attempts: expected 1, as there is no delay"):
        recommend_plan("orders", tiers_ms=(), attempts=2)


def test_a_plan_without_delays_parks_the_first_failure() -> None:
    """One attempt, no retry queue, and a dead-letter queue all the same."""
    plan = recommend_plan("orders", tiers_ms=())
    assert (plan.attempts, plan.tiers) == (1, ())
    assert [queue.name for queue in harden_queues(plan)] == ["orders", "orders.dlq"]


def test_equal_delays_share_a_retry_queue() -> None:
    """Three attempts with the same wait before the second and the third: one queue to wait in."""
    plan = recommend_plan("orders", tiers_ms=(1000, 1000))
    assert (plan.attempts, len(plan.tiers)) == (3, 2)
    names = [queue.name for queue in harden_queues(plan)]
    assert names == ["orders", "orders.retry.1s", "orders.dlq"]


def test_hardened_queues_are_main_retry_and_dead_letter_queue() -> None:
    """All arguments of the three kinds, in the order they are declared."""
    plan = recommend_plan("orders", tiers_ms=(30_000,))
    main, waiting, parked = harden_queues(plan)
    assert (main.name, dict(main.arguments)) == (
        "orders",
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "orders.dlq",
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )
    assert (waiting.name, dict(waiting.arguments)) == (
        "orders.retry.30s",
        {
            "x-message-ttl": 30_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "orders",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )
    assert parked.name == "orders.dlq"
    assert {queue.type for queue in (main, waiting, parked)} == {QueueType.QUORUM}
    (limited, *_) = harden_queues(plan, delivery_limit=50)
    assert limited.arguments["x-delivery-limit"] == 50


def test_a_retry_queue_reached_by_several_routes_is_one_queue() -> None:
    """FreeFlow's users queue has three routes per tier into two queues."""
    plan = DESIGNS["freeflow"].build().plan("freeflow.users.queue")
    assert plan is not None
    assert [name for name, _ in retry_queues(plan)] == [
        f"freeflow.{domain}.retry.{tier}"
        for tier in ("30s", "5m", "30m")
        for domain in ("user", "auth")
    ]


def test_an_empty_key_is_left_out_of_the_arguments() -> None:
    """A fanout needs no key, so the original one stays on the dead letter."""
    assert dead_lettering("x", "") == {"x-dead-letter-exchange": "x"}


@pytest.mark.parametrize(
    ("name", "hardened", "parks"),
    [
        ("file-pipeline", False, False),
        ("event-bus", False, False),
        ("freeflow", False, True),
        ("raffle", False, True),
        ("ratatoskr", False, False),
        *((name, True, True) for name in DESIGNS),
    ],
)
def test_whether_a_rejected_message_ends_in_the_dead_letter_queue(
    name: str, hardened: bool, parks: bool
) -> None:
    """It does where the document says so, and in every hardened form; else it goes for retry."""
    topology = DESIGNS[name].build(hardened=hardened)
    assert {dead_letters_park(topology, plan) for plan in topology.plans} == {parks}


def _with_main(topology: Topology, **arguments: str) -> Topology:
    named = {f"x-dead-letter-{key.replace('_', '-')}": value for key, value in arguments.items()}
    main = replace(topology.queues[0], arguments=named)
    return replace(topology, queues=(main, *topology.queues[1:]))


def test_a_queue_that_would_delete_or_scatter_its_dead_letters_does_not_park() -> None:
    """No queue, no exchange, an undeclared exchange, or a key that depends on the message."""
    topology = raffle()
    (plan,) = topology.plans
    assert not dead_letters_park(replace(topology, queues=()), plan)
    assert not dead_letters_park(_with_main(topology), plan)
    assert not dead_letters_park(_with_main(topology, exchange="elsewhere"), plan)
    assert not dead_letters_park(_with_main(topology, exchange="raffle_dlx"), plan)


def test_a_queue_whose_dead_letters_go_astray_for_some_keys_does_not_park() -> None:
    """Bound by the empty key only, a direct exchange drops what has another."""
    topology = recommended()
    (plan,) = topology.plans
    loose = _with_main(
        replace(
            topology,
            exchanges=(Exchange("dlx"),),
            bindings=(Binding("dlx", plan.parking.queue, ""),),
        ),
        exchange="dlx",
    )
    assert not dead_letters_park(loose, plan)
    fanout = replace(loose, exchanges=(Exchange("dlx", "fanout"),))
    assert dead_letters_park(fanout, plan)


def test_a_queue_of_another_type_can_be_asked_for() -> None:
    """Classic ratatoskr says nothing of its type when it is declared."""
    topology = ratatoskr(queue_type=QueueType.CLASSIC)
    main = topology.queue("my-service.events")
    assert isinstance(main, Queue)
    assert "x-queue-type" not in main.declare_arguments
