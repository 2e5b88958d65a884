"""The event bus's document, "RabbitMQ Architecture", played sentence by sentence."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import Fault
from hopback.clock import SystemClock
from hopback.designs import event_bus
from hopback.headers import broker_failures, deaths
from hopback.observe.logs import JsonLog
from tests.scenarios.cast import Status
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
    from tests.scenarios.cast import Act, Actor, Run

_MAIN = ("wms.main-exchange", "")
_QUEUE, _ORDERS = "wms.queue.wms-cincout", "wms.queue.wms-orders"
_WAITING, _DLQ = "wms.retry-queue.wms-cincout", "wms.dlq.wms-cincout"
_QUICK = {"retry_ttl_ms": 40}
_OK, _DOWN = Status(200), Status(503)
_TOO_EARLY = 425


def _services(stage: Stage, *acts: Act, rest: Act = _OK) -> Actor:
    """Two services behind HTTP; the first does as it is told, the other is well."""
    stage.cast(_ORDERS, rest=_OK, pushes=True)
    return stage.cast(_QUEUE, *acts, rest=rest, pushes=True)


def _early(stage: Stage, run: Run) -> Status:
    """What a service answers that honours `processAfterDelayMs`, counted from the publish."""
    due_in = json.loads(run.body).get("processAfterDelayMs", 0) / 1000 - stage.elapsed()
    return Status(_TOO_EARLY, due_in) if due_in > 1e-6 else _OK


def _delayed(milliseconds: int) -> bytes:
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
@played(_MANY, players=[POLICY])
async def test_the_prefix_is_the_part_before_the_first_hyphen(
    stage: Stage, prefix: str, services: list[str]
) -> None:
    """An event of a prefix reaches the services of that prefix and no others."""
    await stage.publish(f"{prefix}.main-exchange", "")
    await stage.drain()
    ran = {queue: len(actor.runs) for queue, actor in stage.actors.items() if actor.runs}
    assert ran == {f"{prefix}.queue.{service}": 1 for service in services}


@played(event_bus)
async def test_happy_path_the_exchange_fans_out_and_each_service_acknowledges(
    stage: Stage,
) -> None:
    """Published once, delivered to every bound service once, acknowledged, and gone."""
    cincout = _services(stage)
    await stage.publish(*_MAIN, b'{"event": 1}')
    await stage.drain()
    assert cincout.times == [0.0]
    assert stage.others(cincout) == {_ORDERS: 1}
    assert await stage.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
    assert stage.lost() == []


@played(event_bus, versions=EVERY_VERSION, quick=_QUICK)
async def test_after_ten_retries_of_5_s_the_event_is_moved_to_the_dlq(stage: Stage) -> None:
    """A hopeless event runs eleven times, once and ten retries, then lies in its service's DLQ.

    Its headers say from which queue, with which status and after how many retries; `x-death` is
    there; the other service has had it once.
    """
    cincout = _services(stage, rest=_DOWN)
    await stage.publish(*_MAIN, b'{"event": 1}')
    await stage.drain(runs=12)
    assert stage.keeps_time(cincout, [5.0 * n for n in range(11)])
    assert cincout.attempts == list(range(1, 12))
    assert stage.others(cincout) == {_ORDERS: 1}
    parked = await stage.only(_DLQ)
    assert parked.body == b'{"event": 1}'
    assert parked.headers["x-original-queue"] == _QUEUE
    assert parked.headers["x-final-status-code"] == 503
    assert parked.headers["x-final-retry-count"] == 10
    assert "x-final-error" not in parked.headers
    assert deaths(parked.headers)
    assert broker_failures(parked.headers, _QUEUE) == (0 if stage.hardened else 10)
    assert await stage.sizes("wms.dlq.wms-orders") == [0]


@played(event_bus, versions=EVERY_VERSION)
async def test_retry_path_the_event_comes_back_to_the_failed_service_alone(stage: Stage) -> None:
    """Through the service's retry exchange, 5 s in its retry queue, back by the default exchange."""
    cincout = _services(stage, _DOWN, _DOWN)
    await stage.publish(*_MAIN)
    await stage.drain()
    assert cincout.times == [0.0, 5.0, 10.0]
    assert stage.arrivals(_QUEUE) == [(0.0, *_MAIN), (5.0, "", _QUEUE), (10.0, "", _QUEUE)]
    exchange = "wms.retry-exchange.wms-cincout"
    assert stage.arrivals(_WAITING) == [(0.0, exchange, "retry"), (5.0, exchange, "retry")]
    assert stage.arrivals(_ORDERS) == [(0.0, *_MAIN)]


