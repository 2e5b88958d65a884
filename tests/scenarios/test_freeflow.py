"""Statements of FreeFlow's document, "RabbitMQ Retry Topology (TTL + DLX)"."""

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


def _with_audit_of_all_keys(**parameters: Any) -> Topology:
    """FreeFlow with an audit queue for all keys, as on another public page about it."""
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
async def test_failing_message_waits_30_s_5_min_30_min_and_goes_to_the_dlq(
    scenario: Scenario,
) -> None:
    """Four runs. Each retry has its number, original exchange and original routing key.

    The handler always has the original routing key, though the broker returns the message with
    `document.retry` (in the hardened form directly to its queue).
    """
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED, b'{"id": 1}', headers={"tenant": "blue"})
    await scenario.drain(runs=4)
    assert scenario.ran_at(documents, _TIMES)
    assert documents.attempts == [1, 2, 3, 4]
    assert [run.headers.get("x-retry-count") for run in documents.runs] == [None, 1, 2, 3]
    assert {run.routing_key for run in documents.runs} == {"document.created"}
    back = ("", _DOCUMENTS) if scenario.is_hardened else ("freeflow.events", "document.retry")
    assert [run.delivered_from for run in documents.runs] == [_CREATED, back, back, back]
    for run in documents.runs[1:]:
        assert run.headers["x-original-routing-key"] == "document.created"
        assert run.headers["x-original-exchange"] == "freeflow.events"
        assert run.headers["tenant"] == "blue"
    parked = await scenario.only(_DLQ)
    assert (parked.body, parked.headers["tenant"]) == (b'{"id": 1}', "blue")
    assert parked.headers["x-original-routing-key"] == "document.created"
    assert parked.headers["x-retry-count"] == 3


@for_design(freeflow, versions=EVERY_VERSION)
async def test_consumer_publishes_retries_by_domain_and_delay(
    scenario: Scenario,
) -> None:
    """`document.30s`, `document.5m`, `document.30m`: the queue of each tier is used once, in order."""
    scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    for tier, at in (("30s", 0.0), ("5m", 30.0), ("30m", 330.0)):
        waited = scenario.arrivals(f"freeflow.document.retry.{tier}")
        assert waited == [(at, "freeflow.events.retry", f"document.{tier}")]
    assert [at for at, _, _ in scenario.arrivals(_DLQ)] == [2130.0]
    assert scenario.arrivals(_DLQ)[0][1:] == ("freeflow.events.dlx", "dlq")
    assert scenario.drops() == []


@for_design(freeflow)
async def test_exhausted_message_is_rejected_or_published_to_the_dlq(
    scenario: Scenario,
) -> None:
    """The faithful form rejects. The hardened form publishes, then acks."""
    scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    own = [event.kind for event in scenario.journal if event.queue == _DOCUMENTS]
    assert own.count(EventKind.DIED) == (0 if scenario.is_hardened else 1)
    parked = await scenario.only(_DLQ)
    assert broker_failures(parked.headers, _DOCUMENTS) == (0 if scenario.is_hardened else 1)


@pytest.mark.parametrize(("domain", "queue"), _DOMAINS)
@for_design(freeflow, runners=[RUNTIME])
async def test_each_domain_waits_in_its_own_queues_and_returns_to_its_domain_queue(
    scenario: Scenario, domain: str, queue: str
) -> None:
    """`<domain>.retry` matches the binding `<domain>.*`. Auth returns to the users' queue."""
    consumer = scenario.consumer(queue, _FAILURE)
    await scenario.publish("freeflow.events", f"{domain}.changed")
    await scenario.drain()
    assert consumer.times == [0.0, 30.0]
    assert {run.routing_key for run in consumer.runs} == {f"{domain}.changed"}
    waited = scenario.arrivals(f"freeflow.{domain}.retry.30s")
    assert waited == [(0.0, "freeflow.events.retry", f"{domain}.30s")]
    assert scenario.other_runs(consumer) == {}


