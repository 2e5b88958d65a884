"""Rehearse an outage: what a topology does with a scenario of traffic and trouble.

Two engines answer the same question and are compared by tests: a fluid model, and the runtime on the
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
