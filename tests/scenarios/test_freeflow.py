"""FreeFlow's document, "RabbitMQ Retry Topology (TTL + DLX)", shown sentence by sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import EventKind, Fault
from hopback.designs import freeflow
from hopback.errors import Returned
from hopback.headers import broker_failures, last_death_queue
from hopback.message import Message, Properties, Received
from hopback.policy import Done, Park, Retry, plan_of
from tests.scenarios.scenario import (
    EVERY_VERSION,
    FAITHFUL,
    HARDENED,
    POLICY,
    RUNTIME,
    Scenario,
    for_design,
)

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.topology.model import Topology

_FAILURE = RuntimeError("search index is away")
_QUICK = {"tiers_ms": {"30s": 40, "5m": 60, "30m": 80}}
_CREATED = ("freeflow.events", "document.created")
_DOCUMENTS, _AUDIT = "freeflow.documents.queue", "freeflow.audit.queue"
_DLQ = "freeflow.events.dlq"
_TIMES = [0.0, 30.0, 330.0, 2130.0]


def _recording(**parameters: Any) -> Topology:
    """FreeFlow with an audit of everything, as another public page of it has the audit's binding."""
    return freeflow(audit_keys=("#",), **parameters)


_DOMAINS = [
    ("user", "freeflow.users.queue"),
    ("auth", "freeflow.users.queue"),
    ("alarm", "freeflow.alarms.queue"),
    ("document", "freeflow.documents.queue"),
    ("workflow", "freeflow.workflows.queue"),
    ("notification", "freeflow.notifications.queue"),
    ("audit", "freeflow.audit.queue"),
]


@for_design(freeflow, versions=EVERY_VERSION, quick=_QUICK)
async def test_a_failing_message_waits_30_s_5_min_30_min_and_goes_to_the_dlq(
    scenario: Scenario,
) -> None:
    """Four runs, each retry counted and carrying where the message first came from.

    The handler sees the original routing key every time, though the broker brings the message
    back as `document.retry` (or, hardened, straight to its queue).
    """
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED, b'{"id": 1}', headers={"tenant": "blue"})
    await scenario.drain(runs=4)
    assert scenario.keeps_time(documents, _TIMES)
    assert documents.attempts == [1, 2, 3, 4]
    assert [run.headers.get("x-retry-count") for run in documents.runs] == [None, 1, 2, 3]
    assert {run.routing_key for run in documents.runs} == {"document.created"}
    back = ("", _DOCUMENTS) if scenario.hardened else ("freeflow.events", "document.retry")
    assert [run.came_by for run in documents.runs] == [_CREATED, back, back, back]
    for run in documents.runs[1:]:
        assert run.headers["x-original-routing-key"] == "document.created"
        assert run.headers["x-original-exchange"] == "freeflow.events"
        assert run.headers["tenant"] == "blue"
    parked = await scenario.only(_DLQ)
    assert (parked.body, parked.headers["tenant"]) == (b'{"id": 1}', "blue")
    assert parked.headers["x-original-routing-key"] == "document.created"
    assert parked.headers["x-retry-count"] == 3


@for_design(freeflow, versions=EVERY_VERSION)
async def test_the_consumer_publishes_to_the_retry_exchange_by_domain_and_delay(
    scenario: Scenario,
) -> None:
    """`document.30s`, `document.5m`, `document.30m`: each tier's queue is used once, in order."""
    scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    for tier, at in (("30s", 0.0), ("5m", 30.0), ("30m", 330.0)):
        waited = scenario.arrivals(f"freeflow.document.retry.{tier}")
        assert waited == [(at, "freeflow.events.retry", f"document.{tier}")]
    assert [at for at, _, _ in scenario.arrivals(_DLQ)] == [2130.0]
    assert scenario.arrivals(_DLQ)[0][1:] == ("freeflow.events.dlx", "dlq")
    assert scenario.lost() == []


@for_design(freeflow)
async def test_a_message_that_exceeds_the_policy_is_rejected_or_published_into_the_dlq(
    scenario: Scenario,
) -> None:
    """As documented the broker moves it on reject; hardened we publish it and then ack."""
    scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    own = [event.kind for event in scenario.journal if event.queue == _DOCUMENTS]
    assert own.count(EventKind.DIED) == (0 if scenario.hardened else 1)
    parked = await scenario.only(_DLQ)
    assert broker_failures(parked.headers, _DOCUMENTS) == (0 if scenario.hardened else 1)


@pytest.mark.parametrize(("domain", "queue"), _DOMAINS)
@for_design(freeflow, runners=[RUNTIME])
async def test_each_domain_waits_in_its_own_queues_and_returns_to_its_domain_queue(
    scenario: Scenario, domain: str, queue: str
) -> None:
    """`<domain>.retry` matches the existing `<domain>.*` binding; auth returns to the users."""
    consumer = scenario.consumer(queue, _FAILURE)
    await scenario.publish("freeflow.events", f"{domain}.changed")
    await scenario.drain()
    assert consumer.times == [0.0, 30.0]
    assert {run.routing_key for run in consumer.runs} == {f"{domain}.changed"}
    waited = scenario.arrivals(f"freeflow.{domain}.retry.30s")
    assert waited == [(0.0, "freeflow.events.retry", f"{domain}.30s")]
    assert scenario.others(consumer) == {}


