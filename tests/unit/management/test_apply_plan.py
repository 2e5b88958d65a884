"""What apply would do: order, limits, offers and what is at risk. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.broker.apply import AtRisk, plan
from hopback.broker.limits import exactly
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


def test_everything_is_created_on_an_empty_broker() -> None:
    """Exchanges, then places to rest and wait, then the main queue, and ways in last."""
    steps = named(ratatoskr())
    queues = [step for step in steps if step.startswith("queue")]
    assert queues == ["queue q.dlq", "queue q.retry", "queue q"]
    kinds = [step.split()[0] for step in steps]
    assert kinds == sorted(kinds, key=["policy", "exchange", "queue", "binding"].index)
    assert steps[-1].startswith("binding ratatoskr.events → q")


@pytest.mark.parametrize("name", sorted(DESIGNS))
@pytest.mark.parametrize("version", [V3, V4])
def test_a_topology_that_is_there_needs_nothing(name: str, version: BrokerVersion) -> None:
    """Applied once, with the policies it asked for, every design is settled."""
    desired = DESIGNS[name].build({}, hardened=True)
    first = plan(desired, NOTHING, version)
    policies = tuple(step.item for step in first.steps if isinstance(step.item, Policy))
    assert plan(desired, replace(desired, policies=policies), version).settled


def test_the_limit_of_a_quorum_dead_letter_queue_is_lifted_from_4_0_on() -> None:
    """Before 4.0 there is no default limit, and the value -1 would be refused."""
    assert not [step for step in named(ratatoskr(), V3) if step.startswith("policy")]
    assert named(ratatoskr(), V4)[0] == "policy hopback-dlq-limit.q.dlq"
    (step,) = (s for s in plan(ratatoskr(), NOTHING, V4).steps if s.kind is Kind.POLICY)
    assert isinstance(step.item, Policy)
    assert dict(step.item.definition) == {"delivery-limit": -1}
    assert step.item.pattern == exactly("q.dlq")


def test_the_hardened_form_needs_no_policy() -> None:
    """Its dead-letter queue has an explicit limit."""
    assert not [step for step in named(ratatoskr(hardened=True), V4) if step.startswith("policy")]


def test_the_policy_in_force_is_kept() -> None:
    """Only one policy applies to a queue: the lifting one carries the other's keys, above it."""
    ops = Policy("ops", "dlq$", {"max-length": 7}, 3, "queues")
    live = Topology("/", policies=(ops,))
    (step,) = (s for s in plan(ratatoskr(), live, V4).steps if s.kind is Kind.POLICY)
    assert isinstance(step.item, Policy)
    assert dict(step.item.definition) == {"max-length": 7, "delivery-limit": -1}
    assert step.item.priority == 4


def test_a_lifting_policy_follows_the_policy_below_it() -> None:
    """When the policy in force has changed, ours is brought up to date; otherwise left alone."""
    desired = ratatoskr()
    before = plan(
        desired, replace(desired, policies=(Policy("ops", "dlq$", {"max-length": 7}),)), V4
    )
    (step,) = before.steps
    assert isinstance(step.item, Policy)
    same = replace(desired, policies=(Policy("ops", "dlq$", {"max-length": 7}), step.item))
    changed = replace(desired, policies=(Policy("ops", "dlq$", {"max-length": 9}), step.item))
    assert plan(desired, same, V4).settled
    (update,) = plan(desired, changed, V4).steps
    assert isinstance(update.item, Policy)
    assert update.item.definition["max-length"] == 9


def test_an_explicit_limit_is_left_alone() -> None:
    """Whoever set a limit by policy meant it."""
    ops = Policy("ops", "dlq$", {"delivery-limit": 50})
    assert not plan(ratatoskr(), replace(ratatoskr(), policies=(ops,)), V4).steps


def test_the_live_queue_decides_and_not_the_desired_one() -> None:
    """A live dead-letter queue without a limit needs the policy, whatever the file says."""
    desired = ratatoskr(hardened=True)
    live = Topology("/", queues=(Queue("q.dlq", QueueType.QUORUM),))
    assert [s.name for s in plan(desired, live, V4).steps if s.kind is Kind.POLICY] == [
        "hopback-dlq-limit.q.dlq"
    ]


def test_lifting_the_main_limit_is_offered_and_not_done() -> None:
    """The default limit of 4.0 feeds ratatoskr's retry loop; the policy against it is an offer."""
    planned = plan(ratatoskr(), NOTHING, V4)
    (offer,) = planned.offers
    assert (offer.queue, offer.policy.name) == ("q", "hopback-main-limit.q")
    assert "hopback-main-limit.q" not in {step.name for step in planned.steps}
    assert plan(ratatoskr(), NOTHING, V3).offers == ()
    assert plan(ratatoskr(hardened=True), NOTHING, V4).offers == ()


def test_a_taken_offer_is_not_made_again() -> None:
    """The policy that lifts the limit ends the offer."""
    desired = ratatoskr()
    (offer,) = plan(desired, NOTHING, V4).offers
    assert plan(desired, replace(desired, policies=(offer.policy,)), V4).offers == ()


def test_conflicts_name_what_is_at_risk() -> None:
    """A queue that would have to be replaced comes with its depth; its bindings are known."""
    desired = Topology("d", queues=(Queue("a", arguments={"x-message-ttl": 5}), Queue("b")))
    binding = Binding("x", "a", "k")
    live = Topology("/", (Exchange("x"),), (Queue("a"), Queue("b")), (binding,))
    risks = (AtRisk("a", 3, 1, 2, 0, 5.0), AtRisk("b", 9, 0))
    planned = plan(desired, live, V3, risks)
    assert [conflict.name for conflict in planned.conflicts] == ["a"]
    assert planned.at_risk == (risks[0],)
    assert planned.live is not None
    assert planned.live.bindings == (binding,)
    assert not planned.settled
    assert str(risks[0]) == ("queue a: 5 messages at risk (3 ready, 2 unacked); 1 consumers")


def test_what_is_there_besides_is_left_alone() -> None:
    """Nothing of others is ever among the steps."""
    live = Topology("/", (Exchange("theirs"),), (Queue("their.queue"),))
    planned = plan(ratatoskr(), live, V3)
    assert {entry.name for entry in planned.diff.extra} == {"theirs", "their.queue"}
    assert not {"theirs", "their.queue"} & {step.name for step in planned.steps}
