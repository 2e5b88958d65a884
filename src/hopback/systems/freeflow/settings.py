"""The settings of FreeFlow: its domains, its tiers, and the binding keys of the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopback.designs.freeflow import AUDIT_KEYS, QUEUES, TIERS_MS, freeflow, queues_of, tiers_of
from hopback.errors import InvalidTopology
from hopback.systems.settings import EnvironmentSettings, variable
from hopback.topology import Topology

_DOMAINS = tuple(domain for served in QUEUES.values() for domain in served)
_VARIABLES = {"tiers_ms": "FREEFLOW_TIERS", "audit": "FREEFLOW_AUDIT_KEYS"}
"""The environment variables for the parameters of the design."""


@dataclass(frozen=True, slots=True)
class FreeFlowSettings(EnvironmentSettings):
    """The environment variables of FreeFlow."""

    database: str = variable("DATABASE_URL", "sqlite:///freeflow.db")
    hardened: bool = variable("HARDENED", False)
    domains: tuple[str, ...] = variable("FREEFLOW_DOMAINS", _DOMAINS)
    tiers: tuple[str, ...] = variable("FREEFLOW_TIERS", tuple(TIERS_MS))
    audit_keys: tuple[str, ...] = variable("FREEFLOW_AUDIT_KEYS", AUDIT_KEYS)

    def problems(self, variables: Mapping[str, str]) -> Sequence[str]:
        """Return the variables whose values the design does not accept."""
        try:
            self.topology()
        except InvalidTopology as error:
            named = [
                (_VARIABLES.get(one.path.split(".")[1], "FREEFLOW_DOMAINS"), one.expected)
                for one in error.problems
            ]
            return [f"{name}: expected {text}, got {variables.get(name)!r}" for name, text in named]
        except ValueError as error:
            return [f"FREEFLOW_DOMAINS or FREEFLOW_TIERS: {error}"]
        return ()

    def topology(self) -> Topology:
        """Return the documented design with the configured parameters."""
        return freeflow(
            hardened=self.hardened,
            queues=queues_of(self.domains),
            tiers_ms=tiers_of(self.tiers),
            audit_keys=self.audit_keys,
        )
