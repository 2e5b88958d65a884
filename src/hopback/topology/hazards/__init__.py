"""The rules used by `check`."""

from __future__ import annotations

from hopback.topology.hazards import (
    deadlettering,
    declarations,
    losses,
    parking,
    plans,
    policies,
    retries,
)

__all__ = ["RULES"]

RULES = (
    *deadlettering.RULES,
    *retries.RULES,
    *parking.RULES,
    *plans.RULES,
    *losses.RULES,
    *declarations.RULES,
    *policies.RULES,
)
"""All rules, in the order of the reference page."""
