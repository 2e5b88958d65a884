"""Statements of the file pipeline's document, "RabbitMQ Topologia, Retry e DLQ"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EventKind, Fault
from hopback.designs import file_pipeline
from hopback.errors import Nacked
from hopback.headers import broker_failures
from hopback.policy import Park, Retry
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
    from tests.scenarios.consumers import Reaction, Run

_FAILURE = RuntimeError("storage is away")
_QUICK = {"retry_ttl_ms": 60}
_UPLOADED = ("domain.events", "files.uploaded.v1")
_EVERYTHING = ("q.audit", "q.projection")
_QUEUES = (
    "q.upload.commands",
    "q.validator",
    "q.thumbnail",
    "q.extractor",
    "q.projection",
    "q.notification",
    "q.audit",
)

_READERS = [
    ("domain.commands", "commands.upload.requested.v1", ["q.upload.commands"]),
    ("domain.commands", "commands.upload", ["q.upload.commands"]),
    ("domain.commands", "commands.file.reprocess.v1", ["q.upload.commands"]),
    ("domain.events", "files.uploaded.v1", ["q.validator", *_EVERYTHING]),
    ("domain.events", "files.validated.v1", ["q.thumbnail", "q.extractor", *_EVERYTHING]),
    ("domain.events", "files.rejected.v1", ["q.notification", *_EVERYTHING]),
    ("domain.events", "processing.completed.v1", ["q.notification", *_EVERYTHING]),
    ("domain.events", "processing.timed-out.v1", ["q.notification", *_EVERYTHING]),
    ("domain.events", "thumbnails.generated.v1", [*_EVERYTHING]),
    ("domain.events", "files.uploaded.v1.extra", [*_EVERYTHING]),
]


@pytest.mark.parametrize(("exchange", "key", "readers"), _READERS)
@for_design(file_pipeline, runners=[POLICY])
async def test_each_queue_receives_the_keys_of_its_bindings(
    scenario: Scenario, exchange: str, key: str, readers: list[str]
) -> None:
    """Commands and events reach the queues of the document's table, each once."""
    await scenario.publish(exchange, key)
    await scenario.drain()
    assert {
        queue: len(consumer.runs) for queue, consumer in scenario.consumers.items() if consumer.runs
    } == (dict.fromkeys(readers, 1))
    assert await scenario.sizes(*(f"{queue}.dlq" for queue in _QUEUES)) == [0] * 7


@for_design(file_pipeline, versions=EVERY_VERSION, quick=_QUICK)
async def test_retryable_error_waits_15_s_and_the_third_failure_parks(scenario: Scenario) -> None:
    """The message is nacked without requeue, waits 15 s in the retry queue, and is parked after
    three attempts.

    The dead letter has queue, time, attempt and reason of the failure. All other consumers run
    once.
    """
    validator = scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED, b'{"fileId": 7}', headers={"tenant": "blue"})
    await scenario.drain(runs=5)
    assert scenario.ran_at(validator, [0.0, 15.0, 30.0])
    assert validator.attempts == [1, 2, 3]
    assert {run.routing_key for run in validator.runs} == {"files.uploaded.v1"}
    assert scenario.other_runs(validator) == {"q.projection": 1, "q.audit": 1}
    parked = await scenario.only("q.validator.dlq")
    assert parked.body == b'{"fileId": 7}'
    assert parked.headers["tenant"] == "blue"
    assert parked.headers["x-parked-from-queue"] == "q.validator"
    assert parked.headers["x-parked-delivery-attempt"] == 3
    assert parked.headers["x-parked-reason"] == "RuntimeError: storage is away"
    assert re.fullmatch(r"20\d\d-.*Z", str(parked.headers["x-parked-at"]))
    assert parked.properties.delivery_mode == 2
    if scenario.is_virtual:
        assert parked.headers["x-parked-at"] == "2023-11-14T22:13:50.000Z"


@for_design(file_pipeline, versions=EVERY_VERSION)
async def test_retry_path_is_retry_exchange_retry_queue_default_exchange(
    scenario: Scenario,
) -> None:
    """With the key `retry`, back with the queue name as key, and with `parking` to the DLQ."""
    scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    assert scenario.arrivals("q.validator") == [
        (0.0, "domain.events", "files.uploaded.v1"),
        (15.0, "", "q.validator"),
        (30.0, "", "q.validator"),
    ]
    assert scenario.arrivals("q.validator.retry") == [
        (0.0, "retry.q.validator", "retry"),
        (15.0, "retry.q.validator", "retry"),
    ]
    assert scenario.arrivals("q.validator.dlq") == [(30.0, "dlq.q.validator", "parking")]
    assert scenario.drops() == []


