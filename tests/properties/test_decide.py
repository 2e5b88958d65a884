"""`decide` is total and deterministic, and a message is handled as often as its plan allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopback.designs import freeflow
from hopback.message import Received
from hopback.policy import (
    Done,
    Outcome,
    Park,
    RedriveOccasion,
    Retry,
    Snooze,
    attempt_of,
    decide,
    original_routing_key,
    redrive_message,
)
from hopback.policy import decision as decided
from hopback.topology.plan import Leave, Plan
from tests.properties.hostile import TOPOLOGIES, VERSIONS, deliveries, moderately, outcomes, plans
from tests.properties.lives import Life, plain_message

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

_versions = st.sampled_from(VERSIONS)
# One queue of each kind: the other queues of a design have plans that differ in names only.
_KINDS = (
    "q.upload.commands",
    "wms.queue.wms-cincout",
    "freeflow.users.queue",
    "freeflow.audit.queue",
    "raffle_queue",
    "my-service.events",
    "orders",
)
_LIVES = [
    pytest.param(topology, plan, version, id=f"{name}-{form}-{plan.queue}-{version}")
    for (name, hardened), topology in TOPOLOGIES.items()
    for form in ("hardened" if hardened else "faithful",)
    for plan in topology.plans
    if plan.queue in _KINDS
    for version in VERSIONS
]
every_life = pytest.mark.parametrize(("topology", "plan", "version"), _LIVES)


def _failing(run: int) -> Outcome:
    return Retry(f"run {run} failed")


def _entry(topology: Topology, plan: Plan) -> tuple[str, str]:
    """An exchange and key by which a producer reaches the queue, if a binding says so."""
    for binding in topology.bindings:
        if binding.destination == plan.queue:
            key = binding.routing_key.replace("*", "made").replace("#", "user.made")
            return binding.source, key
    return "", plan.queue


@given(st.data(), plans, outcomes, _versions, st.floats(), st.booleans())
@moderately
def test_decide_is_total_and_deterministic(
    data: st.DataObject,
    plan: Plan,
    outcome: Outcome,
    version: BrokerVersion,
    chance: float,
    parks: bool,
) -> None:
    """Whatever the headers hold and the handler said, there is a decision, always the same one."""
    delivery = data.draw(deliveries(plan))
    first, again = (
        decide(delivery, outcome, plan, version=version, chance=chance, dead_letters_park=parks)
        for _ in range(2)
    )
    assert first == again
    assert isinstance(first, decided.Ack) == isinstance(outcome, Done)
    if isinstance(outcome, Park):
        assert isinstance(first, decided.Park)
    if isinstance(first, decided.Requeue):
        assert 0 <= first.delay <= 2.0


@given(st.data(), plans, _versions)
@moderately
def test_a_retry_is_decided_exactly_while_attempts_are_left(
    data: st.DataObject, plan: Plan, version: BrokerVersion
) -> None:
    """Below the plan's attempts a failure is retried, at the last it parks, whatever headers claim.

    What has headers that nobody can read is parked at once: its count may be among them.
    """
    delivery = data.draw(deliveries(plan))
    attempt = attempt_of(delivery, plan)
    decision = decide(delivery, Retry("no"), plan, version=version)
    assert 1 <= attempt <= plan.attempts + 1
    counted = not delivery.properties.opaque_headers
    assert isinstance(decision, decided.Retry) == (attempt < plan.attempts and counted)


@given(st.data(), plans, outcomes)
@moderately
def test_an_old_broker_never_dead_letters_an_x_death_that_hurts_it(
    data: st.DataObject, plan: Plan, outcome: Outcome
) -> None:
    """Where nack is decided on 3.10, `x-death` is as a broker writes it and tells of rejections."""
    delivery = data.draw(deliveries(plan))
    decision = decide(delivery, outcome, plan, version=VERSIONS[0], dead_letters_park=True)
    if isinstance(decision, decided.Retry | decided.Park) and decision.by is Leave.REJECT:
        value = delivery.properties.headers.get("x-death", [])
        assert isinstance(value, list)
        for entry in value:
            assert isinstance(entry, dict)
            assert isinstance(entry["count"], int)
            assert entry["queue"] != plan.queue or entry["reason"] == "rejected"


@given(plans, st.one_of(st.floats(), st.integers(0, 10**400)))
@moderately
def test_a_wait_asked_for_is_the_shortest_that_is_long_enough(plan: Plan, after: float) -> None:
    """`Retry(after)` takes no shorter tier than asked for, unless none is that long."""
    delivery = Received(plan.queue, "", plan.queue)
    decision = decide(delivery, Retry("no", after), plan, version=VERSIONS[2])
    assert isinstance(decision, decided.Retry)
    longer = [tier for tier in plan.tiers if after > 0 and tier.delay_ms < after * 1000]
    expected = plan.tiers[min(len(longer), len(plan.tiers) - 1)]
    assert decision.tier == expected


@every_life
def test_a_hopeless_message_is_handled_exactly_as_often_as_planned(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    """It fails always: the handler sees it `attempts` times, counted from 1, then it is parked."""
    life = Life(topology, plan, version)
    dead = life.play(plain_message(*_entry(topology, plan)), _failing)
    assert dead is not None
    assert dead.queue == plan.parking.queue
    assert [attempt_of(run, plan) for run in life.runs] == list(range(1, plan.attempts + 1))


@every_life
def test_the_handler_sees_the_original_routing_key_in_every_run(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    """Whatever keys the way back uses, each run and the dead letter know the first one."""
    exchange, key = _entry(topology, plan)
    life = Life(topology, plan, version)
    dead = life.play(plain_message(exchange, key), _failing)
    assert dead is not None
    assert {original_routing_key(run, plan) for run in (*life.runs, dead)} == {key}


@every_life
def test_a_redriven_message_has_the_attempts_its_design_gives_it(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    """On the event bus the count continues, so one more run; everywhere else it begins anew.

    Twice, because what the first re-drive leaves behind must not change the second.
    """
    dead = Life(topology, plan, version).play(plain_message(*_entry(topology, plan)), _failing)
    for job in ("first", "second"):
        assert dead is not None
        again = Life(topology, plan, version)
        message = redrive_message(dead, plan, RedriveOccasion(1_700_000_100.0, job))
        reached = {stored.delivery.queue for stored in again.broker.publish(message)}
        waits = {route.queue for tier in plan.tiers for route in tier.routes}
        assert len(reached) == 1
        assert reached <= {plan.queue, *waits}
        dead = again.play(message, _failing)
        assert len(again.runs) == (plan.attempts if plan.redrive.reset else 1)


@every_life
def test_a_snooze_counts_no_attempt(topology: Topology, plan: Plan, version: BrokerVersion) -> None:
    """However often it is snoozed between two failures, it still fails as often as planned."""
    life = Life(topology, plan, version)

    def outcome(run: int) -> Outcome:
        return Retry("no") if run % 3 == 0 else Snooze(1.0)

    assert life.play(plain_message(*_entry(topology, plan)), outcome) is not None
    failures = len(life.runs) // 3
    if plan.snooze_exhausts:
        # The run after the last retry was a snooze, and that parks here.
        assert len(life.runs) == 3 * (plan.attempts - 1) + 1
    else:
        assert (failures, len(life.runs) % 3) == (plan.attempts, 0)


@every_life
@given(pattern=st.lists(st.booleans(), min_size=12, max_size=12))
@settings(max_examples=5, deadline=None)
def test_a_message_that_recovers_is_done_and_not_parked(
    topology: Topology, plan: Plan, version: BrokerVersion, pattern: list[bool]
) -> None:
    """It parks exactly if every one of its planned runs fails."""
    life = Life(topology, plan, version)
    dead = life.play(
        plain_message(*_entry(topology, plan)),
        lambda run: Done() if pattern[run - 1] else Retry("no"),
    )
    assert (dead is None) == any(pattern[: plan.attempts])


@every_life
def test_a_retry_reaches_only_the_queue_that_failed(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    """No other queue sees a retry: every design brings it back to its queue alone."""
    life = Life(topology, plan, version)
    life.play(plain_message(*_entry(topology, plan)), _failing)
    assert life.copies == []


@pytest.mark.parametrize("version", VERSIONS)
def test_an_audit_of_everything_takes_a_copy_of_a_retry_for_a_new_message(
    version: BrokerVersion,
) -> None:
    """Faithful FreeFlow returns through its shared exchange: the audit bound to `#` gets a copy."""
    topology = freeflow(audit_keys=("#",))
    plan, audit = topology.plan("freeflow.users.queue"), topology.plan("freeflow.audit.queue")
    assert plan is not None
    assert audit is not None
    life = Life(topology, plan, version)
    life.play(plain_message(*_entry(topology, plan)), _failing)
    assert {copy.queue for copy in life.copies} == {"freeflow.audit.queue"}
    assert {attempt_of(copy, audit) for copy in life.copies} == {1}
