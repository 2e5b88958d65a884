"""Policies: which one applies, and who wins against the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import Loss
from hopback.topology.model import Policy, QueueType
from tests.unit.embedded.node_setup import Client, Setup

if TYPE_CHECKING:
    from hopback.fields import FieldValue


def test_policy_changes_dead_lettering_at_once() -> None:
    client = Client(Setup())
    client.classic("q")
    client.classic("dead")
    client.put("q", "1", "2")
    policies = client.setup.node.policies
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    policies.put(Policy("p", "^q$", definition, apply_to="queues"))
    client.channel.nack(client.get("q").tag, requeue=False)
    policies.remove("p")
    client.channel.nack(client.get("q").tag, requeue=False)
    assert client.setup.ready("dead") == ["1"]
    assert client.setup.lost() == [Loss.NO_DEAD_LETTER_EXCHANGE]


def test_only_policy_of_highest_priority_applies() -> None:
    """Operator policies are merged with the smaller value."""
    client = Client(Setup())
    client.classic("q")
    policies = client.setup.node.policies
    policies.put(Policy("low", ".*", {"max-length": 5, "message-ttl": 1000}, priority=1))
    policies.put(Policy("high", "q", {"max-length": 9}, priority=2))
    policies.put(Policy("others", "^x", {"max-length": 1}, priority=3))
    policies.put(Policy("exchanges", "q", {"max-length": 1}, priority=3, apply_to="exchanges"))
    settings = client.setup.node.queues["q"].settings
    assert (settings.max_length, settings.ttl) == (9, None)
    policies.put(Policy("operator", "q", {"max-length": 7}), operator=True)
    assert client.setup.node.queues["q"].settings.max_length == 7


@pytest.mark.parametrize(
    ("kind", "argument", "policy", "name", "expected"),
    [
        (QueueType.CLASSIC, "a", "p", "dead-letter-exchange", "a"),
        (QueueType.QUORUM, "a", "p", "dead-letter-exchange", "a"),
        (QueueType.CLASSIC, "reject-publish", "drop-head", "overflow", "reject-publish"),
        (QueueType.QUORUM, "reject-publish", "drop-head", "overflow", "drop-head"),
        (QueueType.CLASSIC, 1000, 500, "message-ttl", 0.5),
        (QueueType.QUORUM, 500, 1000, "message-ttl", 0.5),
        (QueueType.CLASSIC, 1000, 500, "expires", 0.5),
        (QueueType.QUORUM, 500, 1000, "expires", 0.5),
    ],
)
def test_argument_and_policy_precedence_by_setting(
    kind: QueueType, argument: FieldValue, policy: FieldValue, name: str, expected: object
) -> None:
    client = Client(Setup("4.0.5"))
    getattr(client, kind)("q", {f"x-{name}": argument})
    client.setup.node.policies.put(Policy("p", "q", {name: policy}))
    attribute = {"message-ttl": "ttl"}.get(name, name.replace("-", "_"))
    assert getattr(client.setup.node.queues["q"].settings, attribute) == expected


def test_policy_decides_expiry_of_quorum_queue_on_3_10() -> None:
    client = Client(Setup("3.10.8"))
    client.quorum("q", {"x-expires": 500})
    client.setup.node.policies.put(Policy("p", "q", {"expires": 1000}))
    assert client.setup.node.queues["q"].settings.expires == 1.0


@pytest.mark.parametrize(
    ("version", "policy", "problem"),
    [
        ("4.0.5", Policy("p", "q", {"max-lenght": 1}), "max-lenght"),
        ("3.10.8", Policy("p", "q", {}, apply_to="quorum_queues"), "quorum_queues"),
        ("3.10.8", Policy("p", "q", {"delivery-limit": -1}), "-1"),
    ],
)
def test_invalid_policies_are_refused(version: str, policy: Policy, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Setup(version).node.policies.put(policy)
    Setup("4.0.5").node.policies.put(
        Policy("p", "q", {"delivery-limit": -1}, apply_to="quorum_queues")
    )


def test_shorter_max_length_drops_messages_at_once() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", *"1234")
    client.setup.node.policies.put(Policy("p", "q", {"max-length": 2}))
    assert client.setup.ready("q") == ["3", "4"]


def test_restart_keeps_durable_objects() -> None:
    setup = Setup()
    client = Client(setup)
    client.classic("durable")
    client.quorum("quorum")
    client.classic("transient", durable=False)
    for name in ("durable", "quorum", "transient"):
        client.put(name, "1", delivery_mode=2)
        client.put(name, "2", delivery_mode=1)
    client.get("durable")
    setup.node.restart()
    assert (setup.ready("durable"), setup.ready("quorum")) == (["1"], ["1", "2"])
    assert "transient" not in setup.node.queues
    assert set(setup.lost()) == {Loss.RESTART}
