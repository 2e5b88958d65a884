"""The hazards that `check` knows, one module for each family of rules."""

from __future__ import annotations

from hopback.topology.hazards import (
    deadlettering,
    declarations,
    delays,
    links,
    loops,
    losses,
    names,
    parking,
    plans,
    policies,
    retries,
)

__all__ = ["RULES"]

RULES = (
    *deadlettering.RULES,
    *loops.RULES,
    *retries.RULES,
    *parking.RULES,
    *plans.RULES,
    *losses.RULES,
    *names.RULES,
    *declarations.RULES,
    *policies.RULES,
    *links.RULES,
    *delays.RULES,
)
"""Every rule, in the order of the reference page."""
