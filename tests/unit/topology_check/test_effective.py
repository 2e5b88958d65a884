"""Effective settings of a queue: arguments and the applied policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.topology.effective import (
    delivery_limit,
    effective_arguments,
    effective_policy,
    effective_topology,
    find_policies,
)
from hopback.topology.model import Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion
from tests.unit.topology_check.building import classic, quorum

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers

V3 = BrokerVersion(3, 10)
V4 = BrokerVersion(4, 0)


def under(queue: Queue, definition: Headers, version: BrokerVersion | None = V4) -> Headers:
    """The arguments of a queue under a policy that matches it."""
    return effective_arguments(queue, [Policy("p", "", definition)], version)


def test_only_policy_of_highest_priority_counts() -> None:
    low = Policy("low", "^q", {"message-ttl": 5, "expires": 6}, priority=1)
    high = Policy("high", "q$", {"max-length": 7}, priority=2)
    queue = classic("q")
    assert find_policies(queue, [low, high]) == (high, low)
    assert effective_policy(queue, [low, high]) is high
    assert effective_arguments(queue, [low, high]) == {"x-max-length": 7}


def test_policy_pattern_is_searched_in_name() -> None:
    """An invalid pattern matches no name."""
    queue = classic("shop.orders.retry")
    assert effective_policy(queue, [Policy("p", "orders", {})]) is not None
    assert effective_policy(queue, [Policy("p", "^orders", {})]) is None
    assert effective_policy(queue, [Policy("p", "(", {})]) is None


@pytest.mark.parametrize(
    ("apply_to", "fitting"),
    [
        ("all", {"classic", "quorum", "stream", "exchange"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("exchanges", {"exchange"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("nonsense", set()),
    ],
)
def test_policy_applies_to_named_kinds(apply_to: str, fitting: set[str]) -> None:
    targets: list[Queue | Exchange] = [Queue(str(kind), kind) for kind in QueueType]
    targets.append(Exchange("exchange"))
    policy = Policy("p", "", {}, apply_to=apply_to)
    assert {each.name for each in targets if effective_policy(each, [policy])} == fitting


@pytest.mark.parametrize(
    ("queue", "definition", "expected"),
    [
        (classic("q"), {"message-ttl": 5}, {"x-message-ttl": 5}),
        (classic("q", message_ttl=9), {"message-ttl": 5}, {"x-message-ttl": 5}),
        (classic("q", message_ttl=3), {"message-ttl": 5}, {"x-message-ttl": 3}),
        (classic("q", max_length=3), {"max-length": 5}, {"x-max-length": 3}),
        (
            classic("q", dead_letter_exchange="mine"),
            {"dead-letter-exchange": "theirs"},
            {"x-dead-letter-exchange": "mine"},
        ),
        (classic("q", overflow="drop-head"), {"overflow": "x"}, {"x-overflow": "drop-head"}),
        (quorum("q", overflow="drop-head"), {"overflow": "x"}, {"x-overflow": "x"}),
        (
            quorum("q", dead_letter_strategy="at-least-once"),
            {"dead-letter-strategy": "at-most-once"},
            {"x-dead-letter-strategy": "at-least-once"},
        ),
        (quorum("q", delivery_limit=30), {"delivery-limit": 5}, {"x-delivery-limit": 5}),
        (quorum("q", delivery_limit=30), {"delivery-limit": -1}, {"x-delivery-limit": 30}),
        (quorum("q", delivery_limit=-1), {"delivery-limit": 30}, {"x-delivery-limit": 30}),
        (classic("q"), {"delivery-limit": 5, "dead-letter-strategy": "at-least-once"}, {}),
        (quorum("q"), {"queue-mode": "lazy"}, {}),
        (Queue("q", QueueType.STREAM), {"message-ttl": 5, "max-age": "1D"}, {"x-max-age": "1D"}),
        (classic("q", message_ttl="odd"), {"message-ttl": 5}, {"x-message-ttl": "odd"}),
        (quorum("q", expires=9), {"expires": 5}, {"x-expires": 5}),
        (quorum("q", expires=3), {"expires": 5}, {"x-expires": 3}),
    ],
)
def test_argument_and_policy_precedence_by_setting(
    queue: Queue, definition: Headers, expected: dict[str, FieldValue]
) -> None:
    assert under(queue, definition) == expected


def test_policy_decides_expiry_of_quorum_queue_before_4_0() -> None:
    queue = quorum("q", expires=3)
    assert under(queue, {"expires": 5}, V3) == {"x-expires": 5}
    assert under(queue, {"expires": 5}, None) == {"x-expires": 3}
    assert under(classic("q", expires=3), {"expires": 5}, V3) == {"x-expires": 3}


@pytest.mark.parametrize(
    ("queue", "version", "expected"),
    [
        (quorum("q"), V3, None),
        (quorum("q"), V4, 20),
        (quorum("q", delivery_limit=5), V3, 5),
        (quorum("q", delivery_limit=5), V4, 5),
        (quorum("q", delivery_limit=-1), V3, 0),
        (quorum("q", delivery_limit=-1), V4, None),
        (classic("q"), V4, None),
    ],
)
def test_delivery_limit_depends_on_version(
    queue: Queue, version: BrokerVersion, expected: int | None
) -> None:
    assert delivery_limit(queue, version) == expected


def test_alternate_exchange_is_taken_from_policy() -> None:
    topology = Topology(
        "t",
        exchanges=(
            Exchange("a"),
            Exchange("b", arguments={"alternate-exchange": "own"}),
            Exchange("c"),
        ),
        queues=(classic("a"),),
        policies=(Policy("p", "^[ab]$", {"alternate-exchange": "spare", "message-ttl": 5}),),
    )
    seen = effective_topology(topology)
    alternates = [each.arguments.get("alternate-exchange") for each in seen.exchanges]
    assert alternates == ["spare", "own", None]
    assert seen.queues[0].arguments["x-message-ttl"] == 5
