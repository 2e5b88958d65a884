"""The fluid model compared with values computed by hand."""

from __future__ import annotations

import pytest

from hopback.designs.event_bus import event_bus
from hopback.designs.recommended import recommended
from hopback.policy.breaker import BreakerPolicy
from hopback.rehearse import (
    Crash,
    EngineKind,
    Forecast,
    Load,
    RateStep,
    RedriveWave,
    Scenario,
    Slowdown,
    rehearse,
)
from hopback.rehearse.fluid import Flow
from hopback.rehearse.station import stations_of
from tests.unit.rehearse.worlds import scenario

_ORDERS = recommended("orders")


def _balance(forecast: Forecast) -> float:
    """Messages that are nowhere: published, and neither done nor parked nor waiting."""
    return sum(
        one.published
        - one.refused
        - one.dropped
        - one.done
        - one.dead_letters
        + one.redriven
        - one.left
        for one in forecast.stations
    )


def test_low_traffic_does_not_wait() -> None:
    forecast = rehearse(_ORDERS, scenario())
    assert forecast.queue("orders").peak == pytest.approx(0.5)
    assert forecast.stations[0].done == pytest.approx(36_000)
    assert forecast.dead_letters == 0
    assert forecast.recovery_s == 0.0


def test_outage_fills_first_tier_by_rate_times_delay() -> None:
    forecast = rehearse(_ORDERS, scenario(outage=(300.0, 1200.0)))
    assert forecast.queue("orders.retry.30s").peak == pytest.approx(150, rel=0.02)
    assert forecast.queue("orders.retry.5m").peak == pytest.approx(1500, rel=0.02)
    assert forecast.dead_letters == 0
    assert forecast.recovery_s == pytest.approx(1800, abs=60)


def test_outage_longer_than_all_waits_parks_early_messages() -> None:
    """The waits are 35m30s. Of an outage of 45 minutes the first 9m30s are parked."""
    forecast = rehearse(
        _ORDERS, scenario(outage=(300.0, 2700.0), concurrency=50, duration_s=10_800.0)
    )
    assert forecast.dead_letters == pytest.approx(5 * (2700 - 2130), rel=0.02)
    assert forecast.first_dead_letter_s == pytest.approx(300 + 2130, abs=2)


def test_overload_grows_by_excess_rate() -> None:
    forecast = rehearse(
        _ORDERS, scenario(rate=10.0, concurrency=1, handler_s=0.125, duration_s=600.0)
    )
    assert forecast.queue("orders").depth[-1] == pytest.approx(1200, rel=0.01)
    assert max(forecast.stations[0].wait_s) == pytest.approx(120, rel=0.02)
    assert forecast.stations[0].runs[-1] == pytest.approx(8.0)


def test_random_failures_have_geometric_sum() -> None:
    """A tenth of the runs fail: 1/10,000 of the messages are parked, and there are 1.111 runs per
    message.
    """
    forecast = rehearse(_ORDERS, scenario(fail=0.1, duration_s=86_400.0))
    course = forecast.stations[0]
    assert course.run_count / course.published == pytest.approx(1.111, rel=0.01)
    assert course.dead_letters == pytest.approx(course.published * 1e-4, rel=0.05)


@pytest.mark.parametrize("fail", [0.0, 0.3])
def test_number_of_messages_is_conserved(fail: float) -> None:
    forecast = rehearse(
        _ORDERS,
        scenario(
            outage=(600.0, 1800.0),
            fail=fail,
            poison=0.02,
            concurrency=1,
            crashes=(Crash(3000.0, 60.0),),
            slowdowns=(Slowdown(4000.0, 300.0, 4.0),),
            redrives=(RedriveWave(5000.0, 20.0, 60.0),),
        ),
    )
    assert abs(_balance(forecast)) < 0.001 * forecast.stations[0].published


