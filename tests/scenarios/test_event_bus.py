"""Statements of the event bus's document, "RabbitMQ Architecture"."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EventKind, Fault
from hopback.clock import SystemClock
from hopback.designs import DESIGNS, event_bus
from hopback.headers import broker_failures, deaths
from hopback.observe.logs import JsonLog
from tests.scenarios.consumers import Status
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
    from tests.scenarios.consumers import Reaction, Run, ScriptedConsumer

_MAIN = ("wms.main-exchange", "")
_QUEUE, _ORDERS = "wms.queue.wms-cincout", "wms.queue.wms-orders"
_WAITING, _DLQ = "wms.retry-queue.wms-cincout", "wms.dlq.wms-cincout"
_QUICK = {"retry_ttl_ms": 40}
_OK, _DOWN = Status(200), Status(503)
_TOO_EARLY = 425


def _services(scenario: Scenario, *reactions: Reaction, rest: Reaction = _OK) -> ScriptedConsumer:
    """Set up two services behind HTTP. The first has the given reactions, the second succeeds."""
    scenario.consumer(_ORDERS, rest=_OK, pushes=True)
    return scenario.consumer(_QUEUE, *reactions, rest=rest, pushes=True)


def _early(scenario: Scenario, run: Run) -> Status:
    """Return the answer of a service that respects `processAfterDelayMs`, counted from the publish."""
    due_in = json.loads(run.body).get("processAfterDelayMs", 0) / 1000 - scenario.elapsed()
    return Status(_TOO_EARLY, due_in) if due_in > 1e-6 else _OK


def _count(scenario: Scenario, kind: EventKind) -> int:
    """Return the number of events of this kind in the queue of the first service."""
    return sum(event.kind is kind and event.queue == _QUEUE for event in scenario.journal)


def _delayed_event(milliseconds: int) -> bytes:
    return json.dumps({"processAfterDelayMs": milliseconds}).encode()


_MANY = partial(event_bus, ("wms-cincout", "wms-orders", "xyz-service", "noprefix"))


@pytest.mark.parametrize(
    ("prefix", "services"),
    [
        ("wms", ["wms-cincout", "wms-orders"]),
        ("xyz", ["xyz-service"]),
        ("default", ["noprefix"]),
    ],
)
@for_design(_MANY, runners=[POLICY])
async def test_prefix_is_the_part_before_the_first_hyphen(
    scenario: Scenario, prefix: str, services: list[str]
) -> None:
    """An event of a prefix reaches only services with that prefix."""
    await scenario.publish(f"{prefix}.main-exchange", "")
    await scenario.drain()
    ran = {
        queue: len(consumer.runs) for queue, consumer in scenario.consumers.items() if consumer.runs
    }
    assert ran == {f"{prefix}.queue.{service}": 1 for service in services}


@for_design(event_bus)
async def test_main_exchange_fans_out_and_each_service_acks(
    scenario: Scenario,
) -> None:
    """Each bound service receives the event once, and all queues are empty afterwards."""
    cincout = _services(scenario)
    await scenario.publish(*_MAIN, b'{"event": 1}')
    await scenario.drain()
    assert cincout.times == [0.0]
    assert scenario.other_runs(cincout) == {_ORDERS: 1}
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
    assert scenario.drops() == []


@for_design(event_bus, versions=EVERY_VERSION, quick=_QUICK)
async def test_event_is_moved_to_the_dlq_after_ten_retries_of_5_s(scenario: Scenario) -> None:
    """A poison event runs eleven times, then it is in the DLQ of its service.

    Its headers contain queue, status, number of retries and `x-death`. The other service receives
    it once.
    """
    cincout = _services(scenario, rest=_DOWN)
    await scenario.publish(*_MAIN, b'{"event": 1}')
    await scenario.drain(runs=12)
    assert scenario.ran_at(cincout, [5.0 * n for n in range(11)])
    assert cincout.attempts == list(range(1, 12))
    assert scenario.other_runs(cincout) == {_ORDERS: 1}
    parked = await scenario.only(_DLQ)
    assert parked.body == b'{"event": 1}'
    assert parked.headers["x-original-queue"] == _QUEUE
    assert parked.headers["x-final-status-code"] == 503
    assert parked.headers["x-final-retry-count"] == 10
    assert "x-final-error" not in parked.headers
    assert deaths(parked.headers)
    assert broker_failures(parked.headers, _QUEUE) == (0 if scenario.is_hardened else 10)
    assert await scenario.sizes("wms.dlq.wms-orders") == [0]


@for_design(event_bus, versions=EVERY_VERSION)
async def test_retried_event_returns_only_to_the_failed_service(
    scenario: Scenario,
) -> None:
    """Through the service's retry exchange, 5 s in its retry queue, back by the default exchange."""
    cincout = _services(scenario, _DOWN, _DOWN)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert cincout.times == [0.0, 5.0, 10.0]
    assert scenario.arrivals(_QUEUE) == [(0.0, *_MAIN), (5.0, "", _QUEUE), (10.0, "", _QUEUE)]
    exchange = "wms.retry-exchange.wms-cincout"
    assert scenario.arrivals(_WAITING) == [(0.0, exchange, "retry"), (5.0, exchange, "retry")]
    assert scenario.arrivals(_ORDERS) == [(0.0, *_MAIN)]
    assert _count(scenario, EventKind.DIED) == (0 if scenario.is_hardened else 2)


