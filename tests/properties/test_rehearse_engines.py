"""Both engines of a rehearsal agree on random scenarios, within the bounds defined here.

The fluid model computes means, the exact engine draws single messages. Their counts may differ by
the noise of independent draws (`_NOISE` standard deviations), by the messages in progress, and by
`_SHARE` for the step length of the model. `docs/explanation/fluid-model.md` has the same bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopback.designs.recommended import recommended
from hopback.policy.breaker import BreakerPolicy
from hopback.rehearse import EngineKind, Load, Outage, RateStep, Scenario, rehearse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.rehearse import Forecast

_SHARE = 0.03
_NOISE = 5.0

_TIERS = st.lists(st.sampled_from([10, 30, 60, 120, 300]), min_size=1, max_size=3, unique=True)


@st.composite
def _scenarios(draw: st.DrawFn) -> tuple[tuple[int, ...], int, Scenario]:
    tiers = tuple(sorted(draw(_TIERS)))
    attempts = len(tiers) + 1 + draw(st.integers(0, 2))
    concurrency = draw(st.integers(1, 4))
    rate = draw(st.floats(0.5, 3.0))
    busy = draw(st.floats(0.2, 0.8))
    fail = draw(st.sampled_from([0.0, 0.0, 0.05, 0.3]))
    poison = draw(st.sampled_from([0.0, 0.0, 0.1]))
    # A single probe closes a breaker. If runs fail at random, one failed probe doubles the pause,
    # and a single seed is far from the mean of the fluid model.
    probed = [None] if fail or poison else [None, BreakerPolicy(failures=10, cool_down=5.0)]
    load = Load(
        "orders",
        (RateStep(0.0, rate),),
        fail=fail,
        poison=poison,
        handler_s=busy * concurrency / rate,
        concurrency=concurrency,
        breaker=draw(st.sampled_from(probed)),
    )
    outage = Outage(60.0, draw(st.floats(0.0, 400.0)))
    scenario = Scenario(
        (load,), duration_s=1200.0, outages=(outage,), seed=draw(st.integers(0, 99)), samples=60
    )
    return tiers, attempts, scenario


def _bound(count: float, slack: float) -> float:
    return _SHARE * count + _NOISE * math.sqrt(count) + slack


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_scenarios())
def test_fluid_and_exact_engine_agree(case: tuple[tuple[int, ...], int, Scenario]) -> None:
    """Compares runs, dead letters, messages left, and the depth of every queue at every sample."""
    tiers, attempts, scenario = case
    topology = recommended(
        "orders", tiers_ms=[seconds * 1000 for seconds in tiers], attempts=attempts
    )
    exact = rehearse(topology, scenario, EngineKind.EXACT)
    fluids = [rehearse(topology, each) for each in _neighbours(scenario)]
    assert any(not list(_differences(scenario.loads[0], fluid, exact)) for fluid in fluids), list(
        _differences(scenario.loads[0], fluids[0], exact)
    )


def _neighbours(scenario: Scenario) -> list[Scenario]:
    """Return the scenario. With a breaker, also return it with a slightly different outage.

    If a probe is due at the end of the outage, it may fail in one of the engines only, and the next
    pause is as long as all pauses before it.
    """
    load, (outage,) = scenario.loads[0], scenario.outages
    if load.breaker is None:
        return [scenario]
    lengths = (outage.length_s + sign * 3 * load.handler_s for sign in (0, -1, 1))
    return [
        replace(scenario, outages=(replace(outage, length_s=max(length, 0.0)),))
        for length in lengths
    ]


def _differences(load: Load, fluid: Forecast, exact: Forecast) -> Iterator[str]:
    """Return the figures that are not within the bounds."""
    one, other = fluid.stations[0], exact.stations[0]
    # The engines count a run at its start and at its end. The same applies to the probes of a
    # breaker.
    slack = 3.0 + 2 * load.slots + (0 if load.breaker is None else 2 * load.breaker.failures)
    for what, a, b, bound in (
        ("published", one.published, other.published, 2.0),
        ("runs", one.run_count, other.run_count, _bound(one.run_count, slack)),
        ("dead letters", one.dead_letters, other.dead_letters, _bound(one.dead_letters, slack)),
    ):
        if abs(a - b) > bound:
            yield f"{what}: {a} and {b}, expected at most {bound} apart"
    # A difference in time is a difference in depth: the messages published during one run or
    # sample.
    depth_slack = slack + 3 * load.top_rate * load.handler_s
    for queue in fluid.queues:
        exact_queue = exact.queue(queue.queue)
        gap = max(abs(a - b) for a, b in zip(queue.depth, exact_queue.depth, strict=True))
        if gap > (bound := _bound(queue.peak, depth_slack)):
            yield f"depth of {queue.queue}: {gap} apart, expected at most {bound}"