@for_design(_recording, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_audit_receives_every_retry_of_every_domain_again(scenario: Scenario) -> None:
    """The return goes through the shared exchange, so `#` gets a copy with each retry.

    The copies carry the count of the documents queue (1, 2, 3); for audit each is a first attempt.
    """
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    audit = scenario.consumers[_AUDIT]
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert audit.times == _TIMES
    assert [run.headers.get("x-retry-count") for run in audit.runs] == [None, 1, 2, 3]
    assert audit.attempts == [1, 1, 1, 1]
    assert [run.came_by[1] for run in audit.runs] == ["document.created", *["document.retry"] * 3]
    assert scenario.others(documents) == {_AUDIT: 4}


@for_design(_recording, forms=[HARDENED])
async def test_hardened_audit_sees_the_message_once(scenario: Scenario) -> None:
    """A retry returns straight to the queue that failed and to no other."""
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert scenario.others(documents) == {_AUDIT: 1}
    assert scenario.arrivals(_AUDIT) == [(0.0, *_CREATED)]


@for_design(_recording, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_audit_does_not_take_the_other_queues_count_for_its_own(scenario: Scenario) -> None:
    """A copy with `x-retry-count` 3 that fails in audit has three retries of its own before it."""
    scenario.consumer(_DOCUMENTS, _FAILURE, _FAILURE, _FAILURE)
    audit = scenario.script(
        _AUDIT, lambda run: Retry("audit is away") if run.at >= 2129 else Done()
    )
    await scenario.publish(*_CREATED)
    await scenario.drain()
    late = [run for run in audit.runs if run.at >= 2129]
    assert late[0].headers["x-retry-count"] == 3
    assert [run.attempt for run in late] == [1, 2, 3, 4]
    assert [run.headers["x-retry-count"] for run in late[1:]] == [1, 2, 3]
    assert [round(run.at) for run in late] == [2130, 2160, 2460, 4260]
    assert len(scenario.arrivals("freeflow.audit.retry.30s")) == 1
    assert len(scenario.consumers[_DOCUMENTS].runs) == 4


@for_design(_recording)
async def test_a_failing_audit_comes_back_to_audit_alone(scenario: Scenario) -> None:
    """Whatever audit failed on waits in audit's own queues and returns as `audit.retry`."""
    audit = scenario.consumer(_AUDIT, _FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert audit.times == [0.0, 30.0]
    assert audit.runs[1].routing_key == "document.created"
    assert scenario.others(audit) == {_DOCUMENTS: 1}
    assert [key for _, _, key in scenario.arrivals("freeflow.audit.retry.30s")] == ["audit.30s"]


@pytest.mark.parametrize(
    ("after", "tier", "seconds"),
    [(1, "30s", 30), (30, "30s", 30), (31, "5m", 300), (301, "30m", 1800), (9999, "30m", 1800)],
)
@for_design(freeflow, runners=[POLICY], forms=[FAITHFUL])
async def test_the_consumer_chooses_the_desired_delay(
    scenario: Scenario, after: float, tier: str, seconds: int
) -> None:
    """The smallest tier that is long enough, else the last: `document.5m` at the first failure."""
    documents = scenario.consumer(_DOCUMENTS, Retry("busy", after=after))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == [0.0, float(seconds)]
    assert documents.runs[1].headers["x-retry-count"] == 1
    assert len(scenario.arrivals(f"freeflow.document.retry.{tier}")) == 1


@for_design(freeflow)
async def test_a_chosen_delay_counts_against_the_policy_all_the_same(scenario: Scenario) -> None:
    """Repeat or send to the DLQ: four runs are the end, whichever tiers were chosen."""
    documents = scenario.consumer(_DOCUMENTS, rest=Retry("busy", after=5))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == [0.0, 30.0, 60.0, 90.0]
    assert await scenario.sizes(_DLQ) == [1]


@for_design(freeflow)
async def test_a_non_recoverable_message_goes_to_the_dlq_at_once(scenario: Scenario) -> None:
    """Rejected without requeue at its first run: no tier is used, nobody sees it again."""
    documents = scenario.consumer(_DOCUMENTS, Park("no such document"))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == [0.0]
    assert scenario.others(documents) == {}
    assert scenario.arrivals("freeflow.document.retry.30s") == []
    parked = await scenario.only(_DLQ)
    assert "x-retry-count" not in parked.headers


@for_design(freeflow)
async def test_a_message_that_recovers_is_reconsumed_and_done(scenario: Scenario) -> None:
    """Two failures, then success at 330 s: nothing waits, nothing is parked."""
    documents = scenario.consumer(_DOCUMENTS, _FAILURE, _FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == _TIMES[:3]
    assert await scenario.sizes(_DOCUMENTS, _DLQ) == [0, 0]


@for_design(_recording, versions=EVERY_VERSION)
async def test_the_shared_dlq_tells_which_queue_failed(scenario: Scenario) -> None:
    """One final holding area for all: each dead letter names its queue, and goes back there."""
    scenario.consumer(_DOCUMENTS, Park("no"))
    scenario.consumer(_AUDIT, Park("no"))
    scenario.consumer("freeflow.users.queue", Park("no"))
    await scenario.publish(*_CREATED)
    await scenario.publish("freeflow.events", "user.created")
    await scenario.drain()
    found = []
    for dead_letter in await scenario.contents(_DLQ):
        if not scenario.hardened:
            assert (
                last_death_queue(dead_letter.headers) == dead_letter.headers["x-first-death-queue"]
            )
        delivery = Received(_DLQ, "", "", dead_letter.body, dead_letter.properties)
        plan = plan_of(delivery, scenario.topology.plans)
        found.append(plan.queue if plan else "")
    assert sorted(found) == [_AUDIT, _DOCUMENTS, "freeflow.users.queue"]


@for_design(_recording, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_a_copy_parked_by_audit_is_audits_though_it_carries_anothers_mark(
    scenario: Scenario,
) -> None:
    """What the broker parked is told by `x-death`, not by headers that travelled with a copy."""
    scenario.consumer(_DOCUMENTS, _FAILURE)
    scenario.consumer(_AUDIT, Done(), Park("no"))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    copy = await scenario.only(_DLQ)
    assert copy.headers["hopback-queue"] == _DOCUMENTS
    plan = plan_of(Received(_DLQ, "", "", b"", copy.properties), scenario.topology.plans)
    assert plan is not None
    assert plan.queue == _AUDIT


@for_design(_recording, versions=EVERY_VERSION, quick=_QUICK)
async def test_a_re_driven_message_begins_anew_in_its_own_queue(scenario: Scenario) -> None:
    """By hand, straight to the queue that failed: first attempt, no count, the original key."""
    documents = scenario.consumer(_DOCUMENTS, *[_FAILURE] * 4)
    await scenario.publish(*_CREATED)
    await scenario.drain(runs=5 if scenario.hardened else 8)
    await scenario.contents(_DLQ, 1)
    before = len(scenario.consumers[_AUDIT].runs)
    sent = await scenario.redrive(_DOCUMENTS)
    assert (sent.exchange, sent.routing_key) == ("", _DOCUMENTS)
    await scenario.drain(runs=6 if scenario.hardened else 9)
    assert documents.attempts == [1, 2, 3, 4, 1]
    again = documents.runs[-1]
    assert again.routing_key == "document.created"
    assert "x-retry-count" not in again.headers
    assert len(scenario.consumers[_AUDIT].runs) == before
    assert await scenario.contents(_DLQ) == []


@for_design(freeflow, runners=[POLICY])
async def test_the_retry_queues_are_not_bound_to_the_main_exchange(scenario: Scenario) -> None:
    """`document.30s` published to the main exchange is an event like others, and waits nowhere."""
    await scenario.publish("freeflow.events", "document.30s")
    await scenario.drain()
    assert scenario.consumers[_DOCUMENTS].times == [0.0]
    assert scenario.arrivals("freeflow.document.retry.30s") == []


@pytest.mark.parametrize("key", ["document.30s.x", "document.*", "document.1h", "other.30s", "#"])
@for_design(freeflow, runners=[POLICY], forms=[FAITHFUL])
async def test_the_retry_exchange_is_direct_and_knows_no_wildcards(
    scenario: Scenario, key: str
) -> None:
    """A key that is not exactly `<domain>.<tier>` is returned to its publisher, not lost."""
    with pytest.raises(Returned):
        await scenario.publish("freeflow.events.retry", key)


@for_design(freeflow, versions=EVERY_VERSION)
async def test_a_retry_published_by_a_consumer_of_another_make_is_honoured(
    scenario: Scenario,
) -> None:
    """With the recommended headers alone, its count goes on: two failures there, two runs here."""
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.open()
    headers: Headers = {
        "x-retry-count": 2,
        "x-original-routing-key": "document.created",
        "x-original-exchange": "freeflow.events",
    }
    properties = Properties(headers=headers, delivery_mode=2)
    await scenario.send(Message("freeflow.events.retry", "document.5m", b"{}", properties))
    await scenario.drain()
    assert documents.times == [300.0, 2100.0]
    assert documents.attempts == [3, 4]
    assert {run.routing_key for run in documents.runs} == {"document.created"}
    parked = await scenario.only(_DLQ)
    assert parked.headers["x-original-routing-key"] == "document.created"


@for_design(freeflow)
async def test_a_crash_between_retry_and_ack_duplicates_and_loses_nothing(
    scenario: Scenario,
) -> None:
    """Publish, confirm, ack: dying before the ack leaves the message in both queues."""
    scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
    documents = scenario.consumer(_DOCUMENTS, _FAILURE)
    scenario.absent(_AUDIT)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.attempts == [1, 1, 2]
    assert [run.redelivered for run in documents.runs] == [False, True, False]
    assert await scenario.sizes(_DOCUMENTS, _DLQ) == [0, 0]
