"""How a limit is lifted without losing the rest of the policy in force."""

from __future__ import annotations

import pytest

from hopback.broker.limits import (
    DLQ_LIMIT_PREFIX,
    exact_pattern,
    find_lifted_limits,
    has_default_limit,
    lift_policy,
)
from hopback.topology.effective import effective_policy
from hopback.topology.model import Policy, Queue, QueueType
from hopback.version import BrokerVersion

V3 = BrokerVersion(3, 13)
V4 = BrokerVersion(4, 0)
DLQ = Queue("shop.dlq", QueueType.QUORUM)


def test_exact_pattern_matches_only_its_queue() -> None:
    policy = Policy("p", exact_pattern("shop.dlq"), {})
    for other in ("shopxdlq", "shop.dlq.2", "a.shop.dlq"):
        assert effective_policy(Queue(other), [policy]) is None
    assert effective_policy(DLQ, [policy]) == policy


@pytest.mark.parametrize(
    ("queue", "policies", "version", "expected"),
    [
        (DLQ, [], V4, True),
        (DLQ, [], V3, False),
        (Queue("shop.dlq"), [], V4, False),
        (Queue("shop.dlq", QueueType.QUORUM, arguments={"x-delivery-limit": 9}), [], V4, False),
        (DLQ, [Policy("p", "dlq", {"delivery-limit": 50})], V4, False),
        (DLQ, [Policy("p", "dlq", {"max-length": 50})], V4, True),
    ],
)
def test_default_limit_applies_to_quorum_queues_from_4_0(
    queue: Queue, policies: list[Policy], version: BrokerVersion, expected: bool
) -> None:
    assert has_default_limit(queue, policies, version) is expected


def test_lifting_policy_overrides_policy_in_force() -> None:
    former = Policy("ops", "^shop", {"max-length": 5, "overflow": "reject-publish"}, 7)
    new = lift_policy(DLQ_LIMIT_PREFIX, DLQ, [former])
    assert dict(new.definition) == {
        "max-length": 5,
        "overflow": "reject-publish",
        "delivery-limit": -1,
    }
    assert (new.priority, new.pattern, new.apply_to) == (8, exact_pattern("shop.dlq"), "queues")
    assert effective_policy(DLQ, [former, new]) == new
    assert effective_policy(Queue("shop.other", QueueType.QUORUM), [former, new]) == former


def test_lifting_twice_keeps_priority() -> None:
    former = Policy("ops", "^shop", {"max-length": 5}, 7)
    once = lift_policy(DLQ_LIMIT_PREFIX, DLQ, [former])
    assert lift_policy(DLQ_LIMIT_PREFIX, DLQ, [former, once]) == once


def test_lifted_limits_are_recognised_by_policy_name() -> None:
    policy = lift_policy(DLQ_LIMIT_PREFIX, DLQ, [])
    (found,) = find_lifted_limits([Policy("ops", ".*", {}), policy])
    assert (found.queue, found.policy) == ("shop.dlq", policy)
