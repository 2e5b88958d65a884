"""Rules about names, arguments and policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.topology.check import check
from hopback.topology.model import Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.plan import Leave, Parking, Route, Tier
from tests.unit.topology_check.building import (
    classic,
    found,
    live,
    quorum,
    rules,
    sound,
)


def test_repeated_names_of_same_kind_clash() -> None:
    """A queue may have the name of an exchange."""
    topology = replace(sound(), exchanges=(Exchange("x"), Exchange("x")), plans=sound().plans * 2)
    assert [each.place for each in found(topology, "name-clash")] == [
        "exchange `x`",
        "plan of queue `orders`",
    ]
    same = live(classic("x"), exchanges=(Exchange("x"),))
    assert found(same, "name-clash") == []


def test_retry_queue_that_is_consumed_is_reported() -> None:
    plan = sound().plans[0]
    resting = replace(
        plan, parking=Parking("orders.retry.1s", Leave.PUBLISH, "", "orders.retry.1s")
    )
    (finding,) = found(replace(sound(), plans=(resting,)), "name-clash")
    assert "also a dead-letter queue" in finding.explanation
    itself = replace(plan, tiers=(Tier("1s", 1000, (Route("", "orders", "orders"),)),))
    (finding,) = found(replace(sound(), plans=(itself,)), "name-clash")
    assert "also a consumed queue" in finding.explanation


@pytest.mark.parametrize(
    ("topology", "places"),
    [
        (live(classic("")), ["queue ``"]),
        (live(classic("ü" * 128)), [f"queue `{'ü' * 128}`"]),
        (live(classic("x" * 255), classic("amq.gen-JzTY20BRgKO")), []),
        (
            live(exchanges=(Exchange("amq.topic", "topic"), Exchange("amq.own"))),
            ["exchange `amq.own`"],
        ),
    ],
)
def test_names_refused_by_broker_are_reported(topology: Topology, places: list[str]) -> None:
    assert [each.place for each in found(topology, "name-refused")] == places


def test_control_characters_in_names_are_escaped() -> None:
    for finding in check(live(classic("q\x1b[2J", dead_letter_exchange="gone\x07"))):
        assert finding.place.isprintable()
        assert finding.explanation.isprintable()


@pytest.mark.parametrize(
    ("queue", "says"),
    [
        (classic("q", message_ttl="5000"), '`x-message-ttl` is "5000", expected a whole number'),
        (classic("q", overflow="drop"), '`x-overflow` is "drop", expected "drop-head"'),
        (classic("q", dead_letter_routing_key="k"), "is set without `x-dead-letter-exchange`"),
        (quorum("q", max_priority=5), "A quorum queue has no argument `x-max-priority`"),
        (Queue("q", QueueType.QUORUM, durable=False), "A quorum queue cannot be not durable"),
        (Queue("q", QueueType.STREAM, exclusive=True), "A stream queue cannot be exclusive"),
        (Queue("q", QueueType.QUORUM, auto_delete=True), "A quorum queue cannot be auto-delete"),
    ],
)
def test_arguments_refused_by_every_broker_are_reported(queue: Queue, says: str) -> None:
    assert [says in each.explanation for each in found(live(queue), "argument-refused", "4.0")] == [
        True
    ]


def test_misspelt_exchange_argument_is_reported() -> None:
    slip = Exchange("x", arguments={"alternate-exchnge": "y"})
    plugin = Exchange("y", "x-consistent-hash", arguments={"hash-header": "id"})
    (finding,) = found(live(exchanges=(slip, plugin)), "argument-ignored")
    assert 'did you mean "alternate-exchange"?' in finding.explanation


def test_argument_without_effect_is_reported_once() -> None:
    topology = live(classic("q", delayed_retry_min=5, queue_master_locator="min-masters"))
    assert "argument-ignored" not in rules(topology)
    assert "argument-refused" in rules(topology)


@pytest.mark.parametrize(
    ("policy", "version", "says"),
    [
        (Policy("p", "(", {}), None, "is not a regular expression"),
        (Policy("p", "", {}, apply_to="queue"), None, 'did you mean "queues"?'),
        (Policy("p", "", {}, apply_to="quorum_queues"), "3.10", "policies for `quorum_queues`"),
        (Policy("p", "", {"message-ttl": "5"}), None, '`message-ttl` is "5", expected a whole'),
        (
            Policy("p", "", {"delivery-limit": -1}),
            "3.13",
            "which RabbitMQ before 4.0 does not accept",
        ),
        (Policy("p", "", {"ha-mode": "all"}), "4.0", "does not know the key `ha-mode`"),
        (Policy("p", "", {"delayed-retry-min": 5}), "4.3", "does not know the key `delayed-retry"),
    ],
)
def test_policies_refused_by_broker_are_reported(
    policy: Policy, version: str | None, says: str
) -> None:
    topology = replace(live(classic("q"), quorum("p")), policies=(policy,))
    assert [says in each.explanation for each in found(topology, "policy-refused", version)] == [
        True
    ]


@pytest.mark.parametrize(
    ("policy", "version"),
    [
        (Policy("p", "", {}, apply_to="quorum_queues"), "3.12"),
        (Policy("p", "", {"delivery-limit": -1}), "4.0"),
        (Policy("p", "", {"ha-mode": "all"}), "3.13"),
        (Policy("p", "", {"delayed-retry-min": 5}), "4.3.1"),
        (Policy("p", "", {"federation-upstream-set": "all"}), "3.10"),
    ],
)
def test_policies_accepted_by_version_are_not_reported(policy: Policy, version: str) -> None:
    topology = replace(live(quorum("q")), policies=(policy,))
    assert found(topology, "policy-refused", version) == []


def test_equal_policies_do_not_shadow_each_other() -> None:
    policies = (
        Policy("a", "^a", {"expires": 9}, priority=1),
        Policy("b", "^a", {"expires": 5}),
    )
    assert (
        found(replace(live(classic("a"), classic("z")), policies=policies), "policy-shadowed") == []
    )


def test_refused_policy_is_not_reported_as_unmatched() -> None:
    policies = (Policy("p", "(", {}), Policy("r", "x", {}, apply_to="odd"))
    assert found(replace(live(classic("q")), policies=policies), "policy-unmatched") == []
