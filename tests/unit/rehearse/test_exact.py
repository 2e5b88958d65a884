"""The exact engine in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.designs import DESIGNS
from hopback.rehearse import (
    ArrivalKind,
    Crash,
    EngineKind,
    RedriveWave,
    Scenario,
    forecast_document,
    rehearse,
)
from tests.unit.rehearse.worlds import scenario

if TYPE_CHECKING:
    from hopback.topology.model import Topology

_ORDERS = DESIGNS["recommended"].build()


def _exact(topology: Topology, played: Scenario) -> dict[str, object]:
    return forecast_document(rehearse(topology, played, EngineKind.EXACT))


def test_same_seed_gives_same_forecast() -> None:
    played = scenario(
        rate=2.0, fail=0.2, spread_s=0.05, arrivals=ArrivalKind.POISSON, duration_s=300.0
    )
    assert _exact(_ORDERS, played) == _exact(_ORDERS, played)
    other = scenario(
        rate=2.0, fail=0.2, spread_s=0.05, arrivals=ArrivalKind.POISSON, duration_s=300.0, seed=1
    )
    assert _exact(_ORDERS, other) != _exact(_ORDERS, played)


@pytest.mark.parametrize("name", list(DESIGNS))
def test_every_design_parks_equally_in_both_engines(name: str) -> None:
    topology = DESIGNS[name].build()
    plan = topology.plans[0]
    played = scenario(
        queue=plan.queue, rate=0.05, outage=(1.0, 7000.0), duration_s=8_000.0, concurrency=2
    )
    exact = rehearse(topology, played, EngineKind.EXACT).stations[0]
    fluid = rehearse(topology, played).stations[0]
    assert exact.dead_letters == pytest.approx(fluid.dead_letters, abs=3)
    assert exact.run_count == pytest.approx(fluid.run_count, rel=0.01)
    # The first message comes after one interval, and with it the first dead letter.
    assert exact.first_dead_letter_s == pytest.approx(fluid.first_dead_letter_s, abs=22)


@pytest.mark.slow
def test_crash_and_redrive_keep_message_count() -> None:
    played = scenario(
        rate=0.7,
        outage=(10.0, 2300.0),
        duration_s=4500.0,
        processes=2,
        concurrency=2,
        crashes=(Crash(100.0, 50.0, 2),),
        redrives=(RedriveWave(3000.0, 5.0, 10.0),),
    )
    course = rehearse(_ORDERS, played, EngineKind.EXACT).stations[0]
    assert course.redriven == course.dead_letters > 100
    assert course.published == course.done + course.left
    assert course.dropped == 0


def test_oldest_message_age_is_equal_in_both_engines() -> None:
    played = scenario(rate=0.2, outage=(300.0, 2700.0), duration_s=6000.0, samples=60)
    exact = rehearse(_ORDERS, played, EngineKind.EXACT).stations[0]
    fluid = rehearse(_ORDERS, played).stations[0]
    for moment, one, other in zip(range(0, 6001, 100), exact.oldest_s, fluid.oldest_s, strict=True):
        assert one == pytest.approx(other, abs=12), moment
    assert max(fluid.oldest_s) == pytest.approx(30 + 300 + 1800, abs=5)
    assert fluid.oldest_s[-1] < 5


def test_progress_is_reported() -> None:
    told: list[float] = []
    rehearse(_ORDERS, scenario(duration_s=60.0), EngineKind.EXACT, progress=told.append)
    assert told[0] == 0.0
    assert told[-1] == 1.0
