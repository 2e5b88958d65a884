"""Metrics: counts by label, and bounded series."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from hopback import App, BreakerPolicy
from hopback.clock import SystemClock
from hopback.observe.events import EVENTS, Bus
from hopback.observe.logs import JsonLog
from hopback.observe.metrics import Bounded, Metrics
from hopback.policy.breaker import BreakerState
from hopback.testing import AppTest, in_virtual_time

_DELIVERY: dict[str, Any] = {"queue": "orders", "duration": 0.02, "error": "ValueError"}


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def _series(metrics: Metrics, name: str) -> list[dict[str, str]]:
    families = [family for family in metrics.registry.collect() if family.name == name]
    return [dict(one.labels) for one in families[0].samples if one.name in (name, f"{name}_total")]


def test_deliveries_are_counted_by_outcome_and_timed() -> None:
    metrics = Metrics()
    metrics("delivery.done", _DELIVERY)
    metrics("delivery.retried", {**_DELIVERY, "tier": "30s"})
    metrics("delivery.parked", {**_DELIVERY, "exhausted": True})
    metrics("delivery.snoozed", _DELIVERY)
    metrics("delivery.abandoned", _DELIVERY)
    metrics("delivery.held", _DELIVERY)
    metrics("delivery.held", _DELIVERY)
    counts = {
        outcome: _value(metrics, "hopback_deliveries_total", queue="orders", outcome=outcome)
        for outcome in ("done", "retry", "park", "snooze", "abandoned", "held")
    }
    assert counts == {
        "done": 1,
        "retry": 1,
        "park": 1,
        "snooze": 1,
        "abandoned": 1,
        "held": 2,
    }
    assert _value(metrics, "hopback_handler_seconds_count", queue="orders") == 5
    assert _value(metrics, "hopback_retries_total", queue="orders", tier="30s") == 1
    assert _value(metrics, "hopback_parked_total", queue="orders", exhausted="true") == 1
    assert _value(metrics, "hopback_errors_total", queue="orders", error="ValueError") == 2


def test_done_runs_are_counted_without_event() -> None:
    metrics = Metrics()
    tallies = Bus(JsonLog(SystemClock(), level="info"), metrics).tallies("orders")
    assert tallies is not None
    (tally,) = tallies
    assert _series(metrics, "hopback_deliveries") == []
    for duration in (0.001, 0.002, 400.0):
        tally.add(duration)
    metrics("delivery.done", _DELIVERY)
    metrics("delivery.snoozed", _DELIVERY)
    assert _value(metrics, "hopback_deliveries_total", queue="orders", outcome="done") == 4
    assert _value(metrics, "hopback_handler_seconds_count", queue="orders") == 5
    below = {
        le: _value(metrics, "hopback_handler_seconds_bucket", queue="orders", le=le)
        for le in ("0.001", "0.005", "0.05", "300.0", "+Inf")
    }
    assert below == {"0.001": 1, "0.005": 2, "0.05": 4, "300.0": 4, "+Inf": 5}
    total = _value(metrics, "hopback_handler_seconds_sum", queue="orders")
    assert total == pytest.approx(400.043)


def test_done_events_are_counted_once_if_subscribed() -> None:
    metrics = Metrics()
    bus = Bus(metrics)
    assert bus.tallies("orders") is not None
    bus.subscribe(JsonLog(SystemClock(), level="debug"))
    assert bus.tallies("orders") is None


def test_error_types_are_limited_to_fifty() -> None:
    metrics = Metrics()
    for number in range(200):
        metrics("delivery.retried", {**_DELIVERY, "tier": "1s", "error": f"Error{number}"})
    metrics("delivery.retried", {**_DELIVERY, "tier": "1s", "error": "Error7"})
    metrics("delivery.retried", {**_DELIVERY, "tier": "1s", "error": None})
    assert len(_series(metrics, "hopback_errors")) == 51
    assert _value(metrics, "hopback_errors_total", queue="orders", error="other") == 151
    assert _value(metrics, "hopback_errors_total", queue="orders", error="Error7") == 2


def test_exchange_labels_are_limited() -> None:
    metrics = Metrics()
    for number in range(200):
        metrics("publish.failed", {"exchange": f"x{number}", "error": "Returned"})
    assert len(_series(metrics, "hopback_publish_failures")) == 51


def test_exchange_of_any_bytes_does_not_end_the_scrapes() -> None:
    """The destination of a delayed message is written by its producer."""
    metrics = Metrics()
    metrics("publish.failed", {"exchange": "\udcff\n" + "x" * 300, "error": "NotFound"})
    assert b'hopback_publish_failures_total{exchange="\\\\udcff\\n' in metrics.render()


def test_limit_counts_distinct_values() -> None:
    bound = Bounded(2)
    assert [bound(value) for value in ("a", "b", "a", "c", "b")] == ["a", "b", "a", "other", "b"]


def test_connection_has_one_state_at_a_time() -> None:
    metrics = Metrics()
    for state in ("connecting", "ready", "blocked"):
        metrics("connection.state", {"purpose": "consuming", "state": state})
    states = {
        state: _value(metrics, "hopback_connection_state", purpose="consuming", state=state)
        for state in ("connecting", "ready", "blocked", "closed")
    }
    assert states == {"connecting": 0, "ready": 0, "blocked": 1, "closed": 0}


def test_pauses_losses_and_deadlines_are_counted() -> None:
    metrics = Metrics()
    metrics("consumer.paused", {"queue": "orders", "by": "command"})
    assert _value(metrics, "hopback_paused", queue="orders") == 1
    metrics("consumer.resumed", {"queue": "orders", "by": "command"})
    assert _value(metrics, "hopback_paused", queue="orders") == 0
    metrics("consumer.lost", {"queue": "orders"})
    metrics("handler.overdue", {"queue": "orders"})
    assert _value(metrics, "hopback_consumers_lost_total", queue="orders") == 1
    assert _value(metrics, "hopback_overdue_total", queue="orders") == 1


@in_virtual_time
async def test_queue_is_paused_until_command_and_breaker_resume_it() -> None:
    """Neither ends the pause of the other."""
    app, metrics = App("shop"), Metrics()

    @app.handler(
        "orders", retry=["1h"], concurrency=1, breaker=BreakerPolicy(failures=1, cool_down=10)
    )
    async def handle(works: bool) -> None:
        await asyncio.sleep(5)
        if not works:
            raise OSError("the database is away")

    def paused() -> float | None:
        return _value(metrics, "hopback_paused", queue="orders")

    async with AppTest(app) as test:
        test.service.environment.bus.subscribe(metrics)
        consumer = test.service.consumer("orders")
        await test.publish("orders", False)
        await test.publish("orders", True)
        await test.advance(6)
        consumer.pause("maintenance")
        consumer.resume("maintenance is over")
        assert (consumer.breaker, paused()) == (BreakerState.OPEN, 1)
        await test.advance(11)
        consumer.pause("maintenance")
        await test.advance(10)
        assert (consumer.breaker, paused()) == (BreakerState.CLOSED, 1)
        consumer.resume("maintenance is over")
        assert paused() == 0


@in_virtual_time
async def test_removed_queue_is_neither_paused_nor_in_flight() -> None:
    tenant, metrics = App("tenant"), Metrics()
    tenant.handler("north", retry=["1s"])(lambda: None)
    async with AppTest(App("host")) as test:
        test.service.environment.bus.subscribe(metrics)
        await test.service.add(tenant)
        test.service.consumer("north").pause("maintenance")
        metrics.set_in_flight("north", 1)
        await test.service.remove(tenant)
    assert _value(metrics, "hopback_paused", queue="north") == 0
    assert _value(metrics, "hopback_in_flight", queue="north") == 0


def test_batches_are_measured() -> None:
    metrics = Metrics()
    metrics("batch.handled", {"queue": "users", "size": 100, "failed": 3})
    metrics("batch.handled", {"queue": "users", "size": 7, "failed": 0})
    assert _value(metrics, "hopback_batch_size_sum", queue="users") == 107
    assert _value(metrics, "hopback_batch_size_bucket", queue="users", le="10.0") == 1
    assert _value(metrics, "hopback_batch_failures_total", queue="users") == 3


def test_unknown_depth_is_not_exported() -> None:
    metrics = Metrics()
    metrics.set_in_flight("orders", 3)
    metrics.set_depth("orders.dlq", "dead-letter", 5)
    metrics.set_held_back("orders", 2)
    assert _value(metrics, "hopback_in_flight", queue="orders") == 3
    depth = {"queue": "orders.dlq", "role": "dead-letter"}
    assert _value(metrics, "hopback_queue_depth", **depth) == 5
    assert _value(metrics, "hopback_dead_letters_held_back", queue="orders") == 2
    metrics.set_depth("orders.dlq", "dead-letter", None)
    metrics.set_held_back("orders", None)
    assert math.isnan(_value(metrics, "hopback_queue_depth", **depth) or 0)
    assert math.isnan(_value(metrics, "hopback_dead_letters_held_back", queue="orders") or 0)


def test_metrics_subscribe_to_existing_events() -> None:
    metrics = Metrics()
    wanted = {name for name in EVENTS if metrics.wants(name)}
    of_topology = {"topology.warning", "topology.unusable"}
    others = {"handler.failed", "quarantine.begun", "shutdown.step"}
    others |= {"consumer.started"}
    assert wanted == set(EVENTS) - others - of_topology
    metrics("shutdown.step", {"step": 1})


def test_scrape_returns_prometheus_text() -> None:
    metrics = Metrics()
    metrics("delivery.done", _DELIVERY)
    assert b'hopback_deliveries_total{outcome="done",queue="orders"} 1.0' in metrics.render()
    assert metrics.content_type.startswith("text/plain")
