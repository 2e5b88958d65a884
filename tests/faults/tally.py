"""What the long run counts, part by part, and the page that it becomes."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tests.faults.ledger.checks import Promise

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.ledger.checks import Verdict

__all__ = ["Part", "Tally", "page"]

_BEGIN = "<!-- what follows is written by `make test-faults` -->"


@dataclass
class Part:
    """One part of the run: what was done, and what came of it."""

    name: str
    load: str
    broker: str
    lossy: bool = False
    """Whether losses are expected: the faithful form, to show that the checkers see them."""
    messages: int = 0
    confirmed: int = 0
    runs: int = 0
    duplicates: int = 0
    parked: int = 0
    rounds: int = 0
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Another round."""
        self.rounds += 1
        self.messages += verdict.messages
        self.confirmed += verdict.confirmed
        self.runs += verdict.runs
        self.duplicates += verdict.duplicates
        self.parked += verdict.parked
        self.faults = dict(Counter(self.faults) + Counter(verdict.faults))
        self.broken = dict(
            Counter(self.broken) + Counter(found.promise.value for found in verdict.findings)
        )
        self.notes += [str(found) for found in verdict.findings[:3] if not self.lossy]

    @property
    def lost(self) -> int:
        """How many confirmed messages are gone."""
        return self.broken.get(Promise.LOST.value, 0)

    @property
    def failed(self) -> bool:
        """Whether it shows something that must not be."""
        return (self.lost == 0) if self.lossy else bool(self.broken)


@dataclass
class Tally:
    """Everything that was counted."""

    parts: list[Part] = field(default_factory=list)
    checks: list[tuple[str, str, str]] = field(default_factory=list)
    """Further measurements: what, how much, and how it went."""

    @property
    def failed(self) -> bool:
        """Whether any part failed."""
        return any(part.failed for part in self.parts) or any(
            verdict.startswith("failed") for _, _, verdict in self.checks
        )

    def save(self, path: Path) -> None:
        """Keep what is known so far."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def page(before: str, tally: Tally, command: str) -> str:
    """The page: its own words up to the mark, then the tables of this run."""
    words = before.partition(_BEGIN)[0].rstrip()
    sound = [part for part in tally.parts if not part.lossy]
    real = [part for part in sound if part.broker != "embedded"]
    messages = sum(part.confirmed for part in real)
    faults = sum(sum(part.faults.values()) for part in real)
    lines = [
        words,
        "",
        _BEGIN,
        "",
        "## The last run",
        "",
        f"`{command}` on Python {platform.python_version()}, {_cores()}: on RabbitMQ"
        f" **{messages:,} confirmed messages, {faults:,} faults,"
        f" {sum(p.lost for p in sound)} lost**; in simulation"
        f" {sum(p.confirmed for p in sound) - messages:,} messages and"
        f" {sum(sum(p.faults.values()) for p in sound) - faults:,} faults,"
        f" {sum(p.lost for p in sound if p.broker == 'embedded')} lost.",
        "",
        *_table(tally.parts),
        "",
        *_faults(tally.parts),
        *_checks(tally),
        *_notes(tally.parts),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cores() -> str:
    return f"{os.cpu_count()} cores"


def _table(parts: list[Part]) -> list[str]:
    head = "part | load | broker | confirmed | handler runs | faults | lost | duplicates | parked | min"
    rows = [f"| {head} |", "|" + "---|" * 10]
    for part in parts:
        lost = f"{part.lost:,}" + (" (expected)" if part.lossy else "")
        rows.append(
            f"| {part.name} | {part.load} | {part.broker} | {part.confirmed:,} | {part.runs:,}"
            f" | {sum(part.faults.values()):,} | {lost} | {part.duplicates:,} | {part.parked:,}"
            f" | {part.seconds / 60:.1f} |"
        )
    return rows


def _faults(parts: list[Part]) -> list[str]:
    """How often each thing was broken, on real brokers."""
    found: Counter[str] = Counter()
    for part in parts:
        found += Counter({f"{name.replace('_', ' ')}": n for name, n in part.faults.items()})
    rows = [f"| {name} | {count:,} |" for name, count in sorted(found.items())]
    return ["Faults, all parts together:", "", "| fault | times |", "|---|---|", *rows, ""]


def _checks(tally: Tally) -> list[str]:
    rows = [f"| {what} | {much} | {verdict} |" for what, much, verdict in tally.checks]
    return ["| further | measured | verdict |", "|---|---|---|", *rows, ""] if rows else []


def _notes(parts: list[Part]) -> list[str]:
    """Every promise that was broken where none may be."""
    broken = [
        f"- {part.name}: {dict(part.broken)}" for part in parts if part.broken and part.failed
    ]
    examples = [f"  - {note}" for part in parts if part.failed for note in part.notes[:5]]
    if not broken:
        return [
            "No other promise was broken: nothing stuck, strayed, early, out of order or altered."
        ]
    return ["**Broken promises:**", "", *broken, *examples]
