"""Scenario files and their errors."""

from __future__ import annotations

import pytest

from hopback.errors import InvalidTopology
from hopback.rehearse import (
    ArrivalKind,
    Load,
    Outage,
    RateStep,
    Scenario,
    read_profile,
    read_scenario,
)

_WHOLE = """
for = "2h"
seed = 7
memory = "4GiB"
broker-version = "3.10"

[queues.orders]
rate = [{ at = "0s", rate = "500/s" }, { at = "1h", rate = "200/s" }]
arrivals = "poisson"
fail = "5%"
poison = 0.01
handler = "40ms±20ms"
consumers = "4×10"
breaker = { failures = 20, cool-down = "5s" }
dependency = "warehouse"

[[outages]]
at = "5m"
for = "20m"
hits = "warehouse"
handler = "10s"

[[slowdowns]]
at = "30m"
for = "5m"
factor = 3

[[crashes]]
at = "40m"
restart = "30s"
processes = 2

[[redrives]]
at = "90m"
rate = "100/s"
ramp = "2m"
"""


def test_scenario_file_sets_every_value() -> None:
    scenario = read_scenario(_WHOLE)
    load = scenario.loads[0]
    assert load.rates == (RateStep(0.0, 500.0), RateStep(3600.0, 200.0))
    assert (load.arrivals, load.fail, load.poison) == (ArrivalKind.POISSON, 0.05, 0.01)
    assert (load.handler_s, load.spread_s, load.processes, load.concurrency) == (0.04, 0.02, 4, 10)
    assert load.breaker is not None
    assert (load.breaker.failures, load.breaker.cool_down) == (20, 5.0)
    assert scenario.outages == (Outage(300.0, 1200.0, ("warehouse",), 1.0, 10.0),)
    assert (scenario.slowdowns[0].factor, scenario.crashes[0].processes) == (3.0, 2)
    assert (scenario.redrives[0].rate, scenario.redrives[0].ramp_s) == (100.0, 120.0)
    assert (scenario.seed, scenario.memory, str(scenario.version)) == (7, 2**32, "3.10")
    assert scenario.messages == pytest.approx(500 * 3600 + 200 * 3600)
    assert scenario.last_trouble_s == 2430.0


def test_scenario_mistakes_are_reported_with_path() -> None:
    text = """
    [queues.orders]
    rate = "fast"
    fial = "5%"
    handler = "10ms±1s"
    [[outages]]
    at = "5m"
    """
    with pytest.raises(InvalidTopology) as caught:
        read_scenario(text, where="shop.toml")
    told = str(caught.value)
    for words in ("shop.toml", "queues.orders.rate", "500/s", "fial", 'did you mean "fail"', "for"):
        assert words in told
    assert "outages[0].for" in told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"duration_s": 0.0}, "more than 0s"),
        ({"outages": (Outage(9000.0, 10.0),)}, "a start within the rehearsal"),
        ({"outages": (Outage(0.0, 10.0, ("nothing",)),)}, "queues or dependencies"),
        ({"loads": ()}, "at least one queue"),
        ({"loads": (Load("orders", (RateStep(0.0, 1.0),), burst_s=0.0),)}, "burst-every"),
    ],
)
def test_invalid_scenario_values_are_refused(change: dict[str, object], words: str) -> None:
    given: dict[str, object] = {
        "loads": (Load("orders", (RateStep(0.0, 1.0),)),),
        "duration_s": 60.0,
    }
    with pytest.raises(InvalidTopology, match=words):
        Scenario(**(given | change))  # type: ignore[arg-type]


def test_invalid_toml_is_reported_without_traceback() -> None:
    with pytest.raises(InvalidTopology, match="valid TOML"):
        read_scenario("for = ")


def test_profile_is_parsed_as_time_and_rate() -> None:
    rows = "seconds,rate\n0,100\n3600,250/s\n2h,50\n"
    assert read_profile(rows) == (
        RateStep(0.0, 100.0),
        RateStep(3600.0, 250.0),
        RateStep(7200.0, 50.0),
    )
    with pytest.raises(ValueError, match="rising order"):
        read_profile("10,1\n5,1\n")
    with pytest.raises(ValueError, match="line 1"):
        read_profile("10")


def test_scenario_names_its_profile() -> None:
    text = 'for = "1h"\n[queues.orders]\nprofile = "day.csv"\n'
    scenario = read_scenario(text, profile={"day.csv": "0,5\n60,9\n"}.__getitem__)
    assert scenario.loads[0].top_rate == 9.0
