"""Rehearse an outage: predict how a topology behaves while traffic and failures change over time.

There are two engines that compute the same forecast: a fluid model, and the runtime on the embedded
broker in virtual time. Tests compare their results.
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
