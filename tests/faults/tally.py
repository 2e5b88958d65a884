"""What the long run counts, part by part, and the page that it becomes."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.faults.ledger.checks import Promise

if TYPE_CHECKING:
    from tests.faults.ledger.checks import Verdict

__all__ = ["Part", "Tally", "page"]

_BEGIN = "<!-- what follows is written by `make test-faults` -->"
_BROKER_KILLS = {"broker:_kill_-9", "cluster:_node_kill_-9", "cluster:_leader_kill_-9"}


@dataclass
class Part:
    """One part of the run: what was done, and what came of it."""

    name: str
    load: str
    broker: str
    lossy: bool = False
    """Whether losses are expected: the faithful form, to show that the checkers see them."""
    may_lose: bool = False
    """Whether losses are no broken promise: nothing was promised of the faithful form there."""
    messages: int = 0
    confirmed: int = 0
    runs: int = 0
    duplicates: int = 0
    parked: int = 0
    gone: int = 0
    """What went with queues that an operator deleted."""
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
        self.gone += verdict.gone
        self.faults = dict(Counter(self.faults) + Counter(verdict.faults))
        self.broken = dict(
            Counter(self.broken) + Counter(found.promise.value for found in verdict.findings)
        )
        self.notes += [str(found) for found in verdict.findings[:3] if not self.lossy]

    def merge(self, other: Part) -> None:
        """Another block of the same part."""
        for name in ("messages", "confirmed", "runs", "duplicates", "parked", "gone", "rounds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds += other.seconds
        self.faults = dict(Counter(self.faults) + Counter(other.faults))
        self.broken = dict(Counter(self.broken) + Counter(other.broken))
        self.notes += other.notes

    def count(self, promise: Promise) -> int:
        """How often a promise was broken."""
        return self.broken.get(promise.value, 0)

    @property
    def lost(self) -> int:
        """How many confirmed messages are gone."""
        return self.count(Promise.LOST)

    @property
    def failed(self) -> bool:
        """Whether it shows something that must not be."""
        if self.lossy:
            return self.lost == 0
        return bool(set(self.broken) - {Promise.LOST.value} if self.may_lose else self.broken)


@dataclass
class Tally:
    """Everything that was counted."""

    parts: list[Part] = field(default_factory=list)
    checks: list[tuple[str, str, str]] = field(default_factory=list)
    """Further measurements: what, how much, and how it went."""
    days: set[str] = field(default_factory=set)
    """The days on which it was counted."""

    @property
    def failed(self) -> bool:
        """Whether any part failed."""
        return any(part.failed for part in self.parts) or any(
            verdict.startswith("failed") for _, _, verdict in self.checks
        )

    def add(self, part: Part) -> None:
        """Another block; blocks of one part on one broker are one row."""
        for known in self.parts:
            if (known.name, known.broker) == (part.name, part.broker):
                known.merge(part)
                return
        self.parts.append(replace(part))


def page(before: str, tally: Tally, command: str) -> str:
    """The page: its own words up to the mark, then the tables of this run."""
    words = before.partition(_BEGIN)[0].rstrip()
    sound = [part for part in tally.parts if not (part.lossy or part.may_lose)]
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
        f"`{command}` on Python {platform.python_version()}, {_cores()}{_on(tally.days)}: on RabbitMQ"
        f" **{messages:,} confirmed messages, {faults:,} faults,"
        f" {sum(p.lost for p in sound)} lost**; in simulation"
        f" {sum(p.confirmed for p in sound) - messages:,} messages and"
        f" {sum(sum(p.faults.values()) for p in sound) - faults:,} faults,"
        f" {sum(p.lost for p in sound if p.broker == 'embedded')} lost.",
        "",
        *_versions(real),
        *_table(tally.parts),
        "",
        *_faults(tally.parts),
        *_checks(tally),
        *_notes(tally.parts),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cores() -> str:
    return f"{os.cpu_count()} cores"


def _on(days: set[str]) -> str:
    return f", {' and '.join(sorted(days))}" if days else ""


def _brokers(parts: list[Part]) -> list[str]:
    """The brokers in the order of their versions; the embedded one is the last."""
    return sorted({part.broker for part in parts}, key=lambda one: (one == "embedded", one))


def _versions(real: list[Part]) -> list[str]:
    """One row for each broker: what was confirmed and broken there, and what came of it."""
    head = (
        "broker | confirmed | faults | of these kills of a broker | lost | misrouted"
        " | runs beyond the promise | duplicates, all explained | gone with deleted queues"
    )
    rows = []
    for broker in _brokers(real):
        parts = [part for part in real if part.broker == broker]
        kills = sum(
            count for p in parts for name, count in p.faults.items() if name in _BROKER_KILLS
        )
        unexplained = sum(part.count(Promise.DUPLICATED) for part in parts)
        cells = [
            sum(part.confirmed for part in parts),
            sum(sum(part.faults.values()) for part in parts),
            kills,
            sum(part.lost for part in parts),
            sum(part.count(Promise.STRAYED) for part in parts),
            sum(part.count(Promise.BEYOND) for part in parts),
            sum(part.duplicates for part in parts) - unexplained,
            sum(part.gone for part in parts),
        ]
        rows.append(f"| {broker} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return [f"| {head} |", "|" + "---|" * 9, *rows, ""] if rows else []


def _table(parts: list[Part]) -> list[str]:
    head = "part | load | broker | confirmed | handler runs | faults | lost | duplicates | parked | min"
    rows = [f"| {head} |", "|" + "---|" * 10]
    for part in parts:
        lost = f"{part.lost:,}" + (
            " (expected)" if part.lossy else " (not promised)" * part.may_lose
        )
        rows.append(
            f"| {part.name} | {part.load} | {part.broker} | {part.confirmed:,} | {part.runs:,}"
            f" | {sum(part.faults.values()):,} | {lost} | {part.duplicates:,} | {part.parked:,}"
            f" | {part.seconds / 60:.1f} |"
        )
    return rows


def _faults(parts: list[Part]) -> list[str]:
    """How often each thing was broken, on each broker."""
    brokers = _brokers(parts)
    found: dict[str, Counter[str]] = {broker: Counter() for broker in brokers}
    for part in parts:
        found[part.broker].update({name.replace("_", " "): n for name, n in part.faults.items()})
    names = sorted({name for counted in found.values() for name in counted})
    rows = [
        f"| {name} | {' | '.join(f'{found[broker][name]:,}' for broker in brokers)} |"
        for name in names
    ]
    head = f"| fault | {' | '.join(brokers)} |"
    return ["Faults, all parts together:", "", head, "|---" * (len(brokers) + 1) + "|", *rows, ""]


def _checks(tally: Tally) -> list[str]:
    rows = [f"| {what} | {much} | {verdict} |" for what, much, verdict in tally.checks]
    return ["| further | measured | verdict |", "|---|---|---|", *rows, ""] if rows else []


def _notes(parts: list[Part]) -> list[str]:
    """Every promise that was broken where none may be."""
    broken = [
        f"- {part.name}, {part.broker}: {dict(part.broken)}"
        for part in parts
        if part.broken and part.failed
    ]
    examples = [f"  - {note}" for part in parts if part.failed for note in part.notes[:5]]
    if not broken:
        return [
            "No other promise was broken: nothing stuck, strayed, early, out of order or altered."
        ]
    return ["**Broken promises:**", "", *broken, *examples]
