"""Where the embedded broker is known to differ from RabbitMQ, and why; as short as can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.renamed import OldNameLookup, old_names
from hopback.testing.conformance.exercise import Outcome, Result

if TYPE_CHECKING:
    from hopback.version import BrokerVersion

__all__ = ["EMBEDDED_DIFFERENCES", "BrokerDifference", "judge"]


@dataclass(frozen=True, slots=True)
class BrokerDifference:
    """A row that the embedded broker does not show as RabbitMQ does."""

    row: str
    reason: str
    since: BrokerVersion | None = None
    until: BrokerVersion | None = None

    def concerns(self, row: str, version: BrokerVersion) -> bool:
        """Whether it is about this row on this version."""
        early = self.since is not None and version < self.since
        late = self.until is not None and version >= self.until
        return self.row == row and not early and not late


EMBEDDED_DIFFERENCES: tuple[BrokerDifference, ...] = (
    BrokerDifference("1.13", "The embedded broker has no streams: declaring one is refused."),
    BrokerDifference(
        "6.7b",
        "RabbitMQ's channel trips over what it remembers of the old queue and takes the connection"
        " with it; the embedded broker's channels remember nothing, and the get succeeds.",
    ),
)


def judge(result: Result, version: BrokerVersion) -> str | None:
    """What is wrong with a result of the embedded broker; None if it is as it should be.

    A row that fails must be listed as a difference, and a listed one must fail.
    """
    known = [each for each in EMBEDDED_DIFFERENCES if each.concerns(result.row.id, version)]
    if result.outcome is Outcome.FAILS and not known:
        return result.reason
    if result.outcome is not Outcome.FAILS and known:
        return f"listed as a difference, but the row {result.outcome}: take it off the list"
    if result.outcome is Outcome.NOT_SHOWN:
        return f"the subject should have everything, but it {result.reason}"
    return None


__getattr__: OldNameLookup = old_names(__name__, {"Difference": "BrokerDifference"})
