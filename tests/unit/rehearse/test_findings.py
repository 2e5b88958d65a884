"""Findings of a forecast and their remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.designs.freeflow import freeflow
from hopback.designs.recommended import recommended
from hopback.rehearse import Forecast, findings_of, rehearse
from hopback.topology.model import Queue, Topology
from tests.unit.rehearse.worlds import scenario

if TYPE_CHECKING:
    from hopback.topology.hazards.rule import Finding

_ORDERS = recommended("orders")


def _found(topology: Topology, forecast: Forecast) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings_of(topology, forecast)}


def test_long_outage_finding_names_sufficient_tier() -> None:
    forecast = rehearse(_ORDERS, scenario(outage=(300.0, 3600.0), duration_s=28_800.0))
    found = _found(_ORDERS, forecast)["attempts-run-out"]
    assert "35m30s" in found.explanation
    assert "an outage of 1h parks" in found.explanation
    assert found.fix == "A further tier of 1h would park none."


def test_calm_day_has_no_findings() -> None:
    assert findings_of(_ORDERS, rehearse(_ORDERS, scenario())) == ()


def test_overload_finding_names_needed_consumers() -> None:
    forecast = rehearse(_ORDERS, scenario(rate=100.0, concurrency=5))
    assert "1×10 are needed" in _found(_ORDERS, forecast)["overload"].fix


def test_returns_beyond_capacity_are_reported() -> None:
    forecast = rehearse(_ORDERS, scenario(outage=(300.0, 1800.0), rate=10.0, concurrency=1,
                                          handler_s=0.07, duration_s=14_400.0))  # fmt: skip
    found = _found(_ORDERS, forecast)
    assert "short by" in found["herd"].explanation
    assert "without success" in found["dependency-load"].explanation
    assert "BreakerPolicy()" in found["dependency-load"].fix


def test_full_queue_that_refuses_publishers_is_reported() -> None:
    limited = Topology(
        name="limited",
        queues=tuple(
            Queue(q.name, q.type, arguments={**q.arguments, "x-max-length": 1000})
            if q.name == "orders"
            else q
            for q in _ORDERS.queues
        ),
        plans=_ORDERS.plans,
    )
    forecast = rehearse(limited, scenario(rate=20.0, concurrency=1, duration_s=600.0))
    found = _found(limited, forecast)["publishers-refused"]
    assert "max-length 1,000" in found.explanation
    assert forecast.stations[0].refused > 4000
    assert forecast.queue("orders").peak < 1200


def test_copies_of_retries_are_reported() -> None:
    design = freeflow(audit_keys=("#",))
    forecast = rehearse(design, scenario(queue="freeflow.users.queue", outage=(300.0, 60.0)))
    assert "freeflow.audit.queue" in _found(design, forecast)["copies"].explanation


def test_too_small_broker_is_an_error() -> None:
    forecast = rehearse(
        _ORDERS, scenario(outage=(300.0, 1800.0), rate=500.0, concurrency=40, memory=10_000_000)
    )
    assert (
        "the alarm stops all publishers" in _found(_ORDERS, forecast)["broker-memory"].explanation
    )