_DROPPED: list[Act] = [
    *(Status(code) for code in (400, 404, 409, 422, 429, 500, 502, 503, 504)),
    Status(302),
    ConnectionError("service is away"),
]


@pytest.mark.parametrize("act", _DROPPED, ids=str)
@played(event_bus, players=[RUNTIME])
async def test_every_other_answer_is_dropped_into_the_retry_queue(stage: Stage, act: Act) -> None:
    """429, 409, 5xx, other 4xx and an exception: dead-letter retry, and counted."""
    cincout = _services(stage, act)
    await stage.publish(*_MAIN)
    await stage.drain()
    assert (cincout.times, cincout.attempts) == ([0.0, 5.0], [1, 2])
    assert len(stage.arrivals(_WAITING)) == 1


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
@played(event_bus, players=[RUNTIME], forms=[FAITHFUL])
async def test_2xx_is_success_and_removes_the_message(stage: Stage, code: int) -> None:
    """Any 2xx acknowledges."""
    cincout = _services(stage, Status(code))
    await stage.publish(*_MAIN)
    await stage.drain()
    assert cincout.times == [0.0]
    assert await stage.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@played(event_bus)
async def test_an_exception_leaves_its_message_and_no_status_on_the_dead_letter(
    stage: Stage,
) -> None:
    """`x-final-error` if it was an exception, `x-final-status-code` only if there was a status."""
    _services(stage, *[_DOWN] * 10, ConnectionError("service is away"))
    await stage.publish(*_MAIN)
    await stage.drain()
    parked = await stage.only(_DLQ)
    assert parked.headers["x-final-error"] == "service is away"
    assert "x-final-status-code" not in parked.headers
    assert parked.headers["x-final-retry-count"] == 10


@played(event_bus)
async def test_a_service_that_recovers_at_the_tenth_retry_is_served(stage: Stage) -> None:
    """Ten failures are not too many: the eleventh run decides."""
    cincout = _services(stage, *[_DOWN] * 10)
    await stage.publish(*_MAIN)
    await stage.drain()
    assert cincout.times[-1] == 50.0
    assert await stage.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@played(event_bus, forms=[FAITHFUL], versions=EVERY_VERSION)
async def test_delayed_path_waits_locally_and_requeues_to_the_same_queue(stage: Stage) -> None:
    """425: a local sleep, then back to its queue; a delay over 5 s makes no dead-letter cycles.

    The wait is 0.5 to 2 s (here always 1.25 s) but never longer than the time still due, and it
    counts no attempt.
    """
    _services(stage)
    cincout = stage.script(_QUEUE, lambda run: _early(stage, run), pushes=True)
    await stage.publish(*_MAIN, _delayed(12_000))
    await stage.drain()
    assert cincout.times == [*(1.25 * n for n in range(10)), 12.0]
    assert set(cincout.attempts) == {1}
    assert stage.arrivals(_WAITING) == []
    assert stage.others(cincout) == {_ORDERS: 1}


@played(event_bus, forms=[HARDENED], versions=EVERY_VERSION)
async def test_hardened_a_delayed_event_waits_in_the_retry_queue_uncounted(stage: Stage) -> None:
    """A quorum queue counts requeues, so there 425 waits 5 s at a time where nobody counts."""
    _services(stage)
    cincout = stage.script(_QUEUE, lambda run: _early(stage, run), pushes=True)
    await stage.publish(*_MAIN, _delayed(12_000))
    await stage.drain()
    assert cincout.times == [0.0, 5.0, 10.0, 15.0]
    assert set(cincout.attempts) == {1}
    assert len(stage.arrivals(_WAITING)) == 3


@played(event_bus, versions=EVERY_VERSION)
async def test_an_early_answer_between_failures_costs_no_attempt(stage: Stage) -> None:
    """Failures before and after a 425 add up as if it had not been there."""
    cincout = _services(stage, _DOWN, Status(_TOO_EARLY, 1.0), Status(_TOO_EARLY, 1.0), _DOWN)
    await stage.publish(*_MAIN, _delayed(6_000))
    await stage.drain()
    assert cincout.attempts == [1, 2, 2, 2, 3]


@played(event_bus, versions=EVERY_VERSION)
async def test_any_status_with_ten_retries_behind_it_goes_to_the_dlq(stage: Stage) -> None:
    """425, too: the eleventh run may not even be too early."""
    cincout = _services(stage, *[_DOWN] * 10, rest=Status(_TOO_EARLY, 60.0))
    await stage.publish(*_MAIN)
    await stage.drain()
    assert len(cincout.runs) == 11
    parked = await stage.only(_DLQ)
    assert parked.headers["x-final-status-code"] == _TOO_EARLY
    assert parked.headers["x-final-retry-count"] == 10


