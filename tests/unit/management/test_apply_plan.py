"""The plan of apply: order, limits, offers and risks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.broker.apply import AtRisk, plan
from hopback.broker.limits import exact_pattern
from hopback.designs import DESIGNS
from hopback.topology.diff import Kind
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.version import BrokerVersion

V3 = BrokerVersion(3, 10, 8)
V4 = BrokerVersion(4, 0, 5)
NOTHING = Topology("/")


def ratatoskr(*, hardened: bool = False) -> Topology:
    """The one documented design with quorum queues everywhere."""
    return DESIGNS["ratatoskr"].build({"queue": "q"}, hardened=hardened)


def named(topology: Topology, version: BrokerVersion = V3) -> list[str]:
    """The steps against an empty broker, as texts."""
    return [f"{step.kind} {step.name}" for step in plan(topology, NOTHING, version).steps]


def test_apply_order_on_empty_broker() -> None:
    steps = named(ratatoskr())
    queues = [step for step in steps if step.startswith("queue")]
    assert queues == ["queue q.dlq", "queue q.retry", "queue q"]
    kinds = [step.split()[0] for step in steps]
    assert kinds == sorted(kinds, key=["policy", "exchange", "queue", "binding"].index)
    assert steps[-1].startswith("binding ratatoskr.events → q")


@pytest.mark.parametrize("name", sorted(DESIGNS))
@pytest.mark.parametrize("version", [V3, V4])
def test_existing_topology_is_settled(name: str, version: BrokerVersion) -> None:
    desired = DESIGNS[name].build({}, hardened=True)
    first = plan(desired, NOTHING, version)
    policies = tuple(step.item for step in first.steps if isinstance(step.item, Policy))
    assert plan(desired, replace(desired, policies=policies), version).is_up_to_date


def test_limit_of_quorum_dead_letter_queue_is_lifted_from_4_0() -> None:
    assert not [step for step in named(ratatoskr(), V3) if step.startswith("policy")]
    assert named(ratatoskr(), V4)[0] == "policy hopback-dlq-limit.q.dlq"
    (step,) = (s for s in plan(ratatoskr(), NOTHING, V4).steps if s.kind is Kind.POLICY)
    assert isinstance(step.item, Policy)
    assert dict(step.item.definition) == {"delivery-limit": -1}
    assert step.item.pattern == exact_pattern("q.dlq")


def test_hardened_form_needs_no_policy() -> None:
    assert not [step for step in named(ratatoskr(hardened=True), V4) if step.startswith("policy")]


def test_lifting_policy_keeps_keys_of_policy_in_force() -> None:
    ops = Policy("ops", "dlq$", {"max-length": 7}, 3, "queues")
    live = Topology("/", policies=(ops,))
    (step,) = (s for s in plan(ratatoskr(), live, V4).steps if s.kind is Kind.POLICY)
    assert isinstance(step.item, Policy)
    assert dict(step.item.definition) == {"max-length": 7, "delivery-limit": -1}
    assert step.item.priority == 4


def test_lifting_policy_follows_changed_policy() -> None:
    desired = ratatoskr()
    before = plan(
        desired, replace(desired, policies=(Policy("ops", "dlq$", {"max-length": 7}),)), V4
    )
    (step,) = before.steps
    assert isinstance(step.item, Policy)
    same = replace(desired, policies=(Policy("ops", "dlq$", {"max-length": 7}), step.item))
    changed = replace(desired, policies=(Policy("ops", "dlq$", {"max-length": 9}), step.item))
    assert plan(desired, same, V4).is_up_to_date
    (update,) = plan(desired, changed, V4).steps
    assert isinstance(update.item, Policy)
    assert update.item.definition["max-length"] == 9


def test_explicit_limit_is_kept() -> None:
    ops = Policy("ops", "dlq$", {"delivery-limit": 50})
    assert not plan(ratatoskr(), replace(ratatoskr(), policies=(ops,)), V4).steps


def test_live_queue_decides_whether_limit_is_lifted() -> None:
    desired = ratatoskr(hardened=True)
    live = Topology("/", queues=(Queue("q.dlq", QueueType.QUORUM),))
    assert [s.name for s in plan(desired, live, V4).steps if s.kind is Kind.POLICY] == [
        "hopback-dlq-limit.q.dlq"
    ]


def test_lifting_limit_of_main_queue_is_offered() -> None:
    planned = plan(ratatoskr(), NOTHING, V4)
    (offer,) = planned.offers
    assert (offer.queue, offer.policy.name) == ("q", "hopback-main-limit.q")
    assert "hopback-main-limit.q" not in {step.name for step in planned.steps}
    assert plan(ratatoskr(), NOTHING, V3).offers == ()
    assert plan(ratatoskr(hardened=True), NOTHING, V4).offers == ()


def test_accepted_offer_is_not_repeated() -> None:
    desired = ratatoskr()
    (offer,) = plan(desired, NOTHING, V4).offers
    assert plan(desired, replace(desired, policies=(offer.policy,)), V4).offers == ()


def test_conflict_names_messages_at_risk() -> None:
    desired = Topology("d", queues=(Queue("a", arguments={"x-message-ttl": 5}), Queue("b")))
    binding = Binding("x", "a", "k")
    live = Topology("/", (Exchange("x"),), (Queue("a"), Queue("b")), (binding,))
    risks = (AtRisk("a", 3, 1, 2, 0, 5.0), AtRisk("b", 9, 0))
    planned = plan(desired, live, V3, risks)
    assert [conflict.name for conflict in planned.conflicts] == ["a"]
    assert planned.at_risk == (risks[0],)
    assert planned.live is not None
    assert planned.live.bindings == (binding,)
    assert not planned.is_up_to_date
    assert str(risks[0]) == ("queue a: 5 messages at risk (3 ready, 2 unacked); 1 consumers")


def test_additional_objects_are_left_alone() -> None:
    live = Topology("/", (Exchange("theirs"),), (Queue("their.queue"),))
    planned = plan(ratatoskr(), live, V3)
    assert {entry.name for entry in planned.diff.extra} == {"theirs", "their.queue"}
    assert not {"theirs", "their.queue"} & {step.name for step in planned.steps}
