"""Outcomes, decisions and effects.

The functions in this package are pure. They do not perform any I/O.
"""

from __future__ import annotations

from hopback.policy.backoff import BackoffWaits, delay, schedule, show_schedule
from hopback.policy.decide import decide
from hopback.policy.effects import Occasion, effects
from hopback.policy.outcome import (
    ConsumerStatus,
    Done,
    Outcome,
    Park,
    Retry,
    Rule,
    Snooze,
    Verdict,
    classify,
    consumer_status,
    outcome_for_status,
    outcome_of,
    reason_of,
)
from hopback.policy.reading import (
    Reading,
    attempt_of,
    failures_so_far,
    origin_of,
    original_routing_key,
)
from hopback.policy.redrive import (
    RedriveOccasion,
    plan_of,
    redrive_message,
    redrive_refusal,
)

__all__ = [
    "BackoffWaits",
    "ConsumerStatus",
    "Done",
    "Occasion",
    "Outcome",
    "Park",
    "Reading",
    "RedriveOccasion",
    "Retry",
    "Rule",
    "Snooze",
    "Verdict",
    "attempt_of",
    "classify",
    "consumer_status",
    "decide",
    "delay",
    "effects",
    "failures_so_far",
    "origin_of",
    "original_routing_key",
    "outcome_for_status",
    "outcome_of",
    "plan_of",
    "reason_of",
    "redrive_message",
    "redrive_refusal",
    "schedule",
    "show_schedule",
]
