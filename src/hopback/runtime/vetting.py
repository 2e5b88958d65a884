"""Whether an application may be started on a broker: what `check` finds for its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import UnsafeOperation
from hopback.topology.check import Severity, check

if TYPE_CHECKING:
    from collections.abc import Collection

    from hopback.topology.check import Finding
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

__all__ = ["vet"]


def vet(
    topology: Topology, version: BrokerVersion, accepted: Collection[str]
) -> tuple[Finding, ...]:
    """The warnings to be said; UnsafeOperation lists the errors that nobody accepted by name."""
    findings = check(topology, version)
    grave = [one for one in findings if one.severity is Severity.ERROR and one.rule not in accepted]
    if grave:
        listed = "\n".join(f"  {one.rule} at {one.place}: {one.explanation}" for one in grave)
        raise UnsafeOperation(
            f"{topology.name} is not started on RabbitMQ {version}:\n{listed}\n"
            "Mend these, or accept them by name."
        )
    return tuple(one for one in findings if one.severity is not Severity.INFO)