@for_design(file_pipeline)
async def test_broker_moves_retries_unless_the_hardened_form_publishes_them(
    scenario: Scenario,
) -> None:
    """The faithful form nacks. The hardened form publishes, then acks."""
    scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    own = [event for event in scenario.journal if event.queue == "q.validator"]
    rejected = sum(event.kind is EventKind.DIED for event in own)
    published = [
        event.exchange for event in scenario.journal if event.kind is EventKind.PUBLISHED
    ].count("retry.q.validator")
    assert (rejected, published) == ((0, 2) if scenario.is_hardened else (2, 0))


@for_design(file_pipeline)
async def test_retry_returns_only_to_its_own_queue(scenario: Scenario) -> None:
    """A retry is not published to `domain.events` again, so other consumers do not receive it twice."""
    thumbnail = scenario.consumer("q.thumbnail", _FAILURE, _FAILURE)
    await scenario.publish("domain.events", "files.validated.v1")
    await scenario.drain()
    assert thumbnail.times == [0.0, 15.0, 30.0]
    assert scenario.other_runs(thumbnail) == {"q.extractor": 1, "q.projection": 1, "q.audit": 1}
    assert scenario.arrivals("q.extractor") == [(0.0, "domain.events", "files.validated.v1")]
    assert await scenario.sizes("q.thumbnail.dlq") == [0]


@for_design(file_pipeline)
async def test_two_consumers_of_one_event_fail_and_count_separately(scenario: Scenario) -> None:
    """One parks its copy, the other succeeds with its own count."""
    thumbnail = scenario.consumer("q.thumbnail", rest=_FAILURE)
    extractor = scenario.consumer("q.extractor", _FAILURE)
    await scenario.publish("domain.events", "files.validated.v1")
    await scenario.drain()
    assert (thumbnail.attempts, extractor.attempts) == ([1, 2, 3], [1, 2])
    assert await scenario.sizes("q.thumbnail.dlq", "q.extractor.dlq") == [1, 0]


