"""Desired × actual."""

# Sentences are in one line here, as they are printed.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from hopback.fields import Int32
from hopback.topology.diff import Diff, Kind, diff
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology

_MIGRATE = "it cannot change in place: declare it as the broker has it, or migrate"


def queues(*items: Queue) -> Topology:
    """A topology of these queues."""
    return Topology("t", queues=items)


def test_diff_lists_missing_and_additional_objects() -> None:
    desired = Topology(
        "d",
        (Exchange("x", "topic"), Exchange("shared")),
        (Queue("q"), Queue("old")),
        (Binding("x", "q", "a"), Binding("shared", "old"), Binding("x", "shared", "", True)),
        policies=(Policy("p", ".*", {"max-length": 1}),),
    )
    actual = Topology(
        "a",
        (Exchange("shared"), Exchange("other"), Exchange("amq.topic", "topic"), Exchange("")),
        (Queue("old"), Queue("strange"), Queue("amq.gen-x")),
        (
            Binding("shared", "old"),
            Binding("", "old", "old"),
            Binding("amq.topic", "old", "k"),
            Binding("shared", "amq.gen-x"),
        ),
        policies=(Policy("o", ".*", {"max-length": 1}),),
    )
    found = diff(desired, actual)
    assert [str(entry) for entry in found.create] == [
        "exchange x",
        "queue q",
        'binding x → q by "a"',
        "binding x → exchange shared",
        "policy p",
    ]
    assert [str(entry) for entry in found.same] == [
        "exchange shared",
        "queue old",
        "binding shared → old",
    ]
    assert [str(entry) for entry in found.extra] == [
        "exchange other",
        "queue strange",
        'binding amq.topic → old by "k"',
        "policy o",
    ]
    assert found.conflict == ()
    assert not found.is_up_to_date
    assert Diff(extra=found.extra).is_up_to_date


def test_bindings_differ_by_arguments() -> None:
    one = Binding("x", "q", arguments={"x-match": "all", "a": 1})
    other = Binding("x", "q", arguments={"x-match": "any", "a": 1})
    found = diff(Topology("d", bindings=(one,)), Topology("a", bindings=(other,)))
    assert [entry.item for entry in found.create] == [one]
    assert [entry.item for entry in found.extra] == [other]
    assert found.create[0].name == "x → q with 2 arguments"


def test_arguments_that_broker_ignores_do_not_differ() -> None:
    desired = Topology(
        "d",
        (Exchange("x", arguments={"hash-header": "a"}),),
        (Queue("q", arguments={"x-message-ttl": Int32(5), "x-mesage-ttl": 1}),),
    )
    actual = Topology("a", (Exchange("x"),), (Queue("q", arguments={"x-message-ttl": 5}),))
    assert diff(desired, actual).is_up_to_date


def test_conflict_names_each_argument_with_advice() -> None:
    desired = Queue(
        "q",
        QueueType.QUORUM,
        arguments={"x-dead-letter-exchange": "dlx", "x-message-ttl": 5, "x-delivery-limit": 7},
    )
    actual = Queue("q", durable=False, arguments={"x-message-ttl": 9, "x-max-priority": 3})
    found = diff(queues(desired), queues(actual))
    (conflict,) = found.conflict
    assert (conflict.kind, conflict.name) == (Kind.QUEUE, "q")
    assert (conflict.desired, conflict.actual) == (desired, actual)
    assert [(item.field, item.desired, item.actual) for item in conflict.differences] == [
        ("type", "quorum", "classic"),
        ("durable", True, False),
        ("x-dead-letter-exchange", "dlx", None),
        ("x-message-ttl", 5, 9),
        ("x-delivery-limit", 7, None),
        ("x-max-priority", None, 3),
    ]
    assert str(conflict).splitlines()[:2] == [
        "queue q",
        f'  type: "quorum" desired, "classic" on the broker; {_MIGRATE} (make a new queue, move the'
        " messages, delete the old one)",
    ]
    assert "x-max-priority: nothing desired, 3 on the broker" in str(conflict)


@pytest.mark.parametrize(
    ("kind", "argument", "desired", "actual", "policy", "words"),
    [
        (QueueType.CLASSIC, "x-dead-letter-exchange", "d", None, ("dead-letter-exchange", "d"), 'a policy with dead-letter-exchange: "d" has the same effect'),
        (QueueType.CLASSIC, "x-dead-letter-exchange", "d", "e", None, "the argument takes precedence over any policy; it cannot"),
        (QueueType.CLASSIC, "x-dead-letter-exchange", None, "e", None, "a policy cannot remove an argument"),
        (QueueType.CLASSIC, "x-message-ttl", 5, 9, ("message-ttl", 5), "a policy with message-ttl: 5 has the same effect on the live queue (for messages that arrive later)"),
        (QueueType.CLASSIC, "x-message-ttl", 9, 5, None, "RabbitMQ uses the smaller value of argument and policy"),
        (QueueType.CLASSIC, "x-overflow", "reject-publish", "drop-head", None, "the argument takes precedence"),
        (QueueType.QUORUM, "x-overflow", "reject-publish", "drop-head", ("overflow", "reject-publish"), "a policy with overflow"),
        (QueueType.QUORUM, "x-delivery-limit", 20, -1, ("delivery-limit", 20), "a policy with delivery-limit: 20"),
        (QueueType.QUORUM, "x-delivery-limit", -1, 20, None, "RabbitMQ uses the smaller value of argument and policy"),
        (QueueType.QUORUM, "x-single-active-consumer", True, None, None, _MIGRATE),
        (QueueType.CLASSIC, "x-max-priority", 5, 6, None, _MIGRATE),
    ],
)  # fmt: skip
def test_policy_is_offered_where_it_overrides_argument(
    kind: QueueType,
    argument: str,
    desired: str | int | None,
    actual: str | int | None,
    policy: tuple[str, object] | None,
    words: str,
) -> None:
    one = Queue("q", kind, arguments={} if desired is None else {argument: desired})
    other = Queue("q", kind, arguments={} if actual is None else {argument: actual})
    (conflict,) = diff(queues(one), queues(other)).conflict
    (difference,) = conflict.differences
    assert difference.policy == policy
    assert difference.advice.startswith(words)


def test_true_and_one_differ() -> None:
    one = Queue("q", arguments={"x-single-active-consumer": True})
    other = Queue("q", arguments={"x-single-active-consumer": 1})
    assert not diff(queues(one), queues(other)).is_up_to_date


def test_exchange_conflicts_are_reported() -> None:
    desired = Exchange("x", "topic", arguments={"alternate-exchange": "lost"})
    found = diff(Topology("d", (desired,)), Topology("a", (Exchange("x"),)))
    kind, alternate = found.conflict[0].differences
    assert kind.advice.startswith("it cannot change in place")
    assert alternate.policy == ("alternate-exchange", "lost")


def test_different_policy_can_be_replaced() -> None:
    desired = Policy("p", "^a", {"max-length": 1, "expires": 5})
    actual = Policy("p", "^b", {"max-length": 1, "overflow": "drop-head"}, 3)
    found = diff(Topology("d", policies=(desired,)), Topology("a", policies=(actual,)))
    (conflict,) = found.conflict
    assert [item.field for item in conflict.differences] == [
        "pattern",
        "priority",
        "definition.expires",
        "definition.overflow",
    ]
    assert all("replaced at any time" in item.advice for item in conflict.differences)
