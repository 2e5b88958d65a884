"""A hazard rule, its hits and the findings reported for a broker version, and the wording of names."""

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
    """How grave a finding is."""

    ERROR = "error"
    """Messages are lost, or the broker refuses: correct it before use."""
    WARNING = "warning"
    """Messages can be lost or go astray when something else goes wrong."""
    INFO = "info"
    """Worth knowing."""

    @property
    def rank(self) -> int:
        """0 for the gravest."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A hazard of a topology: rule, severity, place, possible effect and remedy."""

    rule: str
    severity: Severity
    place: str
    explanation: str
    fix: str


@dataclass(frozen=True, slots=True)
class VersionedSeverity:
    """A severity and the broker versions it holds for: from `since` on, and below `before`."""

    severity: Severity
    since: BrokerVersion | None = None
    before: BrokerVersion | None = None

    @classmethod
    def of(cls, severity: Severity, since: str = "", before: str = "") -> VersionedSeverity:
        """Read versions from text. An empty version leaves that end open."""
        ends = (BrokerVersion.parse(text) if text else None for text in (since, before))
        return cls(severity, *ends)

    def applies_to(self, version: BrokerVersion) -> bool:
        begun = self.since is None or version >= self.since
        return begun and (self.before is None or version < self.before)

    @property
    def is_universal(self) -> bool:
        """Whether it holds for every version."""
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
    """Worth knowing on every version."""
    return (VersionedSeverity(Severity.INFO),)


def format_severities(severities: Iterable[VersionedSeverity]) -> str:
    """Severities and their versions: `error from 4.0 and before 4.3, warning from 4.3`."""
    return ", ".join(map(str, severities))


def choose_severity(
    severities: tuple[VersionedSeverity, ...], version: BrokerVersion | None
) -> Severity | None:
    """The severity on this version, or the highest of all versions if it is None."""
    holding = [each for each in severities if version is None or each.applies_to(version)]
    return min((each.severity for each in holding), key=lambda each: each.rank, default=None)


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a rule saw its hazard. `severities` replace those of the rule where they are given."""

    place: str
    explanation: str
    fix: str
    severities: tuple[VersionedSeverity, ...] = ()


@dataclass(frozen=True, slots=True)
class HazardRule:
    """A hazard to look for: its name, how grave it is on which versions, and who looks."""

    name: str
    severities: tuple[VersionedSeverity, ...]
    look: Callable[[Analysis], Iterable[Hit]]


def report(rule: HazardRule, analysis: Analysis) -> Iterator[Finding]:
    """The findings of this rule for the analysed version, or for all versions."""
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
"""How a fix names the form that has none of these hazards."""

_NO_LIMIT_SINCE = BrokerVersion(4, 0)


def if_limits_can_be_lifted(fix: str, version: BrokerVersion | None) -> str:
    """Return the part of a fix that sets `delivery-limit: -1`, or "" before 4.0, which refuses it."""
    return fix if version is None or version >= _NO_LIMIT_SINCE else ""


THE_TOPOLOGY = "topology"
"""The place of a finding that concerns the whole topology."""

_MOST_NAMES = 12  # a list of more is no longer read


def quote_name(name: str) -> str:
    """A name within a sentence, without control characters."""
    return f"`{printable(name)}`"


def list_names(names: Iterable[str]) -> str:
    """`a`, `b` and `c`, each once. A long list is shortened and ends with the number of omitted names."""
    every = [quote_name(name) for name in sorted(set(names))]
    shown = every[:_MOST_NAMES] if len(every) > _MOST_NAMES + 1 else every
    if len(shown) < len(every):
        return f"{', '.join(shown)} and {len(every) - len(shown)} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def queue_place(*names: str) -> str:
    """The place of a queue, or of several."""
    return f"queue{'s' if len(set(names)) > 1 else ''} {list_names(names)}"


def exchange_place(name: str) -> str:
    return f"exchange {quote_name(name)}"


def plan_place(queue: str) -> str:
    """The place of a queue's failure plan."""
    return f"plan of queue {quote_name(queue)}"


def policy_place(name: str) -> str:
    return f"policy {quote_name(name)}"
