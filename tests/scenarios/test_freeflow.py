"""FreeFlow's document, "RabbitMQ Retry Topology (TTL + DLX)", played sentence by sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import EventKind, Fault
from hopback.designs import freeflow
from hopback.errors import Returned
from hopback.headers import broker_failures, last_death_queue
from hopback.message import Message, Properties, Received
from hopback.policy import Done, Park, Retry, plan_of
from tests.scenarios.stage import (
    EVERY_VERSION,
    FAITHFUL,
    HARDENED,
    POLICY,
    RUNTIME,
    Stage,
    played,
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


@played(freeflow, versions=EVERY_VERSION, quick=_QUICK)
async def test_a_failing_message_waits_30_s_5_min_30_min_and_goes_to_the_dlq(stage: Stage) -> None:
    """Four runs, each retry counted and carrying where the message first came from.

    The handler sees the original routing key every time, though the broker brings the message
    back as `document.retry` (or, hardened, straight to its queue).
    """
    documents = stage.cast(_DOCUMENTS, rest=_FAILURE)
    await stage.publish(*_CREATED, b'{"id": 1}', headers={"tenant": "blue"})
    await stage.drain(runs=4)
    assert stage.keeps_time(documents, _TIMES)
    assert documents.attempts == [1, 2, 3, 4]
    assert [run.headers.get("x-retry-count") for run in documents.runs] == [None, 1, 2, 3]
    assert {run.routing_key for run in documents.runs} == {"document.created"}
    back = ("", _DOCUMENTS) if stage.hardened else ("freeflow.events", "document.retry")
    assert [run.came_by for run in documents.runs] == [_CREATED, back, back, back]
    for run in documents.runs[1:]:
        assert run.headers["x-original-routing-key"] == "document.created"
        assert run.headers["x-original-exchange"] == "freeflow.events"
        assert run.headers["tenant"] == "blue"
    parked = await stage.only(_DLQ)
    assert (parked.body, parked.headers["tenant"]) == (b'{"id": 1}', "blue")
    assert parked.headers["x-original-routing-key"] == "document.created"
    assert parked.headers["x-retry-count"] == 3


@played(freeflow, versions=EVERY_VERSION)
async def test_the_consumer_publishes_to_the_retry_exchange_by_domain_and_delay(
    stage: Stage,
) -> None:
    """`document.30s`, `document.5m`, `document.30m`: each tier's queue is used once, in order."""
    stage.cast(_DOCUMENTS, rest=_FAILURE)
    await stage.publish(*_CREATED)
    await stage.drain()
    for tier, at in (("30s", 0.0), ("5m", 30.0), ("30m", 330.0)):
        waited = stage.arrivals(f"freeflow.document.retry.{tier}")
        assert waited == [(at, "freeflow.events.retry", f"document.{tier}")]
    assert [at for at, _, _ in stage.arrivals(_DLQ)] == [2130.0]
    assert stage.arrivals(_DLQ)[0][1:] == ("freeflow.events.dlx", "dlq")
    assert stage.lost() == []


@played(freeflow)
async def test_a_message_that_exceeds_the_policy_is_rejected_or_published_into_the_dlq(
    stage: Stage,
) -> None:
    """As documented the broker moves it on reject; hardened we publish it and then ack."""
    stage.cast(_DOCUMENTS, rest=_FAILURE)
    await stage.publish(*_CREATED)
    await stage.drain()
    own = [event.kind for event in stage.journal if event.queue == _DOCUMENTS]
    assert own.count(EventKind.DIED) == (0 if stage.hardened else 1)
    parked = await stage.only(_DLQ)
    assert broker_failures(parked.headers, _DOCUMENTS) == (0 if stage.hardened else 1)


@pytest.mark.parametrize(("domain", "queue"), _DOMAINS)
@played(freeflow, players=[RUNTIME])
async def test_each_domain_waits_in_its_own_queues_and_returns_to_its_domain_queue(
    stage: Stage, domain: str, queue: str
) -> None:
    """`<domain>.retry` matches the existing `<domain>.*` binding; auth returns to the users."""
    actor = stage.cast(queue, _FAILURE)
    await stage.publish("freeflow.events", f"{domain}.changed")
    await stage.drain()
    assert actor.times == [0.0, 30.0]
    assert {run.routing_key for run in actor.runs} == {f"{domain}.changed"}
    waited = stage.arrivals(f"freeflow.{domain}.retry.30s")
    assert waited == [(0.0, "freeflow.events.retry", f"{domain}.30s")]
    assert stage.others(actor) == {}


