"""FreeFlow's settings: the domains, the tiers, and what the audit is bound by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hopback.designs.freeflow import AUDIT_KEYS, QUEUES, TIERS_MS, freeflow, queues_of, tiers_of
from hopback.errors import InvalidTopology
from hopback.systems.settings import Variables
from hopback.topology import Topology

_DOMAINS = tuple(domain for served in QUEUES.values() for domain in served)


@dataclass(frozen=True, slots=True)
class FreeFlowSettings:
    """The environment variables of FreeFlow."""

    database: str = "sqlite:///freeflow.db"
    hardened: bool = False
    domains: tuple[str, ...] = _DOMAINS
    tiers: tuple[str, ...] = tuple(TIERS_MS)
    audit_keys: tuple[str, ...] = AUDIT_KEYS

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> FreeFlowSettings:
        """Read environment variables. SettingsError names all wrong ones."""
        found, plain = Variables(variables), cls()
        settings = cls(
            found.text("DATABASE_URL", plain.database),
            found.flag("HARDENED"),
            found.names("FREEFLOW_DOMAINS", ",".join(plain.domains)),
            found.names("FREEFLOW_TIERS", ",".join(plain.tiers)),
            found.names("FREEFLOW_AUDIT_KEYS", ",".join(plain.audit_keys)),
        )
        found.check()
        try:
            settings.topology()
        except InvalidTopology as error:
            for problem in error.problems:
                variable = _VARIABLES.get(problem.path.split(".")[1], "FREEFLOW_DOMAINS")
                found.refuse(variable, problem.expected)
        except ValueError as error:
            found.refuse("FREEFLOW_DOMAINS or FREEFLOW_TIERS", str(error))
        found.check()
        return settings

    def topology(self) -> Topology:
        """Return the documented design with these parameters."""
        return freeflow(
            hardened=self.hardened,
            queues=queues_of(self.domains),
            tiers_ms=tiers_of(self.tiers),
            audit_keys=self.audit_keys,
        )


_VARIABLES = {"tiers_ms": "FREEFLOW_TIERS", "audit": "FREEFLOW_AUDIT_KEYS"}
"""The variables by the parameter of the design."""