_DROPPED: list[Reaction] = [
    *(Status(code) for code in (400, 404, 409, 422, 429, 500, 502, 503, 504)),
    Status(302),
    ConnectionError("service is away"),
]


@pytest.mark.parametrize("reaction", _DROPPED, ids=str)
@for_design(event_bus, runners=[RUNTIME])
async def test_every_other_answer_is_dropped_into_the_retry_queue(
    scenario: Scenario, reaction: Reaction
) -> None:
    """429, 409, 5xx, other 4xx and exceptions are rejected (hardened: published) and counted."""
    cincout = _services(scenario, reaction)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert (cincout.times, cincout.attempts) == ([0.0, 5.0], [1, 2])
    assert len(scenario.arrivals(_WAITING)) == 1
    assert _count(scenario, EventKind.DIED) == (0 if scenario.is_hardened else 1)


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
@for_design(event_bus, runners=[RUNTIME], forms=[FAITHFUL])
async def test_2xx_is_success_and_removes_the_message(scenario: Scenario, code: int) -> None:
    cincout = _services(scenario, Status(code))
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert cincout.times == [0.0]
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@for_design(event_bus)
async def test_exception_sets_final_error_and_no_status_on_the_dead_letter(
    scenario: Scenario,
) -> None:
    """`x-final-error` is set after an exception, `x-final-status-code` only after a status."""
    _services(scenario, *[_DOWN] * 10, ConnectionError("service is away"))
    await scenario.publish(*_MAIN)
    await scenario.drain()
    parked = await scenario.only(_DLQ)
    assert parked.headers["x-final-error"] == "service is away"
    assert "x-final-status-code" not in parked.headers
    assert parked.headers["x-final-retry-count"] == 10


