"""Rehearse an outage: the behaviour of a topology in a scenario of traffic and failures.

Two engines compute the same forecast and are compared by tests: a fluid model, and the runtime on the
embedded broker in virtual time.
"""

from hopback.rehearse.engine import EngineKind, rehearse
from hopback.rehearse.findings import TimedFinding, findings_of
from hopback.rehearse.forecast import Forecast, forecast_document
from hopback.rehearse.page import html_page
from hopback.rehearse.scenario import (
    ArrivalKind,
    Crash,
    Load,
    Outage,
    RateStep,
    RedriveWave,
    Scenario,
    Slowdown,
    read_profile,
    read_scenario,
)

__all__ = [
    "ArrivalKind",
    "Crash",
    "EngineKind",
    "Forecast",
    "Load",
    "Outage",
    "RateStep",
    "RedriveWave",
    "Scenario",
    "Slowdown",
    "TimedFinding",
    "findings_of",
    "forecast_document",
    "html_page",
    "read_profile",
    "read_scenario",
    "rehearse",
]
