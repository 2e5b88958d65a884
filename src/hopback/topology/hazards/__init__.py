"""The hazards that `check` knows, one module for each family of rules."""

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
"""Every rule, in the order of the reference page."""
