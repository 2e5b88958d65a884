"""What a queue is told in the end: arguments and the one policy that applies."""

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


def test_of_several_policies_only_the_one_of_highest_priority_counts() -> None:
    """They do not merge."""
    low = Policy("low", "^q", {"message-ttl": 5, "expires": 6}, priority=1)
    high = Policy("high", "q$", {"max-length": 7}, priority=2)
    queue = classic("q")
    assert find_policies(queue, [low, high]) == (high, low)
    assert effective_policy(queue, [low, high]) is high
    assert effective_arguments(queue, [low, high]) == {"x-max-length": 7}


def test_a_policy_matches_anywhere_in_the_name_unless_it_says_where() -> None:
    """As on the broker: a search, not a full match; a pattern that cannot be read matches none."""
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
def test_a_policy_applies_to_the_kinds_it_names(apply_to: str, fitting: set[str]) -> None:
    """Queues, queues of one type, exchanges, or all."""
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
def test_where_both_speak_each_setting_has_its_own_rule(
    queue: Queue, definition: Headers, expected: dict[str, FieldValue]
) -> None:
    """The argument wins, or the smaller value, or for a quorum queue's overflow the policy."""
    assert under(queue, definition) == expected


def test_before_4_0_the_policy_decides_when_a_quorum_queue_expires() -> None:
    """From 4.0 on, and where no version is meant, the smaller value does."""
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
def test_the_delivery_limit_depends_on_the_version(
    queue: Queue, version: BrokerVersion, expected: int | None
) -> None:
    """None before 4.0 unless said; a negative one is none from 4.0 on, and deadly before."""
    assert delivery_limit(queue, version) == expected


def test_an_exchange_takes_its_alternate_exchange_from_a_policy() -> None:
    """Unless it names one itself; queues get their settings in the same look."""
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