@played(_recording, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_audit_receives_every_retry_of_every_domain_again(stage: Stage) -> None:
    """The return goes through the shared exchange, so `#` gets a copy with each retry.

    The copies carry the count of the documents queue (1, 2, 3); for audit each is a first attempt.
    """
    documents = stage.cast(_DOCUMENTS, rest=_FAILURE)
    audit = stage.actors[_AUDIT]
    await stage.publish(*_CREATED)
    await stage.drain()
    assert audit.times == _TIMES
    assert [run.headers.get("x-retry-count") for run in audit.runs] == [None, 1, 2, 3]
    assert audit.attempts == [1, 1, 1, 1]
    assert [run.came_by[1] for run in audit.runs] == ["document.created", *["document.retry"] * 3]
    assert stage.others(documents) == {_AUDIT: 4}


@played(_recording, forms=[HARDENED])
async def test_hardened_audit_sees_the_message_once(stage: Stage) -> None:
    """A retry returns straight to the queue that failed and to no other."""
    documents = stage.cast(_DOCUMENTS, rest=_FAILURE)
    await stage.publish(*_CREATED)
    await stage.drain()
    assert stage.others(documents) == {_AUDIT: 1}
    assert stage.arrivals(_AUDIT) == [(0.0, *_CREATED)]


@played(_recording, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_audit_does_not_take_the_other_queues_count_for_its_own(stage: Stage) -> None:
    """A copy with `x-retry-count` 3 that fails in audit has three retries of its own before it."""
    stage.cast(_DOCUMENTS, _FAILURE, _FAILURE, _FAILURE)
    audit = stage.script(_AUDIT, lambda run: Retry("audit is away") if run.at >= 2129 else Done())
    await stage.publish(*_CREATED)
    await stage.drain()
    late = [run for run in audit.runs if run.at >= 2129]
    assert late[0].headers["x-retry-count"] == 3
    assert [run.attempt for run in late] == [1, 2, 3, 4]
    assert [run.headers["x-retry-count"] for run in late[1:]] == [1, 2, 3]
    assert [round(run.at) for run in late] == [2130, 2160, 2460, 4260]
    assert len(stage.arrivals("freeflow.audit.retry.30s")) == 1
    assert len(stage.actors[_DOCUMENTS].runs) == 4


@played(_recording)
async def test_a_failing_audit_comes_back_to_audit_alone(stage: Stage) -> None:
    """Whatever audit failed on waits in audit's own queues and returns as `audit.retry`."""
    audit = stage.cast(_AUDIT, _FAILURE)
    await stage.publish(*_CREATED)
    await stage.drain()
    assert audit.times == [0.0, 30.0]
    assert audit.runs[1].routing_key == "document.created"
    assert stage.others(audit) == {_DOCUMENTS: 1}
    assert [key for _, _, key in stage.arrivals("freeflow.audit.retry.30s")] == ["audit.30s"]


@pytest.mark.parametrize(
    ("after", "tier", "seconds"),
    [(1, "30s", 30), (30, "30s", 30), (31, "5m", 300), (301, "30m", 1800), (9999, "30m", 1800)],
)
@played(freeflow, players=[POLICY], forms=[FAITHFUL])
async def test_the_consumer_chooses_the_desired_delay(
    stage: Stage, after: float, tier: str, seconds: int
) -> None:
    """The smallest tier that is long enough, else the last: `document.5m` at the first failure."""
    documents = stage.cast(_DOCUMENTS, Retry("busy", after=after))
    await stage.publish(*_CREATED)
    await stage.drain()
    assert documents.times == [0.0, float(seconds)]
    assert documents.runs[1].headers["x-retry-count"] == 1
    assert len(stage.arrivals(f"freeflow.document.retry.{tier}")) == 1


@played(freeflow)
async def test_a_chosen_delay_counts_against_the_policy_all_the_same(stage: Stage) -> None:
    """Repeat or send to the DLQ: four runs are the end, whichever tiers were chosen."""
    documents = stage.cast(_DOCUMENTS, rest=Retry("busy", after=5))
    await stage.publish(*_CREATED)
    await stage.drain()
    assert documents.times == [0.0, 30.0, 60.0, 90.0]
    assert await stage.sizes(_DLQ) == [1]


@played(freeflow)
async def test_a_non_recoverable_message_goes_to_the_dlq_at_once(stage: Stage) -> None:
    """Rejected without requeue at its first run: no tier is used, nobody sees it again."""
    documents = stage.cast(_DOCUMENTS, Park("no such document"))
    await stage.publish(*_CREATED)
    await stage.drain()
    assert documents.times == [0.0]
    assert stage.others(documents) == {}
    assert stage.arrivals("freeflow.document.retry.30s") == []
    parked = await stage.only(_DLQ)
    assert "x-retry-count" not in parked.headers


@played(freeflow)
async def test_a_message_that_recovers_is_reconsumed_and_done(stage: Stage) -> None:
    """Two failures, then success at 330 s: nothing waits, nothing is parked."""
    documents = stage.cast(_DOCUMENTS, _FAILURE, _FAILURE)
    await stage.publish(*_CREATED)
    await stage.drain()
    assert documents.times == _TIMES[:3]
    assert await stage.sizes(_DOCUMENTS, _DLQ) == [0, 0]


@played(_recording, versions=EVERY_VERSION)
async def test_the_shared_dlq_tells_which_queue_failed(stage: Stage) -> None:
    """One final holding area for all: each dead letter names its queue, and goes back there."""
    stage.cast(_DOCUMENTS, Park("no"))
    stage.cast(_AUDIT, Park("no"))
    stage.cast("freeflow.users.queue", Park("no"))
    await stage.publish(*_CREATED)
    await stage.publish("freeflow.events", "user.created")
    await stage.drain()
    found = []
    for dead_letter in await stage.contents(_DLQ):
        if not stage.hardened:
            assert (
                last_death_queue(dead_letter.headers) == dead_letter.headers["x-first-death-queue"]
            )
        delivery = Received(_DLQ, "", "", dead_letter.body, dead_letter.properties)
        plan = plan_of(delivery, stage.topology.plans)
        found.append(plan.queue if plan else "")
    assert sorted(found) == [_AUDIT, _DOCUMENTS, "freeflow.users.queue"]


@played(_recording, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_a_copy_parked_by_audit_is_audits_though_it_carries_anothers_mark(
    stage: Stage,
) -> None:
    """What the broker parked is told by `x-death`, not by headers that travelled with a copy."""
    stage.cast(_DOCUMENTS, _FAILURE)
    stage.cast(_AUDIT, Done(), Park("no"))
    await stage.publish(*_CREATED)
    await stage.drain()
    copy = await stage.only(_DLQ)
    assert copy.headers["hopback-queue"] == _DOCUMENTS
    plan = plan_of(Received(_DLQ, "", "", b"", copy.properties), stage.topology.plans)
    assert plan is not None
    assert plan.queue == _AUDIT


@played(_recording, versions=EVERY_VERSION, quick=_QUICK)
async def test_a_re_driven_message_begins_anew_in_its_own_queue(stage: Stage) -> None:
    """By hand, straight to the queue that failed: first attempt, no count, the original key."""
    documents = stage.cast(_DOCUMENTS, *[_FAILURE] * 4)
    await stage.publish(*_CREATED)
    await stage.drain(runs=5 if stage.hardened else 8)
    await stage.contents(_DLQ, 1)
    before = len(stage.actors[_AUDIT].runs)
    sent = await stage.redrive(_DOCUMENTS)
    assert (sent.exchange, sent.routing_key) == ("", _DOCUMENTS)
    await stage.drain(runs=6 if stage.hardened else 9)
    assert documents.attempts == [1, 2, 3, 4, 1]
    again = documents.runs[-1]
    assert again.routing_key == "document.created"
    assert "x-retry-count" not in again.headers
    assert len(stage.actors[_AUDIT].runs) == before
    assert await stage.contents(_DLQ) == []


@played(freeflow, players=[POLICY])
async def test_the_retry_queues_are_not_bound_to_the_main_exchange(stage: Stage) -> None:
    """`document.30s` published to the main exchange is an event like others, and waits nowhere."""
    await stage.publish("freeflow.events", "document.30s")
    await stage.drain()
    assert stage.actors[_DOCUMENTS].times == [0.0]
    assert stage.arrivals("freeflow.document.retry.30s") == []


@pytest.mark.parametrize("key", ["document.30s.x", "document.*", "document.1h", "other.30s", "#"])
@played(freeflow, players=[POLICY], forms=[FAITHFUL])
async def test_the_retry_exchange_is_direct_and_knows_no_wildcards(stage: Stage, key: str) -> None:
    """A key that is not exactly `<domain>.<tier>` is returned to its publisher, not lost."""
    with pytest.raises(Returned):
        await stage.publish("freeflow.events.retry", key)


@played(freeflow, versions=EVERY_VERSION)
async def test_a_retry_published_by_a_consumer_of_another_make_is_honoured(stage: Stage) -> None:
    """With the recommended headers alone, its count goes on: two failures there, two runs here."""
    documents = stage.cast(_DOCUMENTS, rest=_FAILURE)
    await stage.open()
    headers: Headers = {
        "x-retry-count": 2,
        "x-original-routing-key": "document.created",
        "x-original-exchange": "freeflow.events",
    }
    properties = Properties(headers=headers, delivery_mode=2)
    await stage.send(Message("freeflow.events.retry", "document.5m", b"{}", properties))
    await stage.drain()
    assert documents.times == [300.0, 2100.0]
    assert documents.attempts == [3, 4]
    assert {run.routing_key for run in documents.runs} == {"document.created"}
    parked = await stage.only(_DLQ)
    assert parked.headers["x-original-routing-key"] == "document.created"


@played(freeflow)
async def test_a_crash_between_retry_and_ack_duplicates_and_loses_nothing(stage: Stage) -> None:
    """Publish, confirm, ack: dying before the ack leaves the message in both queues."""
    stage.faults.inject(Fault.CUT_BEFORE_SETTLE)
    documents = stage.cast(_DOCUMENTS, _FAILURE)
    stage.absent(_AUDIT)
    await stage.publish(*_CREATED)
    await stage.drain()
    assert documents.attempts == [1, 1, 2]
    assert [run.redelivered for run in documents.runs] == [False, True, False]
    assert await stage.sizes(_DOCUMENTS, _DLQ) == [0, 0]