@played(event_bus, players=[RUNTIME])
async def test_delayed_events_never_stop_a_service(stage: Stage) -> None:
    """At most half of the consumer waits in its hands: an event that is due is served at once."""
    stage.cast(_ORDERS, rest=_OK, pushes=True)
    cincout = stage.script(_QUEUE, lambda run: _early(stage, run), pushes=True)
    for _ in range(45):
        await stage.publish(*_MAIN, _delayed(8_000))
    await stage.publish(*_MAIN, b'{"due": "now"}')
    await stage.drain()
    due = [run for run in cincout.runs if run.body == b'{"due": "now"}']
    assert [round(run.at, 3) for run in due] == [0.0]
    done = {round(run.at, 3) for run in cincout.runs if run.at >= 8}
    assert done
    assert await stage.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]


@played(event_bus, versions=EVERY_VERSION, quick=_QUICK)
async def test_manual_retry_continues_the_count_from_where_it_left_off(stage: Stage) -> None:
    """Moved back to its queue it is handled once; failing once more, it is parked at once.

    On every version: 4.x forgets a republished `x-death`, our own header does not. The `x-death`
    that was in the DLQ is preserved on the way back.
    """
    cincout = _services(stage, rest=_DOWN)
    await stage.publish(*_MAIN, b'{"event": 1}')
    await stage.drain(runs=12)
    parked = await stage.only(_DLQ)
    sent = await stage.redrive(_QUEUE)
    assert (sent.exchange, sent.routing_key) == ("", _QUEUE)
    assert deaths(sent.properties.headers) == deaths(parked.headers)
    await stage.drain(runs=13)
    assert stage.keeps_time(cincout, [*(5.0 * n for n in range(11)), 50.0])
    again = await stage.only(_DLQ)
    assert again.body == b'{"event": 1}'
    assert again.headers["x-original-queue"] == _QUEUE
    assert int(str(again.headers["x-final-retry-count"])) >= 10
    assert stage.others(cincout) == {_ORDERS: 1}


@played(event_bus)
async def test_manual_retry_after_the_fix_is_reprocessed(stage: Stage) -> None:
    """Once the underlying issue is fixed, the moved message is handled and gone."""
    cincout = _services(stage, *[_DOWN] * 11)
    await stage.publish(*_MAIN)
    await stage.drain()
    await stage.redrive(_QUEUE)
    await stage.drain()
    assert len(cincout.runs) == 12
    assert await stage.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
    assert stage.lost() == []


@played(event_bus, players=[RUNTIME])
async def test_moving_to_the_dlq_is_logged_by_its_documented_name(stage: Stage) -> None:
    """Exhaustion, and nothing else, is logged as `RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED`."""
    _services(stage, rest=_DOWN)
    await stage.publish(*_MAIN)
    await stage.drain()
    stream, name = io.StringIO(), "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"
    log = JsonLog(SystemClock(), stream=stream, codes={"delivery.parked.exhausted": name})
    for event in ("delivery.retried", "delivery.parked"):
        for fields in stage.events(event):
            log(event, fields)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [*["delivery.retried"] * 10, "delivery.parked"]
    assert [line.get("code") for line in lines] == [*[None] * 10, name]
    assert (lines[-1]["queue"], lines[-1]["deadLetterQueue"]) == (_QUEUE, _DLQ)


@played(event_bus)
async def test_two_services_fail_the_same_event_and_count_for_themselves(stage: Stage) -> None:
    """Retries are per service: one gives up after eleven runs, the other recovers after three."""
    cincout = _services(stage, rest=_DOWN)
    orders = stage.cast(_ORDERS, _DOWN, _DOWN, rest=_OK, pushes=True)
    await stage.publish(*_MAIN)
    await stage.drain()
    assert (len(cincout.runs), len(orders.runs)) == (11, 3)
    assert orders.attempts == [1, 2, 3]
    assert await stage.sizes(_DLQ, "wms.dlq.wms-orders") == [1, 0]


@played(event_bus)
async def test_a_crash_before_the_ack_delivers_the_event_again(stage: Stage) -> None:
    """Nothing is lost with a line that breaks: the event comes again, with the same count."""
    stage.faults.inject(Fault.CUT_BEFORE_SETTLE)
    cincout = _services(stage)
    stage.absent(_ORDERS)
    await stage.publish(*_MAIN)
    await stage.drain()
    assert cincout.attempts == [1, 1]
    assert await stage.sizes(_QUEUE, _WAITING, _DLQ) == [0, 0, 0]
