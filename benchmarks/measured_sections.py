"""What was measured, section by section, kept in results.json: the page is written from it alone.

A section is one kind of work on one kind of queue of one broker. It is measured as a whole, since ratios are
taken within its rounds, and bears the day and the commit of its measurement: one can be measured anew while
the others stay.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, Machine
from benchmarks.grouping import Grouping
from benchmarks.memory import Memory
from benchmarks.rounds import Case, Results
from benchmarks.workload import Measured, Scenario

__all__ = [
    "INSTALLED",
    "KEPT",
    "Measurements",
    "Section",
    "Stamp",
    "Table",
    "TableGoal",
    "stamp_now",
]

KEPT = Path(__file__).with_name("results.json")
INSTALLED = "installed"
"""The series that stands for the broker which the machine has anyway."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """When, from which commit and on which broker; `load` is the machine's at the end."""

    day: str
    commit: str
    broker: str
    load: float


def stamp_now(broker: str, load: float) -> Stamp:
    """The stamp of what has just been measured."""
    return Stamp(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), broker, round(load, 1))


def _commit() -> str:
    """The commit, and whether anything but the results differs from it."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD").strip()
        changed = _git(
            "status", "--porcelain", "--", "src", "benchmarks/*.py", "benchmarks/clients"
        )
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return f"{head} and changes" if changed.strip() else head


def _git(*words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


@dataclass(frozen=True, slots=True)
class Section:
    """Every counted run of one kind of work; `profiles` are of our rows that missed a goal."""

    series: str
    queue_type: str
    scenario: Scenario
    stamp: Stamp
    results: Results
    profiles: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.series, self.queue_type, self.scenario

    @property
    def rounds(self) -> int:
        return max(map(len, self.results.runs.values()), default=0)


@dataclass(frozen=True, slots=True)
class TableGoal:
    """A goal beside a table, and what was found; `what` is its name in `reasons.toml`, too."""

    what: str
    goal: str
    found: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Figures of another kind than a section's: a text made where they were measured, and their goals."""

    name: str
    title: str
    stamp: Stamp
    text: str
    goals: tuple[TableGoal, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that the page shows."""

    machine: Machine | None = None
    sections: tuple[Section, ...] = ()
    memory: tuple[Memory, Stamp] | None = None
    groupings: tuple[tuple[Grouping, Stamp], ...] = ()
    tables: tuple[Table, ...] = ()

    def with_table(self, table: Table) -> Measurements:
        """The same with this one in the place of what it was before."""
        others = [one for one in self.tables if one.name != table.name]
        return replace(self, tables=tuple(sorted([*others, table], key=lambda one: one.name)))

    def with_section(self, section: Section) -> Measurements:
        """The same with this one in the place of what was measured of it before."""
        others = [one for one in self.sections if one.key != section.key]
        ordered = sorted([*others, section], key=_place)
        return replace(self, sections=tuple(ordered))

    @classmethod
    def load(cls, path: Path = KEPT) -> Measurements:
        """What was measured before; nothing where there is no file."""
        if not path.exists():
            return cls()
        said = json.loads(path.read_text(encoding="utf-8"))
        memory, groupings = said["memory"], said["groupings"]
        return cls(
            said["machine"] and Machine(**said["machine"]),
            tuple(map(_section, said["sections"])),
            memory and (Memory(**memory["found"]), Stamp(**memory["stamp"])),
            tuple((Grouping(**each["found"]), Stamp(**each["stamp"])) for each in groupings),
            tuple(map(_table, said.get("tables", ()))),
        )

    def save(self, path: Path = KEPT) -> None:
        """Write it down, each section on a line of its own."""
        said: dict[str, Any] = {
            "machine": self.machine and asdict(self.machine),
            "memory": self.memory and _stamped(*self.memory),
            "groupings": [_stamped(*each) for each in self.groupings],
            "tables": [asdict(table) for table in self.tables],
        }
        written = [f'"{name}": {json.dumps(value)}' for name, value in said.items()]
        sections = ",\n".join(
            json.dumps(_plain(each), ensure_ascii=False) for each in self.sections
        )
        written.append(f'"sections": [\n{sections}\n]')
        path.write_text("{" + ",\n".join(written) + "}\n", encoding="utf-8")


def _place(section: Section) -> tuple[bool, str, str, int]:
    """The installed broker first, and the kinds of work in the order of their list."""
    order = list(Scenario).index(section.scenario)
    return section.series != INSTALLED, section.series, section.queue_type, order


def _stamped(found: object, stamp: Stamp) -> dict[str, Any]:
    return {"stamp": asdict(stamp), "found": asdict(found)}  # type: ignore[call-overload]


_FIGURES = ("count", "seconds", "cpu_seconds")


def _plain(section: Section) -> dict[str, Any]:
    return {
        "series": section.series,
        "queue_type": section.queue_type,
        "scenario": section.scenario,
        "stamp": asdict(section.stamp),
        "runs": {
            case.name: [run and [round(getattr(run, name), 4) for name in _FIGURES] for run in runs]
            for case, runs in section.results.runs.items()
        },
        "failures": section.results.failures,
        "profiles": section.profiles,
    }


def _table(said: dict[str, Any]) -> Table:
    goals = tuple(TableGoal(**goal) for goal in said["goals"])
    return Table(said["name"], said["title"], Stamp(**said["stamp"]), said["text"], goals)


def _section(said: dict[str, Any]) -> Section:
    scenario = Scenario(said["scenario"])
    runs: dict[Case, list[Measured | None]] = {
        Case(said["queue_type"], scenario, name): [run and Measured(*run) for run in each]
        for name, each in said["runs"].items()
    }
    results = Results(runs, said["failures"])
    stamp = Stamp(**said["stamp"])
    return Section(said["series"], said["queue_type"], scenario, stamp, results, said["profiles"])
