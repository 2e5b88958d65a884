"""What a rule is, what it saw, and what is reported of it for a given broker version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hopback.topology.hazards.scene import Scene

__all__ = [
    "Finding",
    "Rule",
    "Severity",
    "Sighting",
    "Verdict",
    "errors",
    "infos",
    "judged",
    "reported",
    "spelled",
    "warnings",
]


class Severity(StrEnum):
    """How grave a finding is."""

    ERROR = "error"
    """Messages are lost, or the broker refuses: mend it before use."""
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
    """A hazard of a topology: which rule saw it, how grave, where, what can happen, what to do."""

    rule: str
    severity: Severity
    place: str
    explanation: str
    fix: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A severity and the broker versions it holds for: from `since` on, and below `before`."""

    severity: Severity
    since: BrokerVersion | None = None
    before: BrokerVersion | None = None

    @classmethod
    def of(cls, severity: Severity, since: str = "", before: str = "") -> Verdict:
        """From versions as text; an empty one leaves that end open."""
        ends = (BrokerVersion.parse(text) if text else None for text in (since, before))
        return cls(severity, *ends)

    def holds(self, version: BrokerVersion) -> bool:
        """Whether it holds for this version."""
        begun = self.since is None or version >= self.since
        return begun and (self.before is None or version < self.before)

    @property
    def everywhere(self) -> bool:
        """Whether it holds for every version."""
        return self.since is None and self.before is None

    def __str__(self) -> str:
        ends = [f"from {self.since}"] if self.since else []
        ends += [f"before {self.before}"] if self.before else []
        return " ".join([str(self.severity), " and ".join(ends)]).strip()


def errors(since: str = "", before: str = "") -> tuple[Verdict, ...]:
    """An error on these versions."""
    return (Verdict.of(Severity.ERROR, since, before),)


def warnings(since: str = "", before: str = "") -> tuple[Verdict, ...]:
    """A warning on these versions."""
    return (Verdict.of(Severity.WARNING, since, before),)


def infos() -> tuple[Verdict, ...]:
    """Worth knowing on every version."""
    return (Verdict(Severity.INFO),)


def spelled(verdicts: Iterable[Verdict]) -> str:
    """How grave on which versions: `error from 4.0 and before 4.3, warning from 4.3`."""
    return ", ".join(map(str, verdicts))


def judged(verdicts: tuple[Verdict, ...], version: BrokerVersion | None) -> Severity | None:
    """The severity on this version, or the gravest of all when no version is meant."""
    holding = [each for each in verdicts if version is None or each.holds(version)]
    return min((each.severity for each in holding), key=lambda each: each.rank, default=None)


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where a rule saw its hazard. `verdicts` replace those of the rule where they are given."""

    place: str
    explanation: str
    fix: str
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A hazard to look for: its name, how grave it is on which versions, and who looks."""

    name: str
    verdicts: tuple[Verdict, ...]
    look: Callable[[Scene], Iterable[Sighting]]


def reported(rule: Rule, scene: Scene) -> Iterator[Finding]:
    """What this rule reports of the scene, for the version in question or for all of them."""
    for sighting in rule.look(scene):
        verdicts = sighting.verdicts or rule.verdicts
        severity = judged(verdicts, scene.version)
        if severity is None:
            continue
        explanation = sighting.explanation
        if scene.version is None and not all(each.everywhere for each in verdicts):
            explanation += f" (RabbitMQ: {spelled(verdicts)}.)"
        yield Finding(rule.name, severity, sighting.place, explanation, sighting.fix)