@for_design(file_pipeline, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_attempts_equal_x_death_of_the_original_queue(
    scenario: Scenario,
) -> None:
    """Each pass through the retry queue increments the entry of `q.X`, also in the dead letter."""
    validator = scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    counts = [broker_failures(run.headers, "q.validator") for run in validator.runs]
    assert counts == [0, 1, 2]
    parked = await scenario.only("q.validator.dlq")
    assert broker_failures(parked.headers, "q.validator") == 2
    assert broker_failures(parked.headers, "q.audit") == 0


@for_design(file_pipeline, forms=[HARDENED])
async def test_hardened_form_counts_attempts_in_its_own_header(scenario: Scenario) -> None:
    """The published retry has the same number in `hopback-attempts`."""
    validator = scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    assert [run.headers.get("hopback-attempts", 0) for run in validator.runs] == [0, 1, 2]
    parked = await scenario.only("q.validator.dlq")
    assert parked.headers["hopback-attempts"] == 3
    assert parked.headers["hopback-origin-routing-key"] == "files.uploaded.v1"


@pytest.mark.parametrize("queue", _QUEUES)
@for_design(file_pipeline, runners=[RUNTIME])
async def test_every_queue_has_its_own_retry_and_dead_letter_queue(
    scenario: Scenario, queue: str
) -> None:
    """A failure in `q.X` uses `retry.q.X`, `q.X.retry`, `dlq.q.X` and `q.X.dlq` only."""
    scenario.consumer(queue, rest=_FAILURE)
    await scenario.publish("", queue)
    await scenario.drain()
    assert len(scenario.arrivals(f"{queue}.retry")) == 2
    rest = [f"{other}.dlq" for other in _QUEUES if other != queue]
    assert await scenario.sizes(f"{queue}.dlq", *rest) == [1, *[0] * 6]


@pytest.mark.parametrize("failures", [0, 1, 2])
@for_design(file_pipeline)
async def test_message_that_recovers_before_the_last_attempt_is_done(
    scenario: Scenario, failures: int
) -> None:
    """After up to two failures all queues are empty."""
    validator = scenario.consumer("q.validator", *[_FAILURE] * failures)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    assert validator.times == [15.0 * n for n in range(failures + 1)]
    assert await scenario.sizes("q.validator", "q.validator.retry", "q.validator.dlq") == [0, 0, 0]


@for_design(file_pipeline)
async def test_non_retryable_error_parks_at_once(scenario: Scenario) -> None:
    """At the first attempt."""
    validator = scenario.consumer("q.validator", Park("not an image at all"))
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    assert validator.times == [0.0]
    parked = await scenario.only("q.validator.dlq")
    assert parked.headers["x-parked-delivery-attempt"] == 1
    assert parked.headers["x-parked-reason"] == "not an image at all"


@for_design(file_pipeline)
async def test_failing_message_does_not_delay_the_next(scenario: Scenario) -> None:
    """Other files are handled while one waits for its retry."""

    def script(run: Run) -> Reaction:
        return Retry("locked") if run.body == b"1" and run.attempt < 3 else Park("seen")

    validator = scenario.script("q.validator", script)
    for body in (b"1", b"2", b"3"):
        await scenario.publish(*_UPLOADED, body)
    await scenario.drain()
    assert [(run.body, round(run.at)) for run in validator.runs] == [
        (b"1", 0),
        (b"2", 0),
        (b"3", 0),
        (b"1", 15),
        (b"1", 30),
    ]


@for_design(file_pipeline, versions=EVERY_VERSION, quick=_QUICK)
async def test_redrive_uses_the_retry_exchange_with_audit_headers(
    scenario: Scenario,
) -> None:
    """It is published to `retry.q.X` with key `retry` and `x-redriven-…` headers, as first attempt.

    It succeeds in the first run, 15 s later, and the dead-letter queue is empty.
    """
    validator = scenario.consumer("q.validator", _FAILURE, _FAILURE, _FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain(runs=5)
    await scenario.contents("q.validator.dlq", 1)
    sent = await scenario.redrive(
        "q.validator", user_id="u-1", user_name="ada", operation="op-9", stamped=True
    )
    assert (sent.exchange, sent.routing_key) == ("retry.q.validator", "retry")
    await scenario.drain(runs=6)
    assert scenario.ran_at(validator, [0.0, 15.0, 30.0, 45.0])
    again = validator.runs[-1]
    assert (again.attempt, again.routing_key) == (1, "files.uploaded.v1")
    assert again.headers["x-redriven-from-dlq"] == "q.validator.dlq"
    assert again.headers["x-redriven-by-user-id"] == "u-1"
    assert again.headers["x-redriven-by-user-name"] == "ada"
    assert again.headers["x-redrive-operation-correlation-id"] == "op-9"
    assert again.headers["x-original-routing-key"] == "files.uploaded.v1"
    assert "x-redriven-at" in again.headers
    assert scenario.other_runs(validator) == {"q.projection": 1, "q.audit": 1}
    assert await scenario.contents("q.validator.dlq") == []


@for_design(file_pipeline)
async def test_redriven_message_has_three_attempts_again(scenario: Scenario) -> None:
    """If it fails again, it is parked after three attempts."""
    validator = scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    await scenario.redrive("q.validator")
    await scenario.drain()
    assert validator.attempts == [1, 2, 3, 1, 2, 3]
    parked = await scenario.only("q.validator.dlq")
    assert parked.headers["x-parked-delivery-attempt"] == 3
    assert parked.headers["hopback-redrives"] == 1


@for_design(file_pipeline)
async def test_redrive_keeps_the_dead_letter_if_the_publish_fails(scenario: Scenario) -> None:
    """The dead letter is acked only after the confirm, unlike in the document."""
    scenario.consumer("q.validator", Park("hopeless"))
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    scenario.faults.inject(Fault.NACK)
    with pytest.raises(Nacked):
        await scenario.redrive("q.validator")
    await scenario.close_operator()
    assert await scenario.sizes("q.validator.dlq", "q.validator.retry") == [1, 0]


@for_design(file_pipeline, versions=EVERY_VERSION)
async def test_crash_between_parking_and_ack_leaves_both_copies(
    scenario: Scenario,
) -> None:
    """The publish precedes the ack, so the message is duplicated and not lost."""
    both: list[list[int]] = []

    def script(run: Run) -> Reaction:
        if run.redelivered:
            snapshot = scenario.embedded.snapshot()
            names = ("q.validator", "q.validator.dlq")
            both.append([len(snapshot.queue(name).messages) for name in names])
            return Park("again")
        scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
        return Park("hopeless")

    scenario.script("q.validator", script)
    scenario.remove_consumers("q.audit", "q.projection")
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    assert both == [[1, 1]]
    assert await scenario.sizes("q.validator", "q.validator.dlq") == [0, 2]


@for_design(file_pipeline, runners=[RUNTIME])
async def test_failures_retries_and_parking_are_logged(scenario: Scenario) -> None:
    """With queue, routing key, message type, correlation ID, attempt and maximum."""
    scenario.consumer("q.validator", rest=_FAILURE)
    await scenario.publish(*_UPLOADED)
    await scenario.drain()
    logged = [*scenario.events("delivery.retried"), *scenario.events("delivery.parked")]
    assert [(one["attempt"], one["max_attempts"]) for one in logged] == [(1, 3), (2, 3), (3, 3)]
    assert {(one["queue"], one["routing_key"]) for one in logged} == {
        ("q.validator", "files.uploaded.v1")
    }
    assert all({"correlation_id", "message_type", "reason"} <= one.keys() for one in logged)
    assert logged[-1]["dead_letter_queue"] == "q.validator.dlq"
