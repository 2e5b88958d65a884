"""Rehearse an application in a test: does our plan survive an hour?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.rehearse.engine import EngineKind
from hopback.rehearse.engine import rehearse as play
from hopback.rehearse.quantities import parse_seconds, show_count, show_seconds

if TYPE_CHECKING:
    from hopback.rehearse.forecast import Forecast
    from hopback.rehearse.scenario import Scenario
    from hopback.runtime.app import App

__all__ = ["assert_no_dead_letters", "assert_recovered_within", "rehearse"]


def rehearse(app: App, scenario: Scenario, *, engine: EngineKind = EngineKind.FLUID) -> Forecast:
    """What the scenario does to the application's queues; its handlers are not called.

    The same scenario, with its seed, gives the same forecast. Not to be called from a coroutine.
    """
    return play(app.topology, scenario, EngineKind(engine))


def assert_no_dead_letters(forecast: Forecast) -> None:
    """Fail if a message is parked; says how many, where, and when the first is."""
    parked = [one for one in forecast.stations if one.dead_letters >= 0.5]
    if parked:
        told = "; ".join(
            f"{one.queue}: {show_count(one.dead_letters)}, the first after"
            f" {show_seconds(one.first_dead_letter_s or 0.0)}"
            for one in parked
        )
        raise AssertionError(f"expected no dead letters, got {told}")


def assert_recovered_within(forecast: Forecast, limit: str | int) -> None:
    """Fail unless all is as usual so long after the last trouble: `assert_recovered_within(f, "15m")`."""
    recovery, most = forecast.recovery_s, parse_seconds(limit)
    if recovery is None:
        left = sum(one.left for one in forecast.stations)
        raise AssertionError(
            f"expected recovery within {show_seconds(most)}, got none by the end: {show_count(left)} wait"
        )
    if recovery > most:
        raise AssertionError(
            f"expected recovery within {show_seconds(most)}, got it after {show_seconds(recovery)}"
        )
