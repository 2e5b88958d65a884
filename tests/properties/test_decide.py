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
from tests.properties.hostile import TOPOLOGIES, VERSIONS, deliveries, no_deadline, outcomes, plans
from tests.properties.message_runs import MessageRuns, plain_message

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

_versions = st.sampled_from(VERSIONS)
# One queue of each kind. The plans of the other queues differ only in names.
_KINDS = (
    "q.upload.commands",
    "wms.queue.wms-cincout",
    "freeflow.users.queue",
    "freeflow.audit.queue",
    "raffle_queue",
    "my-service.events",
    "orders",
)
_CASES = [
    pytest.param(topology, plan, version, id=f"{name}-{form}-{plan.queue}-{version}")
    for (name, hardened), topology in TOPOLOGIES.items()
    for form in ("hardened" if hardened else "faithful",)
    for plan in topology.plans
    if plan.queue in _KINDS
    for version in VERSIONS
]
every_plan = pytest.mark.parametrize(("topology", "plan", "version"), _CASES)


def _fail(run: int) -> Outcome:
    return Retry(f"run {run} failed")


def _entry(topology: Topology, plan: Plan) -> tuple[str, str]:
    """Return an exchange and key that route to the queue."""
    for binding in topology.bindings:
        if binding.destination == plan.queue:
            key = binding.routing_key.replace("*", "made").replace("#", "user.made")
            return binding.source, key
    return "", plan.queue


@given(st.data(), plans, outcomes, _versions, st.floats(), st.booleans())
@no_deadline
def test_decide_is_total_and_deterministic(
    data: st.DataObject,
    plan: Plan,
    outcome: Outcome,
    version: BrokerVersion,
    chance: float,
    parks: bool,
) -> None:
    """For all headers and outcomes."""
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
@no_deadline
def test_failure_is_retried_exactly_while_attempts_are_left(
    data: st.DataObject, plan: Plan, version: BrokerVersion
) -> None:
    """Regardless of the headers. At the last attempt the message is parked.

    A message with unreadable headers is parked at once because they may contain its attempts.
    """
    delivery = data.draw(deliveries(plan))
    attempt = attempt_of(delivery, plan)
    decision = decide(delivery, Retry("no"), plan, version=version)
    assert 1 <= attempt <= plan.attempts + 1
    counted = not delivery.properties.opaque_headers
    assert isinstance(decision, decided.Retry) == (attempt < plan.attempts and counted)


@given(st.data(), plans, outcomes)
@no_deadline
def test_harmful_x_death_is_never_dead_lettered_on_old_brokers(
    data: st.DataObject, plan: Plan, outcome: Outcome
) -> None:
    """A nack is decided on 3.10 only if `x-death` is well-formed and its entries of the queue are
    rejections.
    """
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
@no_deadline
def test_retry_uses_the_shortest_tier_that_is_long_enough(plan: Plan, after: float) -> None:
    """The longest tier if none is long enough."""
    delivery = Received(plan.queue, "", plan.queue)
    decision = decide(delivery, Retry("no", after), plan, version=VERSIONS[2])
    assert isinstance(decision, decided.Retry)
    longer = [tier for tier in plan.tiers if after > 0 and tier.delay_ms < after * 1000]
    expected = plan.tiers[min(len(longer), len(plan.tiers) - 1)]
    assert decision.tier == expected


@every_plan
def test_message_that_always_fails_is_handled_as_often_as_planned(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    """The handler sees attempts from 1 to `attempts`, then the message is parked."""
    runs = MessageRuns(topology, plan, version)
    dead = runs.run_message(plain_message(*_entry(topology, plan)), _fail)
    assert dead is not None
    assert dead.queue == plan.parking.queue
    assert [attempt_of(run, plan) for run in runs.runs] == list(range(1, plan.attempts + 1))


@every_plan
def test_handler_and_dead_letter_have_the_original_routing_key(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    exchange, key = _entry(topology, plan)
    runs = MessageRuns(topology, plan, version)
    dead = runs.run_message(plain_message(exchange, key), _fail)
    assert dead is not None
    assert {original_routing_key(run, plan) for run in (*runs.runs, dead)} == {key}


@every_plan
def test_redriven_message_has_the_attempts_of_its_design(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    """On the event bus the count continues, which leaves one run. Other designs reset it.

    Twice, because the headers of the first re-drive must not change the second.
    """
    dead = MessageRuns(topology, plan, version).run_message(
        plain_message(*_entry(topology, plan)), _fail
    )
    for job in ("first", "second"):
        assert dead is not None
        again = MessageRuns(topology, plan, version)
        message = redrive_message(dead, plan, RedriveOccasion(1_700_000_100.0, job))
        reached = {stored.delivery.queue for stored in again.broker.publish(message)}
        waits = {route.queue for tier in plan.tiers for route in tier.routes}
        assert len(reached) == 1
        assert reached <= {plan.queue, *waits}
        dead = again.run_message(message, _fail)
        assert len(again.runs) == (plan.attempts if plan.redrive.reset else 1)


@every_plan
def test_snooze_counts_no_attempt(topology: Topology, plan: Plan, version: BrokerVersion) -> None:
    """A message fails as often as planned, with any number of snoozes between the failures."""
    runs = MessageRuns(topology, plan, version)

    def outcome(run: int) -> Outcome:
        return Retry("no") if run % 3 == 0 else Snooze(1.0)

    assert runs.run_message(plain_message(*_entry(topology, plan)), outcome) is not None
    failures = len(runs.runs) // 3
    if plan.snooze_exhausts:
        # The run after the last retry is a snooze, which parks in this design.
        assert len(runs.runs) == 3 * (plan.attempts - 1) + 1
    else:
        assert (failures, len(runs.runs) % 3) == (plan.attempts, 0)


@every_plan
@given(pattern=st.lists(st.booleans(), min_size=12, max_size=12))
@settings(max_examples=5, deadline=None)
def test_message_is_parked_exactly_if_all_planned_runs_fail(
    topology: Topology, plan: Plan, version: BrokerVersion, pattern: list[bool]
) -> None:
    runs = MessageRuns(topology, plan, version)
    dead = runs.run_message(
        plain_message(*_entry(topology, plan)),
        lambda run: Done() if pattern[run - 1] else Retry("no"),
    )
    assert (dead is None) == any(pattern[: plan.attempts])


@every_plan
def test_retry_reaches_only_the_queue_that_failed(
    topology: Topology, plan: Plan, version: BrokerVersion
) -> None:
    runs = MessageRuns(topology, plan, version)
    runs.run_message(plain_message(*_entry(topology, plan)), _fail)
    assert runs.copies == []


@pytest.mark.parametrize("version", VERSIONS)
def test_audit_queue_for_all_keys_takes_retry_copies_as_new_messages(
    version: BrokerVersion,
) -> None:
    """The faithful FreeFlow design returns retries through its shared exchange, so an audit bound
    to `#` gets copies.
    """
    topology = freeflow(audit_keys=("#",))
    plan, audit = topology.plan("freeflow.users.queue"), topology.plan("freeflow.audit.queue")
    assert plan is not None
    assert audit is not None
    runs = MessageRuns(topology, plan, version)
    runs.run_message(plain_message(*_entry(topology, plan)), _fail)
    assert {copy.queue for copy in runs.copies} == {"freeflow.audit.queue"}
    assert {attempt_of(copy, audit) for copy in runs.copies} == {1}