@for_design(_with_audit_of_all_keys, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_audit_receives_every_retry_of_every_domain(scenario: Scenario) -> None:
    """Retries return through the shared exchange, so the `#` binding receives a copy of each.

    The copies have the count of the documents queue (1, 2, 3). For audit each is a first attempt.
    """
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    audit = scenario.consumers[_AUDIT]
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert audit.times == _TIMES
    assert [run.headers.get("x-retry-count") for run in audit.runs] == [None, 1, 2, 3]
    assert audit.attempts == [1, 1, 1, 1]
    assert [run.delivered_from[1] for run in audit.runs] == [
        "document.created",
        *["document.retry"] * 3,
    ]
    assert scenario.other_runs(documents) == {_AUDIT: 4}


@for_design(_with_audit_of_all_keys, forms=[HARDENED])
async def test_audit_of_the_hardened_form_receives_the_message_once(scenario: Scenario) -> None:
    """A retry returns directly to the queue that failed."""
    documents = scenario.consumer(_DOCUMENTS, rest=_FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert scenario.other_runs(documents) == {_AUDIT: 1}
    assert scenario.arrivals(_AUDIT) == [(0.0, *_CREATED)]


@for_design(_with_audit_of_all_keys, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_audit_ignores_the_retry_count_of_another_queue(scenario: Scenario) -> None:
    """A copy with `x-retry-count` 3 that fails in audit has three retries."""
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


@for_design(_with_audit_of_all_keys)
async def test_failed_audit_message_returns_only_to_audit(scenario: Scenario) -> None:
    """It waits in audit's retry queues and returns as `audit.retry`."""
    audit = scenario.consumer(_AUDIT, _FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert audit.times == [0.0, 30.0]
    assert audit.runs[1].routing_key == "document.created"
    assert scenario.other_runs(audit) == {_DOCUMENTS: 1}
    assert [key for _, _, key in scenario.arrivals("freeflow.audit.retry.30s")] == ["audit.30s"]


@pytest.mark.parametrize(
    ("after", "tier", "seconds"),
    [(1, "30s", 30), (30, "30s", 30), (31, "5m", 300), (301, "30m", 1800), (9999, "30m", 1800)],
)
@for_design(freeflow, runners=[POLICY], forms=[FAITHFUL])
async def test_consumer_chooses_the_delay_of_a_retry(
    scenario: Scenario, after: float, tier: str, seconds: int
) -> None:
    """The shortest tier that is long enough, otherwise the last."""
    documents = scenario.consumer(_DOCUMENTS, Retry("busy", after=after))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == [0.0, float(seconds)]
    assert documents.runs[1].headers["x-retry-count"] == 1
    assert len(scenario.arrivals(f"freeflow.document.retry.{tier}")) == 1


@for_design(freeflow)
async def test_retry_with_chosen_delay_counts_an_attempt(scenario: Scenario) -> None:
    """The message is parked after four runs regardless of the tiers."""
    documents = scenario.consumer(_DOCUMENTS, rest=Retry("busy", after=5))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == [0.0, 30.0, 60.0, 90.0]
    assert await scenario.sizes(_DLQ) == [1]


@for_design(freeflow)
async def test_non_recoverable_message_goes_to_the_dlq_at_once(scenario: Scenario) -> None:
    """It is rejected without requeue at its first run, and no tier is used."""
    documents = scenario.consumer(_DOCUMENTS, Park("no such document"))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == [0.0]
    assert scenario.other_runs(documents) == {}
    assert scenario.arrivals("freeflow.document.retry.30s") == []
    parked = await scenario.only(_DLQ)
    assert "x-retry-count" not in parked.headers


@for_design(freeflow)
async def test_message_that_recovers_is_done(scenario: Scenario) -> None:
    """After two failures it succeeds at 330 s, and all queues are empty."""
    documents = scenario.consumer(_DOCUMENTS, _FAILURE, _FAILURE)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.times == _TIMES[:3]
    assert await scenario.sizes(_DOCUMENTS, _DLQ) == [0, 0]


@for_design(_with_audit_of_all_keys, versions=EVERY_VERSION)
async def test_dead_letters_in_the_shared_dlq_name_their_queue(scenario: Scenario) -> None:
    """A re-drive returns each of them there."""
    scenario.consumer(_DOCUMENTS, Park("no"))
    scenario.consumer(_AUDIT, Park("no"))
    scenario.consumer("freeflow.users.queue", Park("no"))
    await scenario.publish(*_CREATED)
    await scenario.publish("freeflow.events", "user.created")
    await scenario.drain()
    found = []
    for dead_letter in await scenario.contents(_DLQ):
        if not scenario.is_hardened:
            assert (
                last_death_queue(dead_letter.headers) == dead_letter.headers["x-first-death-queue"]
            )
        delivery = Received(_DLQ, "", "", dead_letter.body, dead_letter.properties)
        plan = plan_of(delivery, scenario.topology.plans)
        found.append(plan.queue if plan else "")
    assert sorted(found) == [_AUDIT, _DOCUMENTS, "freeflow.users.queue"]


@for_design(_with_audit_of_all_keys, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_copy_parked_by_audit_belongs_to_audit_despite_headers_of_another_queue(
    scenario: Scenario,
) -> None:
    """`x-death` identifies the queue of a message that the broker parked, not the headers of the copy."""
    scenario.consumer(_DOCUMENTS, _FAILURE)
    scenario.consumer(_AUDIT, Done(), Park("no"))
    await scenario.publish(*_CREATED)
    await scenario.drain()
    copy = await scenario.only(_DLQ)
    assert copy.headers["hopback-queue"] == _DOCUMENTS
    plan = plan_of(Received(_DLQ, "", "", b"", copy.properties), scenario.topology.plans)
    assert plan is not None
    assert plan.queue == _AUDIT


@for_design(_with_audit_of_all_keys, versions=EVERY_VERSION, quick=_QUICK)
async def test_redriven_message_returns_to_its_queue_as_first_attempt(scenario: Scenario) -> None:
    """Directly to the queue that failed, without retry count, with the original key."""
    documents = scenario.consumer(_DOCUMENTS, *[_FAILURE] * 4)
    await scenario.publish(*_CREATED)
    await scenario.drain(runs=5 if scenario.is_hardened else 8)
    await scenario.contents(_DLQ, 1)
    before = len(scenario.consumers[_AUDIT].runs)
    sent = await scenario.redrive(_DOCUMENTS)
    assert (sent.exchange, sent.routing_key) == ("", _DOCUMENTS)
    await scenario.drain(runs=6 if scenario.is_hardened else 9)
    assert documents.attempts == [1, 2, 3, 4, 1]
    again = documents.runs[-1]
    assert again.routing_key == "document.created"
    assert "x-retry-count" not in again.headers
    assert len(scenario.consumers[_AUDIT].runs) == before
    assert await scenario.contents(_DLQ) == []


@for_design(freeflow, runners=[POLICY])
async def test_retry_queues_are_not_bound_to_the_main_exchange(scenario: Scenario) -> None:
    """`document.30s` on the main exchange is an ordinary event and does not wait."""
    await scenario.publish("freeflow.events", "document.30s")
    await scenario.drain()
    assert scenario.consumers[_DOCUMENTS].times == [0.0]
    assert scenario.arrivals("freeflow.document.retry.30s") == []


@pytest.mark.parametrize("key", ["document.30s.x", "document.*", "document.1h", "other.30s", "#"])
@for_design(freeflow, runners=[POLICY], forms=[FAITHFUL])
async def test_retry_exchange_is_direct_and_matches_no_wildcards(
    scenario: Scenario, key: str
) -> None:
    """A key other than `<domain>.<tier>` is returned to its publisher."""
    with pytest.raises(Returned):
        await scenario.publish("freeflow.events.retry", key)


@for_design(freeflow, versions=EVERY_VERSION)
async def test_retry_count_of_another_consumer_is_continued(
    scenario: Scenario,
) -> None:
    """With only the recommended headers: two failures there, two runs here."""
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
async def test_crash_between_retry_and_ack_duplicates_the_message(
    scenario: Scenario,
) -> None:
    """Publish, confirm, ack: the message is in both queues after a crash before the ack."""
    scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
    documents = scenario.consumer(_DOCUMENTS, _FAILURE)
    scenario.remove_consumers(_AUDIT)
    await scenario.publish(*_CREATED)
    await scenario.drain()
    assert documents.attempts == [1, 1, 2]
    assert [run.redelivered for run in documents.runs] == [False, True, False]
    assert await scenario.sizes(_DOCUMENTS, _DLQ) == [0, 0]
