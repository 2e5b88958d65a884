"""From a plan to its queues, and the destination of dead letters."""

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


def test_recommended_plan_has_one_queue_per_delay() -> None:
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


def test_invalid_recommended_plan_reports_all_problems() -> None:
    with pytest.raises(InvalidTopology) as caught:
        recommend_plan("", tiers_ms=(0, 5000, 4999), attempts=0)
    assert [str(problem) for problem in caught.value.problems] == [
        "queue: expected a name, got ''",
        "tiers[0]: expected 1 to 315360000000 ms, got 0 ms",
        "tiers[2]: expected a delay no shorter than tiers[1] (5000 ms), got 4999 ms",
        "attempts: expected at least 1, got 0",
    ]
    with pytest.raises(InvalidTopology, match="attempts: expected 1, because there is no delay"):
        recommend_plan("orders", tiers_ms=(), attempts=2)


def test_plan_without_delays_parks_first_failure() -> None:
    plan = recommend_plan("orders", tiers_ms=())
    assert (plan.attempts, plan.tiers) == (1, ())
    assert [queue.name for queue in harden_queues(plan)] == ["orders", "orders.dlq"]


def test_equal_delays_share_retry_queue() -> None:
    plan = recommend_plan("orders", tiers_ms=(1000, 1000))
    assert (plan.attempts, len(plan.tiers)) == (3, 2)
    names = [queue.name for queue in harden_queues(plan)]
    assert names == ["orders", "orders.retry.1s", "orders.dlq"]


def test_hardened_queues_have_documented_arguments() -> None:
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


def test_retry_queue_of_several_routes_is_declared_once() -> None:
    plan = DESIGNS["freeflow"].build().plan("freeflow.users.queue")
    assert plan is not None
    assert [name for name, _ in retry_queues(plan)] == [
        f"freeflow.{domain}.retry.{tier}"
        for tier in ("30s", "5m", "30m")
        for domain in ("user", "auth")
    ]


def test_empty_dead_letter_key_is_omitted() -> None:
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
def test_rejected_message_parks_where_documented(name: str, hardened: bool, parks: bool) -> None:
    topology = DESIGNS[name].build(hardened=hardened)
    assert {dead_letters_park(topology, plan) for plan in topology.plans} == {parks}


def _with_main(topology: Topology, **arguments: str) -> Topology:
    named = {f"x-dead-letter-{key.replace('_', '-')}": value for key, value in arguments.items()}
    main = replace(topology.queues[0], arguments=named)
    return replace(topology, queues=(main, *topology.queues[1:]))


def test_queue_that_deletes_or_scatters_dead_letters_does_not_park() -> None:
    topology = raffle()
    (plan,) = topology.plans
    assert not dead_letters_park(replace(topology, queues=()), plan)
    assert not dead_letters_park(_with_main(topology), plan)
    assert not dead_letters_park(_with_main(topology, exchange="elsewhere"), plan)
    assert not dead_letters_park(_with_main(topology, exchange="raffle_dlx"), plan)


def test_queue_that_loses_dead_letters_for_some_keys_does_not_park() -> None:
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


def test_classic_queue_type_is_accepted() -> None:
    topology = ratatoskr(queue_type=QueueType.CLASSIC)
    main = topology.queue("my-service.events")
    assert isinstance(main, Queue)
    assert "x-queue-type" not in main.declare_arguments