@for_design(event_bus)
async def test_service_that_recovers_at_the_tenth_retry_succeeds(scenario: Scenario) -> None:
    """The eleventh run decides."""
    cincout = _services(scenario, *[_DOWN] * 10)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert cincout.times[-1] == 50.0
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@for_design(event_bus, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_delayed_path_waits_locally_and_requeues_to_the_same_queue(
    scenario: Scenario,
) -> None:
    """On 425 the consumer waits and requeues. Delays over 5 s cause no dead-letter cycles.

    The first wait is 0.5 to 2 s (here 1.25 s), every further one 2.5 s, at most until the event is
    due. Waits count no attempts.
    """
    _services(scenario)
    cincout = scenario.script(_QUEUE, lambda run: _early(scenario, run), pushes=True)
    await scenario.publish(*_MAIN, _delayed_event(12_000))
    await scenario.drain()
    assert cincout.times == [0.0, *(1.25 + 2.5 * n for n in range(5)), 12.0]
    assert set(cincout.attempts) == {1}
    assert _count(scenario, EventKind.REQUEUED) == len(cincout.runs) - 1
    assert scenario.arrivals(_QUEUE) == [(0.0, *_MAIN)]
    assert scenario.arrivals(_WAITING) == []
    assert scenario.other_runs(cincout) == {_ORDERS: 1}


@for_design(event_bus, forms=[HARDENED], versions=EVERY_VERSION)
async def test_hardened_form_delays_in_the_retry_queue_without_counting(
    scenario: Scenario,
) -> None:
    """Quorum queues count requeues, so an early event waits 5 s at a time in the retry queue."""
    _services(scenario)
    cincout = scenario.script(_QUEUE, lambda run: _early(scenario, run), pushes=True)
    await scenario.publish(*_MAIN, _delayed_event(12_000))
    await scenario.drain()
    assert cincout.times == [0.0, 5.0, 10.0, 15.0]
    assert set(cincout.attempts) == {1}
    assert len(scenario.arrivals(_WAITING)) == 3


@for_design(event_bus, versions=EVERY_VERSION)
async def test_early_answer_between_failures_counts_no_attempt(scenario: Scenario) -> None:
    """The attempts before and after a 425 add up."""
    cincout = _services(scenario, _DOWN, Status(_TOO_EARLY, 1.0), Status(_TOO_EARLY, 1.0), _DOWN)
    await scenario.publish(*_MAIN, _delayed_event(6_000))
    await scenario.drain()
    assert cincout.attempts == [1, 2, 2, 2, 3]


@for_design(event_bus, versions=EVERY_VERSION)
async def test_any_status_after_ten_retries_goes_to_the_dlq(scenario: Scenario) -> None:
    """Also 425 in the eleventh run."""
    cincout = _services(scenario, *[_DOWN] * 10, rest=Status(_TOO_EARLY, 60.0))
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert len(cincout.runs) == 11
    parked = await scenario.only(_DLQ)
    assert parked.headers["x-final-status-code"] == _TOO_EARLY
    assert parked.headers["x-final-retry-count"] == 10


@for_design(event_bus, runners=[RUNTIME])
async def test_delayed_events_do_not_block_due_events(scenario: Scenario) -> None:
    """Delayed events use at most half of the prefetch window, so a due event runs at once."""
    scenario.consumer(_ORDERS, rest=_OK, pushes=True)
    cincout = scenario.script(_QUEUE, lambda run: _early(scenario, run), pushes=True)
    for _ in range(45):
        await scenario.publish(*_MAIN, _delayed_event(8_000))
    await scenario.publish(*_MAIN, b'{"due": "now"}')
    await scenario.drain()
    due = [run for run in cincout.runs if run.body == b'{"due": "now"}']
    assert [round(run.at, 3) for run in due] == [0.0]
    done = {round(run.at, 3) for run in cincout.runs if run.at >= 8}
    assert done
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@for_design(event_bus, versions=EVERY_VERSION, quick=_QUICK)
async def test_manual_retry_continues_the_count(scenario: Scenario) -> None:
    """A message moved back to its queue runs once. If it fails, it is parked at once.

    On every version: 4.x drops a republished `x-death`, but Hopback's header remains. The `x-death`
    of the dead letter is kept in the re-driven message.
    """
    cincout = _services(scenario, rest=_DOWN)
    await scenario.publish(*_MAIN, b'{"event": 1}')
    await scenario.drain(runs=12)
    parked = await scenario.only(_DLQ)
    sent = await scenario.redrive(_QUEUE)
    assert (sent.exchange, sent.routing_key) == ("", _QUEUE)
    assert deaths(sent.properties.headers) == deaths(parked.headers)
    await scenario.drain(runs=13)
    assert scenario.ran_at(cincout, [*(5.0 * n for n in range(11)), 50.0])
    again = await scenario.only(_DLQ)
    assert again.body == b'{"event": 1}'
    assert again.headers["x-original-queue"] == _QUEUE
    assert int(str(again.headers["x-final-retry-count"])) >= 10
    assert scenario.other_runs(cincout) == {_ORDERS: 1}


@for_design(event_bus)
async def test_manual_retry_after_the_fix_succeeds(scenario: Scenario) -> None:
    """All queues are empty afterwards."""
    cincout = _services(scenario, *[_DOWN] * 11)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    await scenario.redrive(_QUEUE)
    await scenario.drain()
    assert len(cincout.runs) == 12
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
    assert scenario.drops() == []


@for_design(event_bus, runners=[RUNTIME])
async def test_move_to_the_dlq_is_logged_with_its_documented_code(scenario: Scenario) -> None:
    """Only exhausted retries are logged as `RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED`."""
    _services(scenario, rest=_DOWN)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    stream, name = io.StringIO(), "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"
    log = JsonLog(SystemClock(), stream=stream, codes=DESIGNS["event-bus"].codes)
    for event in ("delivery.retried", "delivery.parked"):
        for fields in scenario.events(event):
            log(event, fields)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [*["delivery.retried"] * 10, "delivery.parked"]
    assert [line.get("code") for line in lines] == [*[None] * 10, name]
    assert (lines[-1]["queue"], lines[-1]["deadLetterQueue"]) == (_QUEUE, _DLQ)


@for_design(event_bus)
async def test_two_services_count_failures_of_the_same_event_separately(
    scenario: Scenario,
) -> None:
    """One is parked after eleven runs, the other succeeds in its third."""
    cincout = _services(scenario, rest=_DOWN)
    orders = scenario.consumer(_ORDERS, _DOWN, _DOWN, rest=_OK, pushes=True)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert (len(cincout.runs), len(orders.runs)) == (11, 3)
    assert orders.attempts == [1, 2, 3]
    assert await scenario.sizes(_DLQ, "wms.dlq.wms-orders") == [1, 0]


@for_design(event_bus)
async def test_crash_before_the_ack_redelivers_the_event(scenario: Scenario) -> None:
    """With the same attempt number."""
    scenario.faults.inject(Fault.CUT_BEFORE_SETTLE)
    cincout = _services(scenario)
    scenario.remove_consumers(_ORDERS)
    await scenario.publish(*_MAIN)
    await scenario.drain()
    assert cincout.attempts == [1, 1]
    assert await scenario.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
