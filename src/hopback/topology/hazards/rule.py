"""Rules and findings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.text import printable
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hopback.topology.hazards.analysis import Analysis


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """Messages are lost, or the broker rejects the topology."""
    WARNING = "warning"
    """Messages can be lost or misrouted if another failure occurs."""
    INFO = "info"
    """The topology works. The finding is a hint."""

    @property
    def rank(self) -> int:
        """The rank for sorting. 0 is the most severe."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem found in a topology."""

    rule: str
    severity: Severity
    place: str
    explanation: str
    fix: str


@dataclass(frozen=True, slots=True)
class VersionedSeverity:
    """A severity for a range of RabbitMQ versions. `before` is exclusive."""

    severity: Severity
    since: BrokerVersion | None = None
    before: BrokerVersion | None = None

    @classmethod
    def of(cls, severity: Severity, since: str = "", before: str = "") -> VersionedSeverity:
        """Create a severity from version strings. An empty string means no limit."""
        ends = (BrokerVersion.parse(text) if text else None for text in (since, before))
        return cls(severity, *ends)

    def applies_to(self, version: BrokerVersion) -> bool:
        begun = self.since is None or version >= self.since
        return begun and (self.before is None or version < self.before)

    @property
    def is_universal(self) -> bool:
        """True if there is no version limit."""
        return self.since is None and self.before is None

    def __str__(self) -> str:
        ends = [f"from {self.since}"] if self.since else []
        ends += [f"before {self.before}"] if self.before else []
        return " ".join([str(self.severity), " and ".join(ends)]).strip()


def errors(since: str = "", before: str = "") -> tuple[VersionedSeverity, ...]:
    return (VersionedSeverity.of(Severity.ERROR, since, before),)


def warnings(since: str = "", before: str = "") -> tuple[VersionedSeverity, ...]:
    return (VersionedSeverity.of(Severity.WARNING, since, before),)


def infos() -> tuple[VersionedSeverity, ...]:
    """Return severity INFO for all versions."""
    return (VersionedSeverity(Severity.INFO),)


def format_severities(severities: Iterable[VersionedSeverity]) -> str:
    """Format severities with their versions: `error from 4.0 and before 4.3, warning from 4.3`."""
    return ", ".join(map(str, severities))


def choose_severity(
    severities: tuple[VersionedSeverity, ...], version: BrokerVersion | None
) -> Severity | None:
    """Return the severity for a version, or the highest severity if the version is None."""
    holding = [each for each in severities if version is None or each.applies_to(version)]
    return min((each.severity for each in holding), key=lambda each: each.rank, default=None)


@dataclass(frozen=True, slots=True)
class Hit:
    """An occurrence of a problem. `severities` overrides the severities of the rule."""

    place: str
    explanation: str
    fix: str
    severities: tuple[VersionedSeverity, ...] = ()


@dataclass(frozen=True, slots=True)
class HazardRule:
    """A rule with its name, severities and check function."""

    name: str
    severities: tuple[VersionedSeverity, ...]
    look: Callable[[Analysis], Iterable[Hit]]


def report(rule: HazardRule, analysis: Analysis) -> Iterator[Finding]:
    """Yield the findings of a rule."""
    for hit in rule.look(analysis):
        severities = hit.severities or rule.severities
        severity = choose_severity(severities, analysis.version)
        if severity is None:
            continue
        explanation = hit.explanation
        if analysis.version is None and not all(each.is_universal for each in severities):
            explanation += f" (RabbitMQ: {format_severities(severities)}.)"
        yield Finding(rule.name, severity, hit.place, explanation, hit.fix)


HARDENED = "run the hardened form (`--hardened` for a documented design)"
"""Recommends the hardened form of a design."""

_NO_LIMIT_SINCE = BrokerVersion(4, 0)


def if_limits_can_be_lifted(fix: str, version: BrokerVersion | None) -> str:
    """Return `fix` if the version supports `delivery-limit: -1`, otherwise an empty string."""
    return fix if version is None or version >= _NO_LIMIT_SINCE else ""


THE_TOPOLOGY = "topology"
"""The location of findings about the whole topology."""

_MOST_NAMES = 12  # maximum number of names to list


def quote_name(name: str) -> str:
    """Quote a name and escape control characters."""
    return f"`{printable(name)}`"


def list_names(names: Iterable[str]) -> str:
    """Format a list of names: `a`, `b` and `c`. Long lists are truncated."""
    every = [quote_name(name) for name in sorted(set(names))]
    shown = every[:_MOST_NAMES] if len(every) > _MOST_NAMES + 1 else every
    if len(shown) < len(every):
        return f"{', '.join(shown)} and {len(every) - len(shown)} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def queue_place(*names: str) -> str:
    """Return the location of a finding about one or more queues."""
    return f"queue{'s' if len(set(names)) > 1 else ''} {list_names(names)}"


def exchange_place(name: str) -> str:
    return f"exchange {quote_name(name)}"


def plan_place(queue: str) -> str:
    """Return the location of a finding about a plan."""
    return f"plan of queue {quote_name(queue)}"


def policy_place(name: str) -> str:
    return f"policy {quote_name(name)}"