def test_breaker_keeps_messages_in_queue() -> None:
    """They use no attempts."""
    without = rehearse(_ORDERS, scenario(outage=(300.0, 7200.0), duration_s=14_400.0))
    braked = rehearse(
        _ORDERS,
        scenario(outage=(300.0, 7200.0), duration_s=14_400.0, breaker=BreakerPolicy(failures=10)),
    )
    assert without.dead_letters > 20_000
    assert braked.dead_letters < 100
    assert braked.queue("orders").peak > 30_000


def test_redrive_returns_dead_letters() -> None:
    forecast = rehearse(
        _ORDERS, scenario(poison=0.1, duration_s=14_400.0, redrives=(RedriveWave(7200.0, 5.0),))
    )
    course = forecast.stations[0]
    assert course.redriven == pytest.approx(0.5 * (7200 - 2130), rel=0.02)
    assert course.dead_letters > course.redriven


def test_redrive_that_keeps_count_has_one_run() -> None:
    forecast = rehearse(
        event_bus(),
        scenario(
            queue="wms.queue.wms-orders", outage=(60.0, 600.0), redrives=(RedriveWave(3600.0, 5.0),)
        ),
    )
    course = forecast.stations[0]
    assert course.redriven == pytest.approx(5 * (600 - 50), rel=0.05)
    assert course.left < 10


def test_copies_of_returning_messages_reach_other_queues() -> None:
    from hopback.designs.freeflow import freeflow
    from hopback.rehearse import Load, Outage, RateStep, Scenario

    users, audit = "freeflow.users.queue", "freeflow.audit.queue"
    both = Scenario(
        loads=(
            Load(users, (RateStep(0.0, 5.0),), dependency="users"),
            Load(audit, (RateStep(0.0, 0.0),)),
        ),
        duration_s=3600.0,
        outages=(Outage(300.0, 60.0, (users,)),),
    )
    forecast = rehearse(freeflow(audit_keys=("#",)), both)
    published, copied = forecast.stations[0].published, forecast.stations[1].copied
    assert copied == pytest.approx(published + forecast.stations[0].retried, rel=0.01)


def test_peak_between_two_samples_is_detected() -> None:
    played = scenario(
        rate=5.0,
        outage=(330.0, 300.0),
        duration_s=1200.0,
        samples=20,
        breaker=BreakerPolicy(failures=10),
    )
    for engine in EngineKind:
        forecast = rehearse(_ORDERS, played, engine)
        assert forecast.queue("orders.retry.30s").peak >= 10, engine
        assert forecast.stations[0].most_retrying >= 10


def test_day_with_failures_takes_few_steps() -> None:
    hours = tuple(RateStep(3600.0 * hour, 100.0 + hour) for hour in range(24))
    day = Scenario((Load("orders", hours, fail=0.05, concurrency=40),), duration_s=86_400.0)
    (station,) = stations_of(_ORDERS, day)
    flow = Flow(station, day.duration_s)
    flow.advance(day.duration_s)
    assert flow.totals.published == pytest.approx(3600 * sum(step.rate for step in hours))
    corners = len(flow.log.runs.moments)
    assert corners < 24 * 10, "a change of the rate, and its return from each of three waits"


@pytest.mark.parametrize("breaker", [None, BreakerPolicy()])
@pytest.mark.parametrize("wait_ms", [10, 30])
def test_wait_shorter_than_step_ends(wait_ms: int, breaker: BreakerPolicy | None) -> None:
    orders = recommended("orders", tiers_ms=[wait_ms], attempts=2)
    played = scenario(
        outage=(300.0, 2400.0), rate=500.0, processes=4, concurrency=40, breaker=breaker
    )
    (station,) = stations_of(orders, played)
    flow = Flow(station, played.duration_s)
    flow.advance(played.duration_s)
    if breaker is None:
        assert flow.totals.parked == pytest.approx(500 * 2400, rel=0.001)
    assert len(flow.log.runs.moments) < 20_000, "a step for each wait would make over 80,000"
